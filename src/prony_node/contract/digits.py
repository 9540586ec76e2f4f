"""Whole numbers in texts: in those of others, and in sentences."""

MOST_DIGITS = 20  # of 64 bits


def is_digits(text: str) -> bool:
    """Whether a text is a whole number in digits 0 to 9, of 64 bits or little more.

    `str.isdigit` alone takes characters that `int` refuses (a superscript two) or reads (Arabic digits).
    """
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def counted(number: int, thing: str, things: str = "") -> str:
    """`1 run`, `2,000 runs`; `things` where the plural is not the word with an s."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"

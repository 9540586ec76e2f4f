"""Count words, sentences and table cells of the pages that people write, for those who keep them short.

    python scripts/count_words.py [PAGE ...] [--all] [--limit 20] [--join-colons]

Without PAGE: README.md and docs/**/*.md. Left out is what a script writes, which stands between `<!-- NAME -->` and
`<!-- /NAME -->`, and so are code blocks, other comments, HTML tags and the address of a link. The caption of a picture
counts.

A word is what stands between spaces and holds a letter or a digit; a code span is one word, however long.

A sentence ends at `.`, `!`, `?` or `:` before a space or the end of the line. It does not end in a code span, nor
behind `e.g.`, `i.e.`, `etc.`, `vs.`, `al.`, `fig.`, `no.`, a single letter or a lone number (`1.`). It also ends with
its paragraph, list entry or table cell. A single word before an end ("Note:") is counted with what follows. With
--join-colons a colon ends nothing inside a paragraph, which is the stricter measure.

Headings, and cells of fewer than four words, are labels: their words count, and they are no sentences. `mean` is of
sentences in paragraphs and lists, `with cells` of those in tables too, which are shorter.

Aims: 17 words or fewer in the mean sentence and 35 in the longest, 25 in a table cell, 30,000 words in all.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST_SENTENCE, LONGEST_CELL, LABEL = 35, 25, 4
ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|al|fig|no|cf|approx)|(?:^|\s)(?:[A-Za-z]|\d+))\.$", re.IGNORECASE)
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
ENTRY = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Block:
    """A paragraph, list entry, heading or table cell, and the line that it begins in."""

    kind: str
    line: int
    text: str


@dataclass
class Page:
    """What a page holds."""

    words: int = 0
    prose: list[tuple[int, str]] = field(default_factory=list)  # sentences of paragraphs and list entries
    in_cells: list[tuple[int, str]] = field(default_factory=list)  # of tables
    cells: list[tuple[int, str]] = field(default_factory=list)

    @property
    def sentences(self) -> list[tuple[int, str]]:
        return sorted(self.prose + self.in_cells)


def mean(sentences: list[tuple[int, str]]) -> float:
    return sum(count(text) for _, text in sentences) / max(1, len(sentences))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    parser.add_argument("--all", action="store_true", help="also every long sentence and cell, not only the longest")
    parser.add_argument("--join-colons", action="store_true", help="a colon inside a paragraph ends no sentence")
    parser.add_argument("--limit", type=int, default=20, help="how many long sentences and cells are shown")
    options = parser.parse_args(arguments)
    paths = options.pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    ends = ".!?" if options.join_colons else ".!?:"
    pages = {shown(path): read_page(path.read_text(encoding="utf-8"), ends) for path in paths}
    whole = Page()
    print("words  sentences  mean  with cells  over 35  cells over 25  page")
    for name, page in sorted(pages.items(), key=lambda item: -item[1].words):
        print_row(page, name)
        whole.words += page.words
        whole.prose += page.prose
        whole.in_cells += page.in_cells
        whole.cells += page.cells
    print_row(whole, f"{len(pages)} pages")
    limit = sys.maxsize if options.all else options.limit
    print_long("sentences", LONGEST_SENTENCE, ((name, page.sentences) for name, page in pages.items()), limit)
    print_long("table cells", LONGEST_CELL, ((name, page.cells) for name, page in pages.items()), limit)
    return 0


def shown(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def print_row(page: Page, name: str) -> None:
    sentences = sum(count(text) > LONGEST_SENTENCE for _, text in page.sentences)
    cells = sum(count(text) > LONGEST_CELL for _, text in page.cells)
    means = f"{mean(page.prose):4.1f}  {mean(page.sentences):10.1f}"
    print(f"{page.words:5}  {len(page.sentences):9}  {means}  {sentences:7}  {cells:13}  {name}")


def print_long(what: str, most: int, found: Iterable[tuple[str, list[tuple[int, str]]]], limit: int) -> None:
    long = [
        (count(text), f"{name}:{line}", text) for name, texts in found for line, text in texts if count(text) > most
    ]
    long.sort(key=lambda item: -item[0])
    print(f"\n{len(long)} {what} of more than {most} words" + (", the longest:" if len(long) > limit else ":"))
    for words, place, text in long[:limit]:
        print(f"{words:4}  {place}  {text[:90]}")


def read_page(text: str, ends: str = ".!?:") -> Page:
    page = Page()
    for block in blocks_of(text):
        page.words += count(block.text)
        if block.kind == "cell":
            page.cells.append((block.line, block.text))
        if block.kind == "heading" or (block.kind == "cell" and count(block.text) < LABEL):
            continue
        found = [(block.line, one) for one in sentences_of(block.text, ends)]
        (page.in_cells if block.kind == "cell" else page.prose).extend(found)
    return page


def count(text: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in CODE.sub("x", text).split())


def sentences_of(text: str, ends: str) -> Iterator[str]:
    """A single word, such as "Note:", is joined with what follows."""
    kept = CODE.sub(lambda match: f"`{'x' * len(match[2])}`", text)  # an end in a code span is none
    begin = 0
    for match in re.finditer(rf"[{ends}][)\"'*_\]]*(?=\s|$)", kept):
        part = kept[begin : match.start() + 1]
        if (match[0][0] == "." and ABBREVIATION.search(part)) or count(part) < 2:
            continue
        yield text[begin : match.end()].strip()
        begin = match.end()
    if count(text[begin:]):
        yield text[begin:].strip()


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of a page; a list entry or paragraph goes on over several lines."""
    begun: Block | None = None
    for number, line in written_lines(text):
        new = block_of(number, line)
        if new is None or begun is None or new.kind != "text":
            if begun is not None:
                yield begun
            begun = None
        if new is None or new.kind == "table":
            yield from cells_of(number, line)
        elif new.kind == "heading":
            yield new
        elif begun is None:
            begun = new
        else:
            begun = Block(begun.kind, begun.line, f"{begun.text} {new.text}")
    if begun is not None:
        yield begun


def block_of(number: int, line: str) -> Block | None:
    if not line.strip():
        return None
    if line.lstrip().startswith("|"):
        return Block("table", number, line)
    if line.startswith("#"):
        return Block("heading", number, line.lstrip("# "))
    match = ENTRY.match(line)
    return Block("entry" if match else "text", number, line[match.end() :] if match else line.strip())


def cells_of(number: int, line: str) -> Iterator[Block]:
    if not line.strip() or re.fullmatch(r"[\s|:-]+", line):
        return
    for cell in CELLS.split(line.strip().strip("|")):
        if cell.strip():
            yield Block("cell", number, cell.strip())


def written_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are written by hand, by number, each as a reader sees it."""
    fence, mark, comment = "", "", False
    for number, line in enumerate(text.splitlines(), start=1):
        plain = line.strip()
        if fence:
            fence = "" if plain.startswith(fence) else fence
            continue
        if match := re.match(r"(```+|~~~+)", plain):
            fence = match[1]
            yield number, ""
            continue
        if mark:
            mark = "" if plain == f"<!-- /{mark} -->" else mark
            continue
        if (match := re.fullmatch(r"<!-- ([\w-]+) -->", plain)) and f"<!-- /{match[1]} -->" in text:
            mark = match[1]
            yield number, ""
            continue
        if comment or plain.startswith("<!--"):
            comment = "-->" not in plain
            continue
        yield number, as_read(line)


def as_read(line: str) -> str:
    """Links and pictures by their words, without tags."""
    line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line)
    return re.sub(r"</?[a-z][^>`]*>", "", line)


if __name__ == "__main__":
    sys.exit(main())

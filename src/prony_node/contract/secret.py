"""What looks like a secret, and text without it: environment variables and command lines end up in files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prony_node.contract.digits import is_digits

REMOVED = "***"
# A name that holds one of these anywhere, or one of the short ones between underscores, is never recorded.
SECRET_WORDS = (
    "TOKEN", "KEY", "SECRET", "PASSW", "PASSPHRASE", "PWD", "AUTH", "CREDENTIAL", "CRED", "PRIVATE",
    "SIGNATURE", "COOKIE", "SESSION", "CERT", "BEARER", "LOGIN", "LICENSE", "WEBHOOK",
)  # fmt: skip
SECRET_PARTS = frozenset(("PASS", "PIN", "OTP", "JWT", "SALT", "SAS", "SSH", "GPG", "USER"))
# Options are less strict, or --tokenizer and --max-tokens of a training script would lose their values.
_OPTION = (
    r"passw|passphrase|secret|credential|api[-_]?key|bearer|cookie|signature|webhook|(?:token|key)(?:$|[-_.])"
    r"|(?:^|[-_.])(?:tokens|keys|pass|passcode|passin|passout|pw|pwd|auth|authorization|creds?|private|jwt|otp|pin|sas"
    r"|salt|login)(?:$|[-_.])"
)
_SECRET_OPTION = re.compile(_OPTION, re.IGNORECASE)
_NAMED_IN_TEXT = re.compile(  # name=secret, "name": "secret" or --name secret inside of a longer text
    r"""((?<![\w-])--?[\w-]{0,40}(?:passw|pass(?=\s)|pwd(?=\s)|secret|token|api-?key|credential)[\w-]{0,40}\s+(?!-)"""
    r"""|\b[\w-]{0,40}(?:token|secret|passw|_pass(?==)|api[-_]?key|access[-_]?key|auth|credential)[\w-]{0,40}["']?\s*[=:]\s*)"""
    r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&"'}]+)""",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"((?:\b|(?<=-H))(?:(?:proxy-)?authorization|cookie)\s*:\s*|\b(?:bearer|basic)\s+)[^\"']+", re.IGNORECASE
)
_USER_IN_TEXT = re.compile(r"((?<!\S)(?:-u\s*|--user[=\s])[^\s:=/]+):[^\s\"']+")  # curl -u name:password
# Programs that have a password as a short option; of mysql only glued to it.
_SHORT_OPTIONS = {"sshpass": "-p", "ipmitool": "-P", "redis-cli": "-a", "ldapsearch": "-w"}
_GLUED_OPTIONS = _SHORT_OPTIONS | {"mysql": "-p", "mysqldump": "-p", "mariadb": "-p"}
_GLUED_IN_TEXT = re.compile(r"(\b(?:mysql(?:dump)?|mariadb)\s(?:[^\s;|&]+\s){0,20}?-p)\S+")
_LONGEST = 10_000  # characters of a word that are kept
_KNOWN_FORM = re.compile(  # as Hugging Face, OpenAI, GitHub, GitLab, Slack and AWS make them; a JSON web token
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA)[A-Za-z0-9_-]{12,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
)
_USER = ("-u", "--user", "--proxy-user")  # of curl and others: name:password


def looks_secret(name: str) -> bool:
    """Whether the name of a variable holds a word that secrets are named by; in doubt it does."""
    upper = name.upper()
    return any(word in upper for word in SECRET_WORDS) or not SECRET_PARTS.isdisjoint(upper.split("_"))


def redacted(value: str) -> str:
    """A value without user and password of a URL, and without the query of one (it may hold a token)."""
    value = re.sub(r"([A-Za-z][A-Za-z0-9+.-]*://)\S*@", rf"\1{REMOVED}@", value)
    value = re.sub(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?]*)\?\S*", rf"\1?{REMOVED}", value)
    value = _HEADER.sub(rf"\1{REMOVED}", value)
    value = _NAMED_IN_TEXT.sub(rf"\1{REMOVED}", value)
    value = _USER_IN_TEXT.sub(rf"\1:{REMOVED}", value)
    value = _GLUED_IN_TEXT.sub(rf"\1{REMOVED}", value)
    return _KNOWN_FORM.sub(REMOVED, value)


def redacted_command(words: Sequence[str]) -> list[str]:
    """A command line without the values of options and variables that look secret; as many words as before."""
    kept: list[str] = []
    before = ""  # the option whose value this word may be
    program = words[0].rpartition("/")[2] if words else ""
    short, glued = _SHORT_OPTIONS.get(program), _GLUED_OPTIONS.get(program)
    for whole in words:
        word = whole[:_LONGEST]
        name, sign, value = word.partition("=")
        if (short is not None and before == short) or (_is_value(word) and _is_secret_option(before, word)):
            kept.append(REMOVED)
        elif glued is not None and word.startswith(glued) and len(word) > len(glued):
            kept.append(f"{glued}{REMOVED}")
        elif before in _USER and ":" in word and _is_value(word):
            kept.append(f"{word.partition(':')[0]}:{REMOVED}")
        elif sign and value and (_is_secret_option(name, value) or _is_secret_variable(name)):
            kept.append(f"{name}={REMOVED}")
        else:
            kept.append(redacted(word))
        before = "" if sign else word
    return kept


def _is_value(word: str) -> bool:
    """Whether a word can be the value of the option before it: a password may begin with a hyphen."""
    return not word.startswith("--") and not re.fullmatch(r"-[A-Za-z]", word)


def _is_secret_option(option: str, value: str) -> bool:
    if not re.match(r"--?[A-Za-z]{2}", option):
        return False
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", option.lstrip("-"))  # --apiToken
    return bool(_SECRET_OPTION.search(name)) and not ("tokens" in name.lower() and is_digits(value))


def _is_secret_variable(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)) and (
        bool(_SECRET_OPTION.search(name)) or (name.isupper() and looks_secret(name))
    )

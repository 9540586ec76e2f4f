"""`python -m prony_node power`: what may be asked of it, and refusing the rest in a sentence before anything starts."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

from prony_node.contract.cost import find_rates
from prony_node.contract.errors import RequestError, nearest, unknown
from prony_node.power.table import reader_names

UNITS_S = {"": 1.0, "s": 1.0, "ms": 1e-3}
SHORTEST_S, LONGEST_S = 0.01, 60.0
USAGE = """\
usage: prony power [--interval 50ms] [--readers NAMES] [--out DIR] [--json FILE]
                   [--carbon G_PER_KWH] [--price AMOUNT_PER_KWH] -- COMMAND ...
       prony power --watch [--interval 50ms] [--readers NAMES]
       prony power --list-readers
"""


class Parser(argparse.ArgumentParser):
    """Argparse that says what is wrong as we do."""

    def error(self, message: str) -> NoReturn:
        word = message.rpartition(" ")[2]
        options = [name for action in self._actions for name in action.option_strings]
        guess = nearest(word.partition("=")[0], options) if "unrecognized" in message else None
        raise RequestError(message + (f"; did you mean {guess}?" if guess else ""))


def make_parser() -> Parser:
    parser = Parser(prog="prony power", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--interval", default="50ms")
    parser.add_argument("--readers", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--carbon")
    parser.add_argument("--price")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--list-readers", action="store_true")
    return parser


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our options, and the command: from `--` on, or from the first word that is neither an option nor its value."""
    flags = ("-h", "--help", "--watch", "--list-readers")
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return words[:place], words[place + 1 :]
        if not word.startswith("-"):
            return words[:place], words[place:]
        place += 1 if word in flags or "=" in word else 2
    return words, []


def parse_interval(text: str) -> float:
    """`50ms`, `0.05s`, or a bare number of seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text)
    if match is None or match.group(2) not in UNITS_S:
        raise RequestError(f"--interval {text} is no time: give one such as 50ms or 0.1s")
    interval_s = float(match.group(1)) * UNITS_S[match.group(2)]
    if not SHORTEST_S <= interval_s <= LONGEST_S:
        near = "10ms" if interval_s < SHORTEST_S else "60s"
        raise RequestError(f"--interval {text} is not possible: it is from 10ms to 60s; the nearest is {near}")
    return interval_s


def parse_readers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in reader_names():
            raise unknown("reader", name, reader_names())
    return names


def main(words: list[str]) -> int:
    """The exit code: the command's, or 2 with a sentence when the request was wrong and nothing was started."""
    try:
        return _main(words)
    except RequestError as error:
        print(f"prony: {error}", file=sys.stderr)
        return 2


def _main(words: list[str]) -> int:
    own, command = split(words)
    options = make_parser().parse_args(own)
    if options.help:
        print(USAGE, end="")
        return 0
    interval_s, readers = parse_interval(options.interval), parse_readers(options.readers)
    if options.list_readers:
        names = reader_names()
        longest = max(map(len, names))
        print("\n".join(f"{name:<{longest}}  {what}" for name, what in names.items()))
        return 0
    if options.watch:
        if command:
            raise RequestError(f"--watch shows this machine and runs no command; leave {command[0]!r} out")
        from prony_node.power.watch import watch

        return watch(readers, interval_s)
    if not command:
        raise RequestError("there is no command to measure: prony power -- COMMAND ..., or prony power --watch")
    from prony_node.power.any_command import Request, check_out, run_command

    rates = find_rates(options.carbon, options.price, os.environ)
    check_out(options.out)
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise RequestError(f"--json {options.json}: there is no folder {options.json.absolute().parent}")
    return run_command(command, Request(interval_s, readers, options.out, options.json, rates))

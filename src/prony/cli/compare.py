"""`prony compare`: what differs between two runs, and which is faster."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony import api
from prony.cli.options import RUNS_HELP
from prony.cli.present import report
from prony_node.contract.errors import EXIT_FAILED, EXIT_OK, EXIT_UNDECIDED, RequestError
from prony_node.contract.record import Record, using
from prony_node.contract.typed import encode

if TYPE_CHECKING:
    from rich.console import Console

    from prony.analysis.compare import Comparison, Side
    from prony.analysis.summary import Difference

RUN_HELP = "A run as for `prony show`, or several repeats of it with commas between."
FAIL_HELP = "Exit with 1 if B is shown to be slower than A by more than this (2%), with 3 if nothing can be concluded."
EXITS = {True: EXIT_FAILED, False: EXIT_OK, None: EXIT_UNDECIDED}  # whether B is slower by more than asked
MOST_FACTS = 12


@dataclass(frozen=True)
class Slowdown:
    """Whether B is shown to be slower than A by more than a share; None where nothing can be concluded."""

    threshold: float
    shown: bool | None
    sentence: str


def compare(
    a: Annotated[str, typer.Argument(metavar="RUN[,RUN...]", help=RUN_HELP)],
    b: Annotated[str, typer.Argument(metavar="RUN[,RUN...]", help="Run to compare with it, likewise.")],
    paired: Annotated[
        bool, typer.Option("--paired", help="Pair the runs by position: A1 with B1, A2 with B2. Needs three pairs.")
    ] = False,
    fail_if_slower: Annotated[
        str | None, typer.Option("--fail-if-slower", metavar="SHARE", help=FAIL_HELP, show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the comparison, as JSON.")] = False,
    runs: Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)] = None,
) -> None:
    """Say what differs between two runs in settings and facts, and the ratio of their rates."""
    threshold = None if fail_if_slower is None else parse_share(fail_if_slower)
    words = _words(a), _words(b)
    records = api.load(*words[0], *words[1], runs=runs, progress=report)
    ours, theirs = _once(records[: len(words[0])]), _once(records[len(words[0]) :])
    comparison = api.compare(ours, theirs, paired=paired, runs=runs, progress=report)
    from prony.analysis.compare import slowdown
    from prony.analysis.sentences import sentences, slowdown_sentence

    slower: Slowdown | None = None
    with using(*(record.id for record in (*ours, *theirs))):
        if threshold is not None:
            found = slowdown(comparison, threshold)
            said = slowdown_sentence(found, threshold, comparison)
            slower = Slowdown(threshold, found, said)
        if as_json:
            more = {"slowdown": encode(slower)} if slower is not None else {}
            print(json.dumps({**comparison.to_json(), "sentences": sentences(comparison), **more}, indent=1))
        else:
            from prony.cli.console import make_console

            print_comparison(make_console(), comparison)
    if threshold is not None:
        print(f"prony: {said}", file=sys.stderr)
        raise typer.Exit(EXITS[found])


def parse_share(text: str) -> float:
    """A share as a person types it: 2%, 2 % or 0.02."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    share = float(found[1]) / (100.0 if found[2] else 1.0) if found else -1.0
    if not 0.0 <= share < 1.0:
        raise RequestError(f"--fail-if-slower takes a share from 0 up to 100 %, such as 2% or 0.02, not {text!r}")
    return share


def _words(text: str) -> list[str]:
    words = [word for word in text.split(",") if word]
    if not words:
        raise RequestError(f"{text!r} names no run")
    return words


def _once(records: Iterable[Record]) -> list[Record]:
    return list({record.id: record for record in records}.values())


def print_comparison(console: Console, comparison: Comparison) -> None:
    """The comparison for a person: the answer first, then what differs."""
    from rich.text import Text

    from prony.analysis.sentences import sentences

    for name, side in (("A", comparison.a), ("B", comparison.b)):
        console.print(Text.assemble((f"{name}  ", "bold"), _side(side)), soft_wrap=True)
    first, *others = sentences(comparison)
    console.print(Text(first, "bold"))
    for sentence in others:
        console.print(Text(sentence))
    _print_differences(console, "settings that differ", comparison.settings)
    _print_differences(console, "facts that differ", comparison.facts)
    _print_differences(console, "worth a note", comparison.noted)
    if comparison.doubts:
        console.print(Text("doubts", "bold"))
        for doubt in comparison.doubts:
            console.print(Text(f"  {doubt}", "yellow"), soft_wrap=True)


def _side(side: Side) -> str:
    from prony.report.numbers import format_rate

    rate = format_rate(side.rate, side.unit, side.low, side.high)
    covers = f" (95 % CI, {side.interval})" if side.interval != "none" else ""
    return f"{rate}{covers}  {', '.join(side.runs)}"


def _print_differences(console: Console, title: str, differences: list[Difference]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from prony.analysis.summary import show_setting

    if not differences:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("A", overflow="fold")
    table.add_column("B", overflow="fold")
    for difference in differences[:MOST_FACTS]:
        table.add_row(Text(difference.name), Text(show_setting(difference.a)), Text(show_setting(difference.b)))
    console.print(Text(title, "bold"))
    console.print(Padding(table, (0, 0, 0, 2)))
    if len(differences) > MOST_FACTS:
        console.print(Text(f"  and {len(differences) - MOST_FACTS} more; --json has all of them", "dim"))

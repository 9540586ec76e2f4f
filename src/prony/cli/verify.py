"""`prony verify`: whether records agree with their manifest and with the files beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.options import RUNS_HELP
from prony.cli.present import report
from prony_node.contract.errors import EXIT_FAILED, EXIT_UNDECIDED
from prony_node.contract.run_folder import Verification, verify_command
from prony_node.contract.typed import encode

PROBLEMS_SHOWN = 4


def verify(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FOLDER|ARCHIVE ...", help="Runs, folders of runs, or archives of `store export`."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print only the verdicts, as a JSON list.")] = False,
    runs: Annotated[Path | None, typer.Option("--runs", "--out", help=RUNS_HELP)] = None,
) -> None:
    """Check records against their schema, their manifest and the figures that their files give when recomputed.

    Exit code: 0 all are verified, 1 one does not agree, 2 the request is not possible, 3 some cannot be verified.
    """
    found: list[Verification] = []
    for one in api.verify(*targets, runs=runs, progress=report):
        found.append(one)
        if not as_json:
            print("\n".join(lines_of(one)), flush=True)
    if as_json:
        json.dump([encode(one) for one in found], sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif len(found) > 1:
        print(summary(found))
    raise typer.Exit(exit_code(found))


def lines_of(one: Verification) -> list[str]:
    """A verdict for a person: a line, and one more for each thing that does not agree."""
    return [_printable(line) for line in _lines_of(one)]


def _printable(text: str) -> str:
    """Names come from the files of someone else, who could write a verdict with them."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _lines_of(one: Verification) -> list[str]:
    name = one.id or one.folder
    if one.outcome == "unverified":
        return [f"unverified    {name}: {'; '.join(one.problems)}"]
    if one.outcome == "not verified":
        more = len(one.problems) - PROBLEMS_SHOWN
        told = [f"              {problem}" for problem in one.problems[:PROBLEMS_SHOWN]]
        return [f"NOT VERIFIED  {name}", *told, *([f"              and {more} more"] if more > 0 else [])]
    again = f"{len(one.recomputed)} figures recomputed" if one.recomputed else "no figure recomputed"
    rest = f", {len(one.not_recomputed)} cannot be ({', '.join(one.not_recomputed)})" if one.not_recomputed else ""
    return [f"verified      {name}: {again}{rest}", *(f"              {note}" for note in one.notes)]


def summary(found: Iterable[Verification]) -> str:
    outcomes = [one.outcome for one in found]
    return ", ".join(f"{outcomes.count(word)} {word}" for word in ("verified", "not verified", "unverified"))


def exit_code(found: list[Verification]) -> int:
    """0 when all are verified, 1 when one is not, 3 when none is wrong but some had nothing to be checked against."""
    outcomes = {one.outcome for one in found}
    if "not verified" in outcomes:
        return EXIT_FAILED
    return EXIT_UNDECIDED if "unverified" in outcomes else 0


def warn_of(wrong: list[Verification]) -> None:
    for one in wrong[:20]:
        said = f"{one.id or one.folder} does not verify: {one.problems[0]}"
        print(f"prony: {_printable(said)}", file=sys.stderr)
    say_wrong([Path(one.folder) for one in wrong])


def say_wrong(folders: list[Path]) -> None:
    """How many runs of a root do not agree with their files, and the command that says why."""
    if folders:
        command = verify_command(folders[0] if len(folders) == 1 else folders[0].parent)
        print(f"prony: {len(folders)} runs do not agree with their files; `{command}` says why", file=sys.stderr)

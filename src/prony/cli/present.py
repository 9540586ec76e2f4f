"""What verbs print of runs: warnings, records as JSON, tables, jobs, where run folders are; and the exit code."""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from prony.cli.console import make_console
from prony.cli.options import JobOptions
from prony.engine.history import runs_root
from prony.engine.progress import Event, Note, Warned
from prony.engine.runs import RunOutcome, StudyOutcome, doubts
from prony.sites.job import Job
from prony.sites.protocol import check_fits, make_launcher
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REQUEST, counted
from prony_node.contract.record import Record, read_record
from prony_node.contract.typed import JsonObject, encode

NAMED = 12  # runs that are named one by one in the line at the end


def warn(text: str) -> None:
    print(f"prony: {text}", file=sys.stderr)


@functools.cache
def warn_once(text: str) -> None:
    warn(text)


def report(event: Event) -> None:
    """The engine's reports where a verb shows no runs: what it says, on stderr."""
    if isinstance(event, Warned):
        (warn_once if event.once else warn)(event.text)
    elif isinstance(event, Note):
        warn(event.text)


def print_json(outcomes: Sequence[RunOutcome], several: bool) -> None:
    """The record alone on stdout, as its file has it; a list where several were asked for."""
    records = [_document(outcome) for outcome in outcomes]
    json.dump(records if several else records[0] if records else None, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _document(outcome: RunOutcome) -> JsonObject:
    """The record's file, with the checks of what was found since."""
    checks = [encode(check) for check in outcome.record.checks]
    document = read_record(outcome.folder)
    return encode(outcome.record) if document is None else {**document, "checks": checks}


def print_outcomes(outcomes: Sequence[RunOutcome]) -> None:
    """A table of the runs, the spread of their repeats, and where they lie."""
    from prony.cli.tables import print_repeats, results_table

    if not outcomes:
        return
    console, records = make_console(), [outcome.record for outcome in outcomes]
    console.print(results_table(records))
    print_repeats(console, records)
    print_places(outcomes)


def print_places(outcomes: Sequence[RunOutcome]) -> None:
    console = make_console()
    for line in where_lines(outcomes):
        console.print(line, markup=False, soft_wrap=True)


def where_lines(outcomes: Sequence[RunOutcome]) -> list[str]:
    """Where the runs lie, which is a site's own place for runs there, and how to see them; many: all that lie there."""
    root = outcomes[0].folder.parent
    digits = [outcome.folder.name.rpartition("-")[2] for outcome in outcomes]
    words = [] if root.absolute() == runs_root(None).absolute() else ["--runs", shlex.quote(str(root))]
    words += digits if len(digits) <= NAMED else []
    return [f"run folders: {root.absolute()}", " ".join(["a page with plots: prony report", *words])]


def print_rendered(jobs: Sequence[Job]) -> None:
    """What would be submitted, on stdout; nothing is written and nobody asked."""
    for job in jobs:
        check_fits(job)
        rendered = make_launcher(job.site.kind, warn).render(job)
        print(f"# {shlex.join(rendered.command)}")
        for name, text in rendered.files.items():
            print(f"# {job.folder / name}")
            print(text)


def print_left(jobs: Sequence[Job]) -> None:
    """Name the jobs that nobody waits for, on stdout, and who goes on with them."""
    for job in jobs:
        print(job.id)
    if any(job.handle is None for job in jobs):
        warn("what waits is submitted by a later `prony jobs` or `prony collect`; `prony collect --wait` stays")


def exit_if_not_followed(outcome: StudyOutcome, jobs: JobOptions, resumable: bool = False) -> None:
    """End a verb whose jobs were only shown, or left to go on."""
    if jobs.dry_run:
        print_rendered(outcome.jobs)
        raise typer.Exit
    if jobs.detach and outcome.jobs:
        print_left(outcome.jobs)
        if resumable:
            warn("the same command again collects what has ended, and prints the tables once all has")
        raise typer.Exit


def end_study(outcome: StudyOutcome) -> NoReturn:
    """Say why a study stopped before its end, where it did, and exit."""
    if outcome.stopped:
        warn(outcome.stopped)
    failed = sum(record.status == "ok" and bool(record.failed_checks) for record in outcome.records)
    if failed:
        warn(f"{counted(failed, 'run')} failed a check, and {'is' if failed == 1 else 'are'} no result")
    code = exit_code(outcome.records, outcome.interrupted)
    raise typer.Exit(EXIT_FAILED if outcome.gave_up or code == EXIT_REQUEST else code)


def exit_code(records: Sequence[Record], interrupted: bool, strict: bool = False) -> int:
    """0 when all is good; 130 interrupted; 1 something failed, be it a check; 2 when every request was refused.

    `strict`: a check that warns counts as one that failed.
    """
    bad = [record for record in records if record.failure is not None]
    if interrupted or any(record.status == "interrupted" for record in bad):
        return EXIT_INTERRUPTED
    if not bad:
        return EXIT_FAILED if any(doubts(record, strict) for record in records) else EXIT_OK
    refused = [record for record in bad if record.failure is not None and record.failure.kind == "request"]
    return EXIT_REQUEST if len(refused) == len(records) else EXIT_FAILED

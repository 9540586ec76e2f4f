"""`prony sweep`: measure a grid of settings; finished ones are skipped, failed ones passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from prony.cli.execute import (
    EXIT_FAILED,
    EXIT_REQUEST,
    Job,
    Outcome,
    execute,
    exit_code,
    refuse_missing_paths,
    refuse_unknown_models,
    runs_root,
)
from prony.cli.model_file import find_model_file
from prony.cli.progress import Display, make_display
from prony.cli.repeats import print_repeats
from prony.cli.run import print_json
from prony.launch.collect import collect_all
from prony.launch.node import ask_node
from prony.plan.request import make_stop
from prony.plan.sweep import interleave, make_grid
from prony.report.numbers import format_share
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record


def sweep(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="What to measure.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="SETTING=VALUE,VALUE", help="Lists of values; every combination is run."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each trial, in fresh processes.")] = 1,
    tolerance: Annotated[str | None, typer.Option(help="Half-width of the 95 % interval to reach, such as 1%.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Most time to measure each run, such as 120s or 2m.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records alone, as a JSON list.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where run folders go (else $PRONY_RUNS, ./runs).")] = None,
) -> None:
    """Measure a grid of settings; what is finished is skipped when started again."""
    if not settings:
        raise RequestError("a sweep needs settings with values to try, such as batch_size=16,32,64")
    root = runs_root(out)
    stop = make_stop(tolerance, max_time)
    model = find_model_file(workload, root)
    file = model.plan if model else None
    trials = make_grid(model.workload if model else workload, settings)
    jobs = [Job(trial, stop, repeat, file=file) for trial, repeat in interleave(trials, repeats)]
    refuse_missing_paths(jobs)
    refuse_unknown_models(jobs, root)
    display = make_display(Console(stderr=True))
    collect_all(root)
    done, left = split_finished(jobs, root, retry_failed, display)
    made, interrupted = execute(left, root, display)
    outcomes = [*done, *made]
    records = [outcome.record for outcome in outcomes]
    if as_json:
        print_json(records, several=True)
    else:
        _print_sweep(outcomes, root)
    code = exit_code(records, interrupted)
    raise typer.Exit(EXIT_FAILED if code == EXIT_REQUEST else code)


def split_finished(
    jobs: list[Job], root: Path, retry_failed: bool, display: Display
) -> tuple[list[Outcome], list[Job]]:
    """What has a record on this machine with this software already, and what is left to run."""
    from prony.store import Store

    store = Store(root)
    store.refresh()
    here = ask_node("fingerprint", root)
    done: list[Outcome] = []
    left: list[Job] = []
    for job in jobs:
        runs = store.finished(job.trial.hash, job.repeat, here.get("machine"), here.get("software"))
        finished = {"ok"} if retry_failed else {"ok", "failed"}  # an interrupted run never counts
        folder = next((run.folder for run in runs if run.status in finished), None)
        record = read_record(folder) if folder is not None else None
        if folder is None or record is None:
            left.append(job)
            continue
        done.append(Outcome(folder, record))
        display.note(f"{job.trial}, repeat {job.repeat}: finished before ({_how(record)}), skipped")
    return done, left


def _how(record: dict[str, Any]) -> str:
    """How a finished run ended, and how well it knows its rate: a new tolerance does not make it unfinished."""
    width = (record.get("steady") or {}).get("relative_half_width")
    known = f", ± {format_share(width, 2)}" if width is not None else ""
    return f"{record['status']}{known}"


def _print_sweep(outcomes: list[Outcome], root: Path) -> None:
    from prony.cli.tables import make_console, results_table

    if not outcomes:
        return
    console = make_console()
    console.print(results_table([outcome.record for outcome in outcomes]))
    print_repeats(console, outcomes)
    names = " ".join(str(root / outcome.folder.name) for outcome in outcomes)
    console.print(f"run folders: {root.absolute()}", markup=False, soft_wrap=True)
    console.print(f"a page with plots: prony report {names}", markup=False, soft_wrap=True)

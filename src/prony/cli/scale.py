"""`prony scale`: the same trial on more and more devices, what it gained over one, what was lost and where."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prony.cli.ask_node import find_machine, find_model_file
from prony.cli.at_site import Block, Detach, Dry, PartitionName, SiteName, Time, at_site, find_partition, warn
from prony.cli.console import make_console
from prony.cli.execute import RunOutcome, runs_root, updated_store, where_lines
from prony.cli.study_run import carry_out, make_view, study_root
from prony.cli.study_trials import OTHER_CODE_HELP, Options
from prony.cli.sweep import ENERGY_HELP, RETRY_HELP, SHARE_HELP, end
from prony.sites.job import BLOCK
from prony.sites.site import Partition, find_site
from prony.study.request import make_stop
from prony.study.scale import STRONG, WEAK, ScalingTrials, make_series, parse_counts
from prony.study.study import LOCAL
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Record, parse_record, using

if TYPE_CHECKING:
    from prony.analysis.scaling import Scaling

SCHEMA = "prony.scaling/1"
NODE_RANK, RENDEZVOUS = "PRONY_NODE_RANK", "PRONY_RENDEZVOUS"  # as the node reads them (prony_node/parallel/place.py)


def scale(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD|FILE", help="What to measure.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="devices=1,2,4 [SETTING=VALUE]", help="Counts of devices; other settings as for `run`."),
    ] = None,
    weak: Annotated[bool, typer.Option("--weak", help="Keep the batch of each device (the default).")] = False,
    strong: Annotated[bool, typer.Option("--strong", help="Keep the batch of all devices together.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Weak and strong; one device is run once for both.")] = False,
    nodes: Annotated[
        str | None, typer.Option(help="Counts of nodes to go on with, the most devices on each, such as 2,4.")
    ] = None,
    diagnose: Annotated[
        bool, typer.Option(help="Each count also with sync=off, which shows what communication costs.")
    ] = True,
    predict: Annotated[
        str | None, typer.Option(help="Counts to predict, such as 16,64 (else twice and four times the largest).")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each trial, in fresh processes.")] = 3,
    tolerance: Annotated[str | None, typer.Option(help="Half-width of the 95 % interval to reach, such as 1%.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Most time to measure each run, such as 120s or 2m.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help=RETRY_HELP)] = False,
    accept_other_code: Annotated[bool, typer.Option("--accept-other-code", help=OTHER_CODE_HELP)] = False,
    share: Annotated[bool, typer.Option("--share", help=SHARE_HELP)] = False,
    energy: Annotated[bool, typer.Option(help=ENERGY_HELP)] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the series alone, as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where run folders go (else $PRONY_RUNS, ./runs).")] = None,
    site: SiteName = None,
    partition: PartitionName = None,
    job_time: Time = None,
    block: Block = None,
    detach: Detach = False,
    dry_run: Dry = False,
) -> None:
    """Measure a workload on more and more devices, here or at a site; what is finished is skipped the next time."""
    where = site or LOCAL
    there = at_site(where != LOCAL, partition, job_time, block, detach, dry_run)
    root, stop = runs_root(out), make_stop(tolerance, max_time)
    ahead = parse_counts(predict, "--predict") if predict else []
    model = find_model_file(workload)
    series = make_series(
        model.workload if model else workload,
        settings or [],
        _kinds(weak, strong, both),
        lambda device: find_machine(device, _partition(where, partition)),
        parse_counts(nodes, "--nodes") if nodes else [],
        diagnose,
    )
    if where == LOCAL:
        _refuse_lonely_nodes(series)
    study = series.study(stop, repeats, where)
    if block is None:
        there = replace(there, block=_whole_repeats(len(series.trials)))
    if series.batch_taken:
        warn(series.batch_taken)
    files = {series.workload.name: model.plan} if model else {}
    options = Options(
        root, retry_failed, share, energy, files, there, leave_out=False, accept_other_code=accept_other_code
    )
    carried = carry_out(study, options, make_view(make_console(stderr=True)))
    found = _analyse(carried.outcomes, series, ahead, study_root(study, root))
    if as_json:
        document = {"schema": SCHEMA, "runs": [str(one.folder) for one in carried.outcomes]}
        json.dump({**document, "series": [one.to_json() for one in found]}, sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif carried.outcomes:
        _print(carried.outcomes, found)
    end(carried)


def _partition(where: str, name: str | None) -> Partition | None:
    """The partition whose nodes make the runs; None for this machine."""
    if where == LOCAL or (site := find_site(where)).kind == LOCAL:
        return None
    return find_partition(site, name)


def _whole_repeats(trials: int) -> int:
    """Runs that share an allocation: each repeat of a series as a whole, and as many as a block takes."""
    return trials * max(1, BLOCK // trials)


def _kinds(weak: bool, strong: bool, both: bool) -> list[str]:
    if weak + strong + both > 1:
        raise RequestError("--weak, --strong and --both exclude each other; --both does the two")
    return [WEAK, STRONG] if both else [STRONG] if strong else [WEAK]


def _refuse_lonely_nodes(series: ScalingTrials) -> None:
    """Runs are started on this machine alone, so the other nodes must know where to come."""
    if all(trial.settings.get("nodes", 1) == 1 for trial in series.trials):
        return
    if not os.environ.get(RENDEZVOUS) or os.environ.get(NODE_RANK) != "0":
        raise RequestError(
            f"--nodes needs {RENDEZVOUS}=HOST:PORT, an address of this node where all meet, and {NODE_RANK}=0; "
            "the other nodes are started by you, as docs/scaling.md says; --site NAME starts all of them"
        )


def _analyse(outcomes: list[RunOutcome], series: ScalingTrials, predict: list[int], root: Path) -> list[Scaling]:
    """A series of each kind, as far as it was run."""
    from prony.analysis.scaling import NOT_RUN, scaling

    found, collectives = [], _collectives(root) if outcomes else []
    for kind in series.by_kind:
        hashes = series.hashes(kind)
        records = [parse_record(one.record) for one in outcomes if one.record["trial"]["hash"] in hashes]
        if records:
            with using(*(record.id for record in (*records, *collectives))):
                found.append(scaling(records, kind, predict, series.no_free or NOT_RUN, collectives))
    return found


def _collectives(root: Path) -> list[Record]:
    """Good runs of collectives among the runs here: what links can do, to stand beside what the series sends."""
    from prony.analysis.scaling_series import OPERATIONS

    store = updated_store(root)
    names = sorted(set(OPERATIONS.values()))
    records = [run.read_record() for name in names for run in store.runs(workload=name, status="ok")]
    return [record for record in records if record is not None]


def _print(outcomes: list[RunOutcome], found: list[Scaling]) -> None:
    from prony.cli.tables import print_scaling

    console = make_console()
    for one in found:
        print_scaling(console, one)
    for line in where_lines(outcomes) if outcomes else []:
        console.print(line, markup=False, soft_wrap=True)

"""`prony screen`: the same short trial on every node of a partition, and which node is out of family."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.analysis.variation import Family, family
from prony.cli.console import make_console
from prony.cli.present import print_rendered
from prony.cli.progress import make_display
from prony.engine.options import SiteOptions
from prony.sites.job import Job
from prony.study.request import parse_seconds
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED
from prony_node.contract.record import Record


def screen(
    name: Annotated[str, typer.Argument(metavar="SITE")],
    partition: Annotated[str, typer.Argument(metavar="PARTITION")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD] [SETTING=VALUE ...]", help="The trial; else gemm.")
    ] = None,
    nodes: Annotated[str | None, typer.Option(help="Only these nodes, with commas between.")] = None,
    max_time: Annotated[str | None, typer.Option(help="Most time to measure on each node.")] = "30s",
    time: Annotated[str | None, typer.Option("--time", help="The time limit of each job, such as 10m.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where run folders go (else as the site says).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs, submit nothing.")] = False,
) -> None:
    """Measure the same trial on every node of a partition, and say which is unlike the others."""
    outcome = api.screen(
        name, partition, *words or (),
        nodes=[node.strip() for node in (nodes or "").split(",") if node.strip()], max_time=max_time, out=out,
        at=SiteOptions(time_s=parse_seconds(time, "--time") if time else None, dry_run=dry_run),
        progress=make_display(make_console(stderr=True)),
    )  # fmt: skip
    if dry_run:
        print_rendered(outcome.jobs)
        return
    bad = _print({str(job.node): job for job in outcome.jobs}, outcome.records)
    if outcome.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if bad:
        raise typer.Exit(EXIT_FAILED)


def rates_of(jobs: dict[str, Job], records: Mapping[str, Record]) -> dict[str, dict[str, float]]:
    """The rates of every node that has one: of each of its devices where they were measured on their own."""
    found: dict[str, dict[str, float]] = {}
    for node, job in jobs.items():
        record = records.get(job.runs[0].plan.run_id)
        rate = None if record is None else record.value("throughput")
        if record is None or record.status != "ok" or rate is None or record.rate_fails:
            continue
        parallel = record.parallel or {}
        paces = [1.0 / rank["step_s"] for rank in parallel.get("ranks") or [] if rank.get("step_s")]
        if parallel.get("form") == "independent" and len(paces) > 1:
            rates = {f"{node} device {rank}": rate * pace / sum(paces) for rank, pace in enumerate(paces)}
        else:
            rates = {node: rate}
        found[node] = rates
    return found


def _no_rate(record: Record | None) -> str:
    """Why a node has none, in a line."""
    if record is None:
        return "no record: its job has not ended"
    if record.failure is None:
        return f"failed check: {', '.join(record.rate_fails)}" if record.rate_fails else "no rate was measured"
    return f"{record.failure.kind}: {record.failure.message.splitlines()[0]}"


def _print(jobs: dict[str, Job], made: Sequence[Record]) -> bool:
    """The table of nodes, and the verdict; whether anything is wrong."""
    from prony.report.numbers import format_rate

    records = {record.id: record for record in made}
    rates = rates_of(jobs, records)
    unit = next((f"{record.unit}/s" for record in made if record.unit), "")
    each = {name: rate for of_node in rates.values() for name, rate in of_node.items()}
    judged: Family | None = family(each, "devices" if len(each) > len(rates) else "nodes")
    width = max(len(name) for name in (*jobs, *each))
    for member in judged.members if judged else []:
        mark = "  out of family" if member.out else ""
        print(f"{member.name:<{width}}  {format_rate(member.rate, unit):>24}  {100 * member.off:+6.2f} %{mark}")
    for node in (node for node in jobs if node not in rates):
        record = records.get(jobs[node].runs[0].plan.run_id)
        print(f"{node:<{width}}  {_no_rate(record)}")
    print(judged.verdict if judged else "no node has a rate", file=sys.stdout)
    return len(rates) < len(jobs) or bool(judged and any(member.out for member in judged.members))

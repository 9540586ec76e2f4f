"""`prony screen`: the same short trial on every node of a partition, and which node is out of family."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from prony import catalog
from prony.analysis.variation import Family, family
from prony.cli.at_site import find_partition, follow, show_rendered, site_root, submit, warn
from prony.cli.console import make_console
from prony.cli.execute import RunOutcome
from prony.cli.progress import make_display
from prony.sites.job import BlockRun, Job, make_jobs
from prony.sites.protocol import make_launcher
from prony.sites.site import find_site
from prony.study.request import make_plan, make_stop, parse_seconds, parse_trial
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, RequestError
from prony_node.contract.record import rate_fails

WORKLOAD = "gemm"  # the device's own ceiling: nothing but the node can make it slow


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
    site = find_site(name)
    chosen = find_partition(site, partition)
    given = list(words or [])
    target = given.pop(0) if given and "=" not in given[0] else WORKLOAD
    trial = parse_trial(target, given)
    if int(trial.settings.get("nodes", 1)) != 1:
        raise RequestError(f"nodes={trial.settings['nodes']} cannot be screened with: each node is measured alone")
    if chosen.accelerators and not {"devices", "device"} & trial.settings.keys():
        trial = parse_trial(target, [*given, f"devices={chosen.accelerators}"])  # all of a node, not one by chance
    listed = [node.strip() for node in (nodes or "").split(",") if node.strip()]
    listed = listed or make_launcher(site.kind, warn).nodes(site, chosen)
    if not listed:
        raise RequestError(f"partition {partition} of {name} has no node that takes jobs")
    root = site_root(site, out)
    jobs: dict[str, Job] = {}
    for node in dict.fromkeys(listed):
        plan = make_plan(trial, make_stop(None, max_time), tuple(catalog.peaks()))
        made, _ = make_jobs(
            site, chosen, root, [BlockRun(plan)],
            time_s=parse_seconds(time, "--time") if time else None, folder_of_work=str(Path.cwd()), node=node,
        )  # fmt: skip
        jobs[node] = made[0]
    if dry_run:
        show_rendered(list(jobs.values()))
        return
    submit(list(jobs.values()), root)
    outcomes, interrupted = follow(list(jobs.values()), root, make_display(make_console(stderr=True)))
    bad = _print(jobs, outcomes)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if bad:
        raise typer.Exit(EXIT_FAILED)


def rates_of(jobs: dict[str, Job], records: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The rates of every node that has one: of each of its devices where they were measured on their own."""
    found: dict[str, dict[str, float]] = {}
    for node, job in jobs.items():
        record = records.get(job.runs[0].plan.run_id) or {}
        value = (record.get("metrics", {}).get("throughput") or {}).get("value")
        if record.get("status") != "ok" or value is None or rate_fails(record):
            continue
        parallel = record.get("parallel") or {}
        paces = [1.0 / rank["step_s"] for rank in parallel.get("ranks") or [] if rank.get("step_s")]
        if parallel.get("form") == "independent" and len(paces) > 1:
            rates = {f"{node} device {rank}": float(value) * pace / sum(paces) for rank, pace in enumerate(paces)}
        else:
            rates = {node: float(value)}
        found[node] = rates
    return found


def _no_rate(record: dict[str, Any] | None) -> str:
    """Why a node has none, in a line."""
    if record is None:
        return "no record: its job has not ended"
    if record["status"] == "ok":
        return f"failed check: {', '.join(rate_fails(record))}" if rate_fails(record) else "no rate was measured"
    return f"{record['failure']['kind']}: {str(record['failure']['message']).splitlines()[0]}"


def _print(jobs: dict[str, Job], outcomes: list[RunOutcome]) -> bool:
    """The table of nodes, and the verdict; whether anything is wrong."""
    from prony.report.numbers import format_rate

    records = {str(outcome.record["id"]): outcome.record for outcome in outcomes}
    rates = rates_of(jobs, records)
    unit = next((f"{record['unit']}/s" for record in records.values() if record.get("unit")), "")
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

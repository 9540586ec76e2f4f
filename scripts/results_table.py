"""Write the table of results/h200 into README.md, from the records alone.

python scripts/results_table.py [--results results/h200] [--readme README.md]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HEAD = ["work", "batch", "precision", "rate, median of the runs", "lowest to highest", "MFU", "cold start, cache warm",
        "plain eager bf16 loop", "ratio", "work a watt-hour (GPU)", "mean power"]  # fmt: skip


def load(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Good records by their trial, in the order in which the trials were first run."""
    records = [json.loads(path.read_text()) for path in folder.glob("*/record.json")]
    trials: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["started"]):
        if record["status"] == "ok":
            trials.setdefault(record["trial"]["hash"], []).append(record)
    return trials


def median_run(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The middle run by its rate, the lower of two: every page takes its figures from this one."""
    return sorted(records, key=lambda record: record["metrics"]["throughput"]["value"])[(len(records) - 1) // 2]


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    """What a trial and its plain loop have in common."""
    effective = record["trial"]["effective"]
    return record["trial"]["workload"], effective["mode"], effective["batch_size"]


def plain_loops(folder: Path) -> dict[tuple[Any, ...], float]:
    """What benchmarks/plain.py found, by workload, mode and batch size."""
    loops = json.loads((folder / "plain.json").read_text())["loops"]
    return {(loop["workload"], loop["mode"], loop["batch_size"]): statistics.mean(loop["rates"]) for loop in loops}


def energy(records: list[dict[str, Any]]) -> list[str]:
    """Work a watt-hour of the median run, with the widest uncertainty of a run, and its power; else dashes."""
    known = [record for record in records
             if (record["metrics"].get("samples_per_wh") or {}).get("value") is not None]  # fmt: skip
    if not known:
        return ["-", "-"]
    work = [record["metrics"]["samples_per_wh"] for record in known]
    unsure = max(metric["high"] / metric["value"] - 1.0 for metric in work)
    middle = median_run(known)["metrics"]
    runs = "1 run" if len(known) == 1 else f"{len(known)} runs"
    return [f"{middle['samples_per_wh']['value']:,.0f} {work[0]['unit']} ± {unsure:.1%} ({runs})",
            f"{middle['power']['value']:,.0f} W"]  # fmt: skip


def rows(trials: dict[str, list[dict[str, Any]]], plain: dict[tuple[Any, ...], float]) -> list[list[str]]:
    table = []
    for records in trials.values():
        first = records[0]
        workload, mode, batch = key(first)
        found, beside = [record["metrics"]["throughput"]["value"] for record in records], plain.get(key(first))
        median = median_run(records)["metrics"]
        middle, unit, mfu = median["throughput"]["value"], median["throughput"]["unit"], median["mfu"]["value"]
        warm = [record["metrics"]["cold_start"]["value"] for record in records
                if record["phases"]["cold_start"]["compile_cache"]["state"] == "warm"]  # fmt: skip
        runs = "1 run" if len(records) == 1 else f"{len(records)} runs"
        table.append([
            f"{workload}, {mode}", str(batch), str(first["trial"]["effective"]["precision"]),
            f"**{middle:,.0f} {unit}** ({runs})", f"{min(found):,.0f} to {max(found):,.0f}",
            "-" if mfu is None else f"{mfu:.1%}",
            f"{statistics.median(warm):.1f} s" if warm else "-",
            f"{beside:,.0f} {unit}" if beside else "-", f"{middle / beside:.2f}" if beside else "-",
            *energy(records),
        ])  # fmt: skip
    return sorted(table)


def put_table(page: Path, name: str, head: list[str], table: Iterable[list[str]]) -> None:
    put_lines(page, name, ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *table]])


def put_lines(page: Path, name: str, lines: Iterable[str]) -> None:
    """Between `<!-- NAME -->` and `<!-- /NAME -->`; what is around it is written by hand."""
    before, start, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not start or not end:
        raise SystemExit(f"{page} has no <!-- {name} --> ... <!-- /{name} -->")
    page.write_text(before + start + "".join(f"{line}\n" for line in lines) + end + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/h200"))
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    options = parser.parse_args()
    put_table(options.readme, "h200-table", HEAD, rows(load(options.results), plain_loops(options.results)))


if __name__ == "__main__":
    main()

"""Write the tables of docs/results/workloads.md from results/h200/unverified.tar.gz and the plain loops beside it.

python scripts/results_page.py [--results results/h200] [--page docs/results/workloads.md]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from page_tables import put_table
from results_records import Record, Run, read_runs

from prony.report.numbers import format_window
from prony_node.contract.machine import Machine
from prony_node.contract.settings import join_kernels, uses_kernel
from prony_node.contract.typed import LARGEST
from prony_node.workloads import find_workload
from prony_node.workloads.config import of_mode

NONE = "-"
ARCHIVE = "unverified.tar.gz"
PLAIN = "plain.json"
# Workloads whose kernels were tried, with what else was; the order in which attention is asked is not shown.
FORMS: dict[str, tuple[str, ...]] = {
    "dino-swin-l": ("graphs",), "deeplabv3plus-r101": (), "segformer-b4": (), "vit-l": (), "efficientnet-b0": (),
    "mobilenetv3-large": (), "resnet50": (), "swin-t": (), "swin-b": (), "fasterrcnn-r50-fpn": ("compile",),
}  # fmt: skip
TRAINING = ("graphs",)  # of these, what is other in training alone
SHOWN = {True: "on", False: "off"}
H200 = Machine("cuda", 139.8, 16)
AT_FLOOR = 0.01  # an interval is at its floor when it is wider by this share of it at most
RATE = "rate (95 % within the run), window"
LARGE = ((1e12, " T"), (1e9, " G"))  # of the ceilings, whose work is FLOPs or bytes


@functools.cache
def all_runs(archive: Path) -> list[Run]:
    return list(read_runs(archive))


def load(results: Path, *groups: str) -> list[Record]:
    """The records of these groups, by workload and start."""
    records = [run.record for run in all_runs(results / ARCHIVE) if run.group in groups]
    return sorted(records, key=lambda record: (record["trial"]["workload"], record["started"]))


def median_run(records: list[Record]) -> Record:
    """The middle run by its rate, the lower of two."""
    return sorted(records, key=lambda record: record["metrics"]["throughput"]["value"])[(len(records) - 1) // 2]


def key(record: Record) -> tuple[Any, ...]:
    """What a trial and its plain loop have in common."""
    effective = record["trial"]["effective"]
    return record["trial"]["workload"], effective["mode"], effective["batch_size"]


def plain_of(results: Path, part: str) -> Any:
    """What benchmarks/plain.py wrote in one job."""
    return json.loads((results / PLAIN).read_text(encoding="utf-8"))[part]


def value(record: Record, name: str, form: str, scale: float = 1.0, unit: str = "") -> str:
    metric = record["metrics"].get(name) or {}
    return f"{metric['value'] * scale:{form}}{unit}" if metric.get("value") is not None else NONE


def rate(record: Record) -> str:
    """Throughput in a unit that can be read, with the interval of its run and the window that it is of.

    `floor` marks an interval that is as narrow as a window of that length supports.
    """
    metric = record["metrics"]["throughput"]
    size, prefix = (1e12, " T") if metric["value"] >= 1e11 else (1e9, " G") if metric["value"] >= 1e8 else (1.0, " ")
    half = (metric["high"] - metric["low"]) / 2 / metric["value"]
    digits = 0 if size == 1.0 and metric["value"] >= 100 else 1
    at_floor = half < (1 + AT_FLOOR) * (record["steady"].get("half_width_floor") or 0.0)
    length = format_window(window_of(record))
    return f"{metric['value'] / size:,.{digits}f}{prefix}{metric['unit']} ± {half:.2%}{' (floor)' * at_floor}{length}"


def window_of(record: Record) -> float | None:
    """Seconds that the rate and its interval come from: those that all copies share, where there are several."""
    for part in ("parallel", "steady"):
        window_s = (record.get(part) or {}).get("window_s")
        if isinstance(window_s, (int, float)) and 0 < window_s < LARGEST:
            return float(window_s)
    return None


def work_per_wh(record: Record) -> str:
    metric = record["metrics"].get("samples_per_wh") or {}
    if metric.get("value") is None:
        return NONE
    size, prefix = next(((size, name) for size, name in LARGE if metric["value"] >= 10 * size), (1.0, ""))
    return f"{metric['value'] / size:,.0f}{prefix}"


def trial(record: Record) -> str:
    effective = record["trial"]["effective"]
    phase = f", {effective['phase']}" if effective.get("phase") not in (None, "whole", "forward") else ""
    return f"{record['trial']['workload']}, {effective.get('mode', record['trial']['settings'].get('mode'))}{phase}"


def form_of(record: Record) -> str:
    """What it had of what was tried; records from before there was a choice have the library's."""
    name, effective = record["trial"]["workload"], record["trial"]["effective"]
    if name not in FORMS:
        return ""
    offered = [kernel for kernel in of_mode(find_workload(name).kernels, effective.get("mode", "train"))
               if not kernel.orders_attention]  # fmt: skip
    ran = join_kernels(kernel.name for kernel in offered if uses_kernel(effective, kernel.name))
    others = [one for one in FORMS[name] if effective.get("mode") != "infer" or one not in TRAINING]
    words = [f"{one}={SHOWN.get(given := effective.get(one, 'library'), given)}" for one in others]
    return " ".join([*([f"kernels={ran}"] if offered else []), *words])


def is_default(record: Record) -> bool:
    """Whether the form that it had is the default by now."""
    asked = {name: given for name, given in record["trial"]["settings"].items()
             if name not in ("kernels", *FORMS.get(record["trial"]["workload"], ()))}  # fmt: skip
    workload = find_workload(record["trial"]["workload"])
    there = {"trial": {**record["trial"], "effective": workload.defaults(asked, H200)}}
    return form_of(there) == form_of(record)


def marks(record: Record) -> str:
    """The checks that did not pass, without those that could not be made."""
    bad = [f"{check['name']} ({check['level']})" for check in record["checks"] if check["level"] in ("warn", "fail")]
    return ", ".join(bad) or NONE


def workload_rows(results: Path) -> Iterable[list[str]]:
    """One row a trial: the median run of it, or the reason why there is none.

    Where the default form has changed since its runs, the row names the one that they had.
    """
    runs: dict[tuple[str, ...], list[Record]] = {}
    before: dict[tuple[str, ...], list[Record]] = {}
    for record in load(results, "reference", "workloads"):
        effective = record["trial"]["effective"]
        trial_key = (trial(record), str(effective.get("batch_size")), str(effective.get("precision")))
        (runs if is_default(record) else before).setdefault(trial_key, []).append(record)
    for (name, batch, precision), records in before.items():
        if (name, batch, precision) not in runs:
            runs[f"{name}, {form_of(records[-1])}", batch, precision] = records
    for (name, batch, precision), records in sorted(runs.items()):
        good = [record for record in records if record["status"] == "ok"]
        if not good:
            reason = records[-1]["failure"]
            yield [name, batch, precision, f"{reason['kind']}: {reason['message']}", *[NONE] * 6]
            continue
        middle = median_run(good)
        yield [
            name, batch, precision, rate(middle), str(len(good)), value(middle, "mfu", ".1%"),
            value(middle, "latency_p50", ".4g", 1e3, " ms"),
            value(middle, "peak_memory_reserved", ".1f", 2**-30, " GiB"),
            work_per_wh(middle), marks(middle),
        ]  # fmt: skip


def quality_rows(results: Path) -> Iterable[list[str]]:
    records = load(results, "cifar10")
    for record in records:
        effective, learning = record["trial"]["effective"], record["learning"]
        yield [
            str(effective["seed"]), str(effective["batch_size"]), effective["until"], value(record, "quality", ".4f"),
            str(learning["reached"]["epoch"]) if learning["reached"] else "not reached",
            value(record, "time_to_quality", ".2f", 1.0, " s"),
            value(record, "energy_to_quality", ".2f", 1 / 3600, " Wh"), rate(record), marks(record),
        ]  # fmt: skip
    names = ("quality", "time_to_quality", "energy_to_quality")
    middle = {name: statistics.median(record["metrics"][name]["value"] for record in records) for name in names}
    yield [
        "median", "", "", f"{middle['quality']:.4f}", "", f"{middle['time_to_quality']:.2f} s",
        f"{middle['energy_to_quality'] / 3600:.2f} Wh", "", "",
    ]  # fmt: skip


def input_rows(results: Path) -> Iterable[list[str]]:
    for record in load(results, "generated"):
        effective = record["trial"]["effective"]
        words = ["decode", "workers", "data_format", "prefetch", "cache"]
        yield [
            trial(record), " ".join(f"{name}={effective[name]}" for name in words if name in effective),
            rate(record), value(record, "data_wait_share", ".0%"), value(record, "cpu_utilisation", ".0%"),
            f"{record['stop']['max_time_s']:g} s", marks(record),
        ]  # fmt: skip


def auto_rows(results: Path) -> Iterable[list[str]]:
    for record in load(results, "auto"):
        effective, tries = record["trial"]["effective"], record["auto_batch"]
        small = min((entry["batch"] for entry in tries if not entry["fits"]), default=None)
        cap = effective.get("memory_cap")
        found = effective["batch_size"]
        yield [
            trial(record), effective["compile"], f"{cap} GiB, set" if cap else "all", str(found),
            f"{small} (+{small / found - 1:.1%})" if small else NONE, str(len(tries)),
            value(record, "peak_memory_reserved", ".2f", 2**-30, " GiB"),
            f"{record['phases']['build']['seconds']:.0f} s",
        ]  # fmt: skip


def scene_rows(results: Path) -> Iterable[list[str]]:
    """Detectors and segmenters at their default batch, beside the plain loop of the same job."""
    loops = plain_of(results, "plain-scenes")["loops"]
    plain = {(loop["workload"], loop["mode"], loop["batch_size"]): loop["rates"] for loop in loops}
    runs: dict[tuple[str, str, int], list[Record]] = {}
    for record in filter(is_default, load(results, "workloads")):
        if record["status"] == "ok" and key(record) in plain:
            runs.setdefault(key(record), []).append(record)
    for work, records in runs.items():
        middle = median_run(records)
        ratio = middle["metrics"]["throughput"]["value"] / statistics.mean(plain[work])
        yield [
            trial(middle), str(middle["trial"]["effective"]["batch_size"]), rate(middle), str(len(records)),
            ", ".join(f"{one:,.1f}" for one in plain[work]), f"{ratio:.2f}",
            value(middle, "peak_memory_reserved", ".1f", 2**-30, " GiB"), marks(middle),
        ]  # fmt: skip


def form_rows(results: Path) -> Iterable[list[str]]:
    """The same work with a layer's other form."""
    for record in load(results, "reference", "forms", "workloads"):
        effective, form = record["trial"]["effective"], form_of(record)
        if form and record["status"] == "ok":
            yield [
                trial(record), str(effective["batch_size"]), form,
                record["started"][:16], rate(record), value(record, "peak_memory_reserved", ".1f", 2**-30, " GiB"),
                value(record, "cold_start", ".1f", 1.0, " s"),
            ]  # fmt: skip


def plain_largest(results: Path) -> dict[tuple[Any, ...], str]:
    """What the plain loop did with such batches: its stretches, or that it ran out of memory."""
    document = plain_of(results, "plain-largest")
    found = {(loop["workload"], loop["mode"], loop["batch_size"]): ", ".join(f"{one:,.1f}" for one in loop["rates"])
             for loop in document["loops"]}  # fmt: skip
    for loop in document["failed"]:
        error = "out-of-memory" if loop["error"].startswith("OutOfMemoryError") else "failed"
        found[loop["workload"], loop["mode"], loop["batch_size"]] = error
    return found


def largest_rows(results: Path) -> Iterable[list[str]]:
    plain = plain_largest(results)
    for record in load(results, "largest"):
        effective, failure = record["trial"]["effective"], record["failure"]
        asked = " ".join(f"{name}={given}" for name, given in record["trial"]["settings"].items())
        yield [trial(record), asked, str(effective["batch_size"]), failure["kind"] if failure else rate(record),
               plain.get(key(record), NONE), value(record, "peak_memory_reserved", ".1f", 2**-30, " GiB"),
               marks(record)]  # fmt: skip


TABLES: dict[str, tuple[list[str], Callable[[Path], Iterable[list[str]]]]] = {
    "workloads": (
        ["work", "batch", "precision", RATE, "runs", "MFU", "latency, median of a batch",
         "memory reserved", "work per watt-hour (GPU)", "checks that did not pass"], workload_rows),
    "quality": (
        ["seed", "batch", "target", "accuracy", "epoch", "time to quality", "energy to quality (GPU)", "rate",
         "checks that did not pass"], quality_rows),
    "inputs": (
        ["work", "loader", RATE, "waiting for data", "cores busy", "measured for at most",
         "checks that did not pass"], input_rows),
    "scenes": (
        ["work", "batch", RATE, "runs", "plain eager bf16 loop, images/s per segment",
         "ratio", "memory reserved", "checks that did not pass"], scene_rows),
    "forms": (
        ["work", "batch", "implementation", "date and time", RATE, "memory reserved", "cold start"], form_rows),
    "largest": (
        ["work", "requested settings", "batch", RATE, "plain eager bf16 loop, images/s per segment",
         "memory reserved", "checks that did not pass"], largest_rows),
    "auto": (
        ["work", "compile", "memory", "batch found", "smallest that did not fit", "batches tried",
         "memory reserved in the run", "time of the search"], auto_rows),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/h200"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/workloads.md"))
    options = parser.parse_args()
    for name, (head, rows) in TABLES.items():
        put_table(options.page, name, head, rows(options.results))


if __name__ == "__main__":
    main()

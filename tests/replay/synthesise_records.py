"""Writes tests/replay/records and tests/replay/learning: run folders that look real and are not measurements.

Every record says so itself (`synthetic`). Run it after a change of the record's shape:
    python tests/replay/synthesise_records.py
"""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

from synthesise_learning import DATA, RATES, RUNS, learned, until

from prony_node.contract.trial import settings_hash

FOLDER = Path(__file__).parent / "records"
LEARNING = Path(__file__).parent / "learning"  # apart: reports and lists of the others stay as they are
NOTE = "made by tests/replay/synthesise_records.py for tests; not a measurement"
GIB = 2**30

H200 = {
    "name": "NVIDIA H200",
    "kind": "cuda",
    "uuid": "GPU-00000000-0000-0000-0000-00000000h200",
    "memory_bytes": 150_754_820_096,
    "multiprocessors": 132,
    "driver": "570.86.15",
    "power_limit_w": 700.0,
    "clocks": {"max_sm_mhz": 1980, "current_sm_mhz": 1965},
    "temperature_c": 41,
    "ecc": True,
}
HOST = {
    "hostname": "node017",
    "os": "Ubuntu 24.04.1 LTS",
    "kernel": "6.8.0-48-generic",
    "architecture": "x86_64",
    "product": "Supermicro SYS-821GE",
    "cpu": {
        "model": "INTEL(R) XEON(R) PLATINUM 8568Y+",
        "sockets": 2,
        "cores": 96,
        "threads": 192,
        "allowed": {"cpus": "0-15", "count": 16},
    },
    "memory": {"total_bytes": 2 * 1024 * GIB, "available_bytes": 1900 * GIB},
    "load_average": [1.2, 0.9, 0.7],
}
CPU_HOST = {
    "hostname": "bench-2",
    "os": "Debian GNU/Linux 12",
    "kernel": "6.1.0-26-arm64",
    "architecture": "aarch64",
    "product": None,
    "cpu": {
        "model": "Arm Neoverse N1",
        "sockets": 1,
        "cores": 2,
        "threads": 2,
        "allowed": {"cpus": "0-1", "count": 2},
    },
    "memory": {"total_bytes": 8 * GIB, "available_bytes": 5 * GIB},
    "load_average": [0.4, 0.3, 0.2],
}
SOFTWARE = {
    "python": "3.12.3",
    "torch": "2.10.0+cu128",
    "cuda": "12.8",
    "cudnn": "91002",
    "prony": "0.1.0",
    "packages": {"torchvision": "0.25.0", "numpy": "2.1.3"},
}
CPU_SOFTWARE = {
    "python": "3.11.2",
    "torch": "2.10.0",
    "prony": "0.1.0",
    "packages": {"torchvision": "0.25.0"},
}
TRAIN = {
    "preset": "fast",
    "mode": "train",
    "data": "device",
    "batch_size": 512,
    "precision": "bf16",
    "compile": "default",
    "compile_cache": "warm",
    "graphs": True,
    "memory_format": "channels_last",
    "optimizer": "sgd",
    "fused": True,
    "grad_accumulation": 1,
    "recompute": False,
    "cores": "16",
    "seed": 0,
    "device": "cuda",
}
CPU_TRAIN = TRAIN | {"compile": "off", "graphs": False, "cores": "2", "device": "cpu", "precision": "fp32"}
del CPU_TRAIN["compile_cache"]  # has no meaning without a compiler
PASSES = {
    "steady": "no drift and no jump in the window",
    "levels": "one level of step time",
    "blocks": "enough independent blocks",
    "tolerance": "the interval is within 1 %",
    "throttled": "no throttle reason was set",
    "clocks": "clocks held within 1 %",
    "loss": "loss fell from 6.91 to 6.42 on held-out data",
    "parameters": "every parameter moved",
    "finite": "no NaN or infinity",
}


def metric(value: float, unit: str, source: str, half: float | None = None, **more: Any) -> dict[str, Any]:
    low, high = (None, None) if half is None else (value / (1 + half), value * (1 + half))
    return {
        "value": value,
        "low": low,
        "high": high,
        "unit": unit,
        "scope": "all devices",
        "source": source,
        **more,
    }


def series(rng: random.Random, step_s: float, blocks: int, a_block: int, cut_blocks: int) -> list[list[Any]]:
    """Blocks with a transient that dies away, a little noise and a stall now and then."""
    rows, end_s = [], 0.0
    for block in range(blocks):
        slow = 0.35 * math.exp(-3.0 * block / cut_blocks) if block < cut_blocks else 0.0
        stall = 0.06 if block > cut_blocks and rng.random() < 0.01 else 0.0
        duration_s = step_s * a_block * (1 + slow + stall + rng.gauss(0, 0.004))
        end_s += duration_s
        rows.append([block, a_block, round(end_s, 6), round(duration_s, 6), 0.0])
    return rows


def record(
    run_id: str, workload: str, effective: dict[str, Any], requested: dict[str, Any], **given: Any
) -> dict[str, Any]:
    on_cpu = effective.get("device") == "cpu"
    checks = given.get("checks", {})
    messages = {name: ("pass", text) for name, text in PASSES.items()} | checks
    return {
        "schema": "prony.record/1",
        "synthetic": NOTE,
        "id": run_id,
        "trial": {
            "hash": settings_hash(workload, requested),
            "workload": workload,
            "settings": requested,
            "effective": effective,
            "effective_hash": settings_hash(workload, effective),
        },
        "repeat": given.get("repeat", 0),
        "status": given.get("status", "ok"),
        "failure": given.get("failure"),
        "started": given["started"],
        "ended": given["started"].replace("00Z", "41Z"),
        "stop": {
            "tolerance": 0.01,
            "min_time_s": 5.0,
            "max_time_s": 120.0,
            "reason": "the interval is within 1 %",
        },
        "unit": given.get("unit", "images"),
        "metrics": given.get("metrics", {}),
        "phases": given.get("phases", {}),
        "steady": given.get("steady"),
        "checks": [{"name": name, "level": level, "message": text} for name, (level, text) in messages.items()],
        "work": given.get("work", {}),
        **{name: given[name] for name in ("learning", "data") if name in given},
        "fingerprint": {"machine": "c0ffee00" if on_cpu else "5eed0017", "software": "a11ce000"},
        "facts": {
            "host": CPU_HOST if on_cpu else HOST,
            "devices": [{"name": "Arm Neoverse N1", "kind": "cpu"}] if on_cpu else [H200],
            "software": CPU_SOFTWARE if on_cpu else SOFTWARE,
            "container": {} if on_cpu else {"runtime": "apptainer", "image": "pytorch-25.10.sif"},
            "environment": {"OMP_NUM_THREADS": "2"} if on_cpu else {},
            "source": {"commit": None},
        },
    }


def measured(
    run_id: str,
    workload: str,
    effective: dict[str, Any],
    requested: dict[str, Any],
    *,
    rate: float,
    samples: int,
    half: float,
    started: str,
    peak: float | None,
    **given: Any,
) -> None:
    """One good run: its record and its series."""
    rng = random.Random(run_id)
    unit = given.get("unit", "images")
    step_s = samples / rate
    a_block = max(1, round(0.05 / step_s))
    blocks, cut = 160, 12
    rows = series(rng, step_s, blocks, a_block, cut)
    window_s = rows[-1][2] - rows[cut - 1][2]
    steps = (blocks - cut) * a_block
    on_cpu = effective["device"] == "cpu"
    events = "counted samples over the host's clock" if on_cpu else "counted samples over device events"
    reason = {"value": None, "reason": "no peak is known for this device"}
    metrics = {
        "throughput": metric(rate, f"{unit}/s", events, half, interval="95 %, within one run"),
        "throughput_per_device": metric(rate, f"{unit}/s", events, half, interval="95 %, within one run"),
        "step_time": metric(step_s, "s", "device events", half, interval="95 %, within one run"),
        "cold_start": metric(given.get("cold_s", 18.4), "s", "monotonic clock"),
        "data_wait_share": metric(0.0, "1", "time the host waited for a batch"),
        "flops_per_sample": metric(given["flops"], "FLOP", "counted on the model; multiply-add is two"),
        "mfu": metric(given["flops"] * rate / peak, "1", "counted FLOP over the vendor's dense peak", half)
        if peak
        else reason,
        "peak_memory": metric(given["memory_gib"] * GIB, "B", "torch's allocator")
        if not on_cpu
        else {"value": None, "reason": "device=cpu has no memory of its own"},
        "peak_memory_host": metric(3.1 * GIB, "B", "resident set of the rank"),
        "cpu_utilisation": metric(0.07 if not on_cpu else 0.98, "1", "CPU time over steady time x cores"),
    }
    if effective["mode"] == "infer":
        for name, factor in (("latency_p50", 1.02), ("latency_p90", 1.06), ("latency_p99", 1.19)):
            metrics[name] = metric(step_s * factor, "s", "batches run alone")
    phases = {
        "build": {"seconds": 2.31, "steps": 0},
        "cold_start": {
            "seconds": given.get("cold_s", 18.4),
            "steps": 3,
            "compile_cache": {"state": "warm", "hits": 41, "misses": 0},
        },
        "warm_up": {"seconds": rows[cut - 1][2], "steps": cut * a_block},
        "steady": {"seconds": window_s, "steps": steps},
        "teardown": {"seconds": 0.42, "steps": 0},
    }
    steady = {
        "step_time_s": step_s,
        "step_time_low_s": step_s / (1 + half),
        "step_time_high_s": step_s * (1 + half),
        "relative_half_width": half,
        "confidence": 0.95,
        "steps": steps,
        "blocks": blocks - cut,
        "independent_blocks": 96.0,
        "window_s": window_s,
        "cut_steps": cut * a_block,
        "cut_s": rows[cut - 1][2],
        "drift": 0.0004,
        "drift_half_width": 0.002,
        "drifting": "no",
        "levels": 1,
        "level_values_s": [step_s],
        "autocorrelation": 0.08,
        "outlier_share": 0.01,
    }
    work = {
        "samples": steps * effective["batch_size"],
        "units": steps * samples,
        "steps": steps,
        "devices": 1,
        "window": "steady",
        "total_samples": (blocks * a_block + 3) * effective["batch_size"],
        "total_steps": blocks * a_block + 3,
    }
    more = given.get("learned") or {}
    save(
        record(
            run_id,
            workload,
            effective,
            requested,
            started=started,
            metrics=metrics | more.get("metrics", {}),
            phases=phases | more.get("phases", {}),
            steady=steady,
            work=work,
            unit=unit,
            checks=given.get("checks", {}) | more.get("checks", {}),
            repeat=given.get("repeat", 0),
            **{name: more[name] for name in ("learning", "data") if name in more},
        ),
        None if more else rows,
        LEARNING if more else FOLDER,
    )


def save(document: dict[str, Any], rows: list[list[Any]] | None = None, root: Path = FOLDER) -> None:
    folder = root / document["id"]
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if rows is not None:
        with (folder / "steps.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
            writer.writerows(rows)


def learn() -> None:
    """Runs of a data set; their step series would add nothing and is left out."""
    for minute, (end, wish) in enumerate(RUNS.items()):
        asked = {"data": DATA["source"], "batch_size": wish.batch, "epochs": wish.epochs, "seed": wish.seed}
        requested = asked | ({"until": until(wish)} if until(wish) else {})
        measured(
            f"wideresnet-20260310T11{minute:02}00-{end}",
            "wideresnet",
            TRAIN | requested | {"image_size": 32},
            requested,
            rate=RATES[wish.batch] * (1 + 0.001 * wish.seed),
            samples=wish.batch,
            half=0.0041,
            started=f"2026-03-10T11:{minute:02}:00Z",
            peak=989.5e12,
            flops=6.3e9,
            memory_gib=0.9 + wish.batch * 0.014,
            learned=learned(wish, RATES[wish.batch]),
        )


def main() -> None:
    for folder in (FOLDER, LEARNING):
        shutil.rmtree(folder, ignore_errors=True)
    learn()
    # A sweep of batch size and precision, whose last trial does not fit.
    sweep = {
        ("bf16", 32): 12_650.0,
        ("bf16", 256): 21_900.0,
        ("bf16", 1024): 23_800.0,
        ("fp32", 32): 5_210.0,
        ("fp32", 256): 6_930.0,
        ("fp32", 1024): 7_140.0,
    }
    for minute, ((precision, batch), rate) in enumerate(sweep.items()):
        slow = {"clocks": ("warn", "the SM clock fell by 3 % during the window")} if batch == 1024 else {}
        measured(
            f"wideresnet-20260301T10{minute:02}00-{0xA00000 + batch * 16 + minute:06x}",
            "wideresnet",
            TRAIN | {"batch_size": batch, "precision": precision, "image_size": 32},
            {"batch_size": batch, "precision": precision},
            rate=rate,
            samples=batch,
            half=0.004 + 0.0012 * minute,
            started=f"2026-03-01T10:{minute:02}:00Z",
            peak=989.5e12 if precision == "bf16" else 67e12,
            flops=6.3e9,
            memory_gib=0.9 + batch * 0.014,
            checks=slow,
        )
    wide = {"batch_size": 65536, "precision": "fp32"}
    save(
        record(
            "wideresnet-20260301T100700-b00f07",
            "wideresnet",
            TRAIN | wide | {"image_size": 32},
            wide,
            started="2026-03-01T10:07:00Z",
            status="failed",
            failure={
                "kind": "out-of-memory",
                "message": "the first step asked for 64.00 GiB; 22.71 GiB of 140.40 GiB were free",
            },
            phases={"build": {"seconds": 2.4, "steps": 0}},
            metrics={"throughput": {"value": None, "reason": "the run failed before its first step ended"}},
            checks={name: ("unknown", "the run failed before this could be seen") for name in PASSES},
        )
    )
    # Three repeats of one trial, and inference.
    for repeat, rate in enumerate((6_843.0, 6_871.0, 6_858.0)):
        measured(
            f"resnet50-20260302T09{repeat:02}00-c0000{repeat}",
            "resnet50",
            TRAIN | {"image_size": 224},
            {},
            rate=rate,
            samples=512,
            half=0.0031,
            started=f"2026-03-02T09:{repeat:02}:00Z",
            peak=989.5e12,
            flops=2.45e10,
            memory_gib=44.2,
            repeat=repeat,
        )
    infer = {
        name: value
        for name, value in TRAIN.items()
        if name not in ("optimizer", "fused", "grad_accumulation", "recompute")
    }
    measured(
        "resnet50-20260302T100000-d00001",
        "resnet50",
        infer | {"mode": "infer", "image_size": 224},
        {"mode": "infer"},
        rate=22_730.0,
        samples=512,
        half=0.0027,
        started="2026-03-02T10:00:00Z",
        peak=989.5e12,
        flops=8.18e9,
        memory_gib=3.4,
    )
    # A CPU without peak or device memory, counted in tokens; and one that a person ended.
    tiny = CPU_TRAIN | {"batch_size": 8, "memory_format": "contiguous", "optimizer": "adamw", "sequence": 128}
    measured(
        "gpt-tiny-20260303T080000-e00001",
        "gpt-tiny",
        tiny,
        {},
        rate=8_412.0,
        samples=1024,
        half=0.0092,
        started="2026-03-03T08:00:00Z",
        peak=None,
        flops=5.1e6,
        memory_gib=0.0,
        unit="tokens",
        cold_s=0.6,
        checks={
            "throttled": ("unknown", "this CPU does not say whether it was throttled"),
            "clocks": ("unknown", "the kernel offers no clocks here"),
        },
    )
    save(
        record(
            "gpt-tiny-20260303T081000-e00002",
            "gpt-tiny",
            tiny,
            {},
            started="2026-03-03T08:10:00Z",
            status="interrupted",
            unit="tokens",
            failure={"kind": "interrupted", "message": "ended from the keyboard during build"},
            checks={name: ("unknown", "the run ended before this could be seen") for name in PASSES},
        )
    )
    for folder in (FOLDER, LEARNING):
        (folder / "README.md").write_text(
            "These run folders are synthetic: " + NOTE + ".\nThe numbers in them describe no machine.\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()

"""What the store does with many runs: folders indexed a second, and a query of a million rows.

    python benchmarks/store.py --keep results/store.json --machine "2 shared cores of a Xeon"

Folders are made in a temporary place from a record under results/ (18 kB each, as a run with energy has), rows from
the same record with other ids, settings and rates. Queries are asked in a process of their own, whose peak memory is
taken; the first answer of each is kept beside the median, since it may have to come from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from prony.store import Store
from prony.store.rows import IndexRow, row_of_record
from prony_node.contract.record import parse_record

ROOT = Path(__file__).parents[1]
ARCHIVE, TEMPLATE = ROOT / "results/h200/unverified.tar.gz", "gpt-800m-20261115T053342-e6f1e3"
WORKLOADS = ("resnet50", "gpt-800m", "wideresnet", "vit-l", "bert-large-squad", "swin-b", "resnet152", "segformer-b4")
DEVICES = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA GH200 480GB", "AMD Instinct MI250X")
PRECISIONS = ("bf16", "fp16", "fp32", "bf16-pure", "fp8")
QUERIES = {
    "filtered and sorted": ("precision=bf16 devices>1 device~H200", "throughput", []),
    "one workload, by energy": ("workload=resnet50 status=ok batch_size>=256", "energy_per_sample", []),
    "newest": ("", None, []),
    "nothing matches": ("device~none-such", "throughput", []),
    "few match": ("workload=vit-l precision=fp8 devices=8 batch_size=4096 mfu>0.599", "mfu", []),
    "a setting kept as JSON": (
        "optimizer=adamw precision=bf16 devices=8 workload=gpt-800m",
        "throughput",
        ["id", "seed"],
    ),
}
ASK = """
import json, resource, sys, time
from pathlib import Path
from prony.store import Store
from prony.store.query import StoreQuery, ask_records
root, repeats, queries = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
store, out = Store(root), {}
for name, (where, sort, columns) in queries.items():
    seconds, cpu = [], time.process_time()
    for _ in range(repeats):
        start = time.perf_counter()
        rows = ask_records(store, StoreQuery(where, sort, columns=tuple(columns), limit=50)).rows
        seconds.append(time.perf_counter() - start)
    out[name] = {"seconds": seconds, "rows": len(rows), "cpu": (time.process_time() - cpu) / repeats}
print(json.dumps({"queries": out, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folders", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--machine", default="not stated", help="the machine in words, for the figures that are kept")
    parser.add_argument("--keep", type=Path, help="a JSON file for the figures")
    parser.add_argument("--place", type=Path, help="where to make folders and rows; else the temporary place")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prony-store-", dir=options.place) as place:
        figures = {
            "machine": options.machine,
            "folders": index_folders(Path(place) / "folders", options.folders),
            "rows": ask_rows(Path(place) / "rows", options.rows, options.repeats),
        }
    print(json.dumps(figures, indent=1))
    if options.keep:
        options.keep.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def index_folders(root: Path, count: int) -> dict[str, Any]:
    """Run folders indexed a second: the first index, and a look when all are in."""
    record = template()
    for number in range(count):
        folder = root / f"{record['trial']['workload']}-{number:06}"
        folder.mkdir(parents=True)
        record["id"] = folder.name
        (folder / "record.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    start, before = time.perf_counter(), _cpu_seconds()
    store = Store(root)
    done = store.refresh()
    seconds, cpu = time.perf_counter() - start, _cpu_seconds() - before
    assert len(done.ingested) == count, done.skipped[:3]
    start = time.perf_counter()
    assert store.refresh().ingested == []
    again = time.perf_counter() - start
    store.close()
    shutil.rmtree(root)
    kept = {"count": count, "record_bytes": len(json.dumps(record, indent=1)), "seconds": round(seconds, 2)}
    kept |= {"per_second": round(count / seconds), "cpu_seconds": round(cpu, 2), "load": os.getloadavg()[0]}
    return kept | {"seconds_when_all_are_in": round(again, 3)}


def _cpu_seconds() -> float:
    """Of this process and of those that it has started and ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def ask_rows(root: Path, count: int, repeats: int) -> dict[str, Any]:
    """A table of many rows, made in the way that ingesting makes them, and asked."""
    root.mkdir(parents=True)
    store = Store(root)
    store.rebuild()
    start = time.perf_counter()
    for part in _parts(_rows(count), 10_000):
        store.ask(lambda connection, part=part: store.put(connection, part))  # type: ignore[misc]
    made = time.perf_counter() - start
    argv = [sys.executable, "-c", ASK, str(root), str(repeats), json.dumps(QUERIES)]
    answer = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    queries = {}
    for name, asked in answer["queries"].items():
        seconds = asked["seconds"]
        shown = {"filter": QUERIES[name][0], "sort": QUERIES[name][1], "rows": asked["rows"]}
        shown |= {"first_s": round(seconds[0], 3), "median_s": round(statistics.median(seconds), 3)}
        queries[name] = shown | {"mean_cpu_s": round(asked["cpu"], 3)}
    size = sum(path.stat().st_size for path in root.glob("index.sqlite*"))
    kept = {"count": count, "made_per_second": round(count / made), "file_bytes": size, "queries": queries}
    return kept | {"peak_bytes": answer["peak_bytes"], "load": os.getloadavg()[0]}


def template() -> dict[str, Any]:
    """A record of a run with energy, from the archive of older runs."""
    with tarfile.open(ARCHIVE) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.endswith(f"{TEMPLATE}/record.json") else None
            if content is not None:
                return dict(json.load(content))
    raise LookupError(f"{ARCHIVE} has no run {TEMPLATE}")


def _rows(count: int) -> Iterator[IndexRow]:
    """Rows of a few hundred trials, each with its own id, time and rate."""
    draw = random.Random(0)
    record = template()
    patterns = []
    for number in range(400):
        one = deepcopy(record)
        one["trial"]["workload"] = WORKLOADS[number % len(WORKLOADS)]
        one["trial"]["hash"] = f"{number:016x}"
        devices = 2 ** draw.randrange(4)
        one["work"]["devices"] = devices
        one["trial"]["effective"] |= {"precision": draw.choice(PRECISIONS), "batch_size": 2 ** draw.randrange(4, 13)}
        one["facts"]["devices"][0]["name"] = draw.choice(DEVICES)
        patterns.append(row_of_record("", parse_record(one)))
    for number in range(count):
        pattern = draw.choice(patterns)
        name = f"{pattern.run['workload']}-{number:07}"
        rate, mfu = draw.uniform(100, 100_000), draw.uniform(0.05, 0.6)
        started = f"2026-{1 + number % 12:02}-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:00+00:00"
        varied = {
            "folder": name,
            "id": name,
            "rate": rate,
            "mfu": mfu,
            "energy_per_sample": 1 / rate,
            "started": started,
        }
        yield IndexRow(pattern.run | varied, pattern.detail | {"folder": name})


def _parts(rows: Iterator[IndexRow], size: int) -> Iterator[list[IndexRow]]:
    part: list[IndexRow] = []
    for row in rows:
        part.append(row)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


if __name__ == "__main__":
    main()

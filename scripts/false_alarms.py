"""Write into docs/measuring.md how many of the kept headline runs warn, job by job, from results/records.jsonl.

python scripts/false_alarms.py [--records results/records.jsonl] [--page docs/measuring.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from headline_table import counted
from page_tables import put_table
from results_records import LINES, Line, read_lines

MARK = "false-alarms"
PREFIX, SUFFIX = "headline-", ".tar.gz"
HEAD = ["job", "runs", "runs with a doubt", "doubts", "runs that ended at their time limit"]


def headline_jobs(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """The good runs of each headline job."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        if line.archive.startswith(PREFIX) and line.status == "ok":
            found.setdefault(line.archive.removesuffix(SUFFIX), []).append(line)
    return found


def cells(job: str, runs: list[Line]) -> list[str]:
    doubts = counted(run.doubts for run in runs)
    return [job, str(len(runs)), str(sum(bool(run.doubts) for run in runs)), doubts.partition(": ")[2] or "-",
            str(sum(run.at_limit for run in runs))]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path("results") / LINES)
    parser.add_argument("--page", type=Path, default=Path("docs/measuring.md"))
    options = parser.parse_args(arguments)
    jobs = headline_jobs(read_lines(options.records))
    rows = [cells(job, runs) for job, runs in jobs.items()]
    rows.append(cells("all", [run for runs in jobs.values() for run in runs]))
    put_table(options.page, MARK, HEAD, rows)


if __name__ == "__main__":
    main()

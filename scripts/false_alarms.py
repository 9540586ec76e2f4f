"""Write into docs/results/false-alarms.md how many of the kept headline runs warn, by job, from results/records.jsonl.

    python scripts/false_alarms.py [--records results/records.jsonl] [--page docs/results/false-alarms.md] [--again]

With --again also by today's checks of the series and of energy, from the archives beside the records: of the window
that was measured, and of the one at which the default stop rule would have ended. That takes half a minute.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headline_table import counted
from page_tables import put_table
from results_records import LINES, Line, read_lines

from prony.store.archive import unpacked
from prony_node.contract import files
from prony_node.contract.record import Check
from prony_node.contract.safe_files import plain_lines
from prony_node.measure.checks import series_checks
from prony_node.power.figures import part_checks, part_energies
from prony_node.power.recording import read_recording
from prony_node.stats import StopRule, Tracker, estimate_of

MARK, AGAIN_MARK = "false-alarms", "false-alarms-again"
PREFIX, SUFFIX = "headline-", ".tar.gz"
HEAD = ["job", "runs", "runs with a doubt", "doubts", "runs that ended at their time limit"]
AGAIN_HEAD = ["job", "runs", "with a doubt by today's checks", "that the default rule would have ended",
              "of these with a doubt"]  # fmt: skip


@dataclass(frozen=True)
class Again:
    """What today's checks say about a run: names of those that warn or fail.

    default: of the window at which the default stop rule ends. None where the series is over before that.
    """

    run: str
    today: tuple[str, ...]
    default: tuple[str, ...] | None


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


def judge_again(folder: Path) -> Again:
    """A kept run, judged from its step series and its samples of power; other checks as its record has them."""
    record, result = (files.read_json(folder / name) for name in (files.RECORD, files.RESULT))
    rows = [(float(row["duration_s"]), int(row["steps"])) for row in csv.DictReader(plain_lines(folder / files.STEPS))]
    period, stop = int(result.get("series_period") or 0), record["stop"]
    rule = StopRule(**{name: stop[name] for name in ("tolerance", "min_time_s", "max_time_s")})
    estimate = estimate_of(
        [time_s for time_s, _ in rows], [steps for _, steps in rows], confidence=rule.confidence,
        drift_limit=rule.drift_limit, period=period, blocks_seen=record["steady"]["blocks_seen"],
    )  # fmt: skip
    made = series_checks(estimate, rule, fixed=False) + energy_checks(folder, *result["window_monotonic"])
    made += [Check(**one) for one in record["checks"] if one["name"] not in {again.name for again in made}]
    tracker, end_s = Tracker(StopRule()), float(result["loop_monotonic"][0])
    tracker.period = period
    for time_s, steps in rows:
        tracker.add(time_s, steps)
        end_s += time_s
        if tracker.due() and (decided := tracker.decide()).stop and decided.estimate:
            ended = series_checks(decided.estimate, StopRule(), fixed=False)
            ended += energy_checks(folder, end_s - decided.estimate.window_s, end_s)
            return Again(record["id"], doubts(made), doubts(ended))
    return Again(record["id"], doubts(made), None)


def energy_checks(folder: Path, start_s: float, end_s: float) -> list[Check]:
    recording = read_recording(folder)
    if recording is None:
        return []
    limits_w = recording.about.get("limits_w") or {}
    parts = [part for part in part_energies(recording, start_s, end_s) if part.scope == "gpu"]
    parts = [part for part in parts if part.figure is not None]
    return [check for part in parts for check in part_checks(part, limits_w.get(part.part))]


def doubts(checks: Iterable[Check]) -> tuple[str, ...]:
    return tuple(check.name for check in checks if check.level in ("warn", "fail"))


def judge_archive(archive: Path) -> Iterator[Again]:
    with (
        tempfile.TemporaryDirectory(prefix="prony-again-") as place,
        archive.open("rb") as file,
        unpacked(file, Path(place), str(archive)) as found,
    ):
        yield from (judge_again(folder) for folder in sorted(found.folders))


def again_cells(job: str, runs: list[Again]) -> list[str]:
    ended = [run.default for run in runs if run.default is not None]
    return [job, str(len(runs)), with_names(run.today for run in runs), str(len(ended)), with_names(ended)]


def with_names(named: Iterable[tuple[str, ...]]) -> str:
    """How many runs have a doubt, and which doubts."""
    listed = list(named)
    names = counted(listed).partition(": ")[2]
    return f"{sum(map(bool, listed))}" + (f": {names}" if names else "")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path("results") / LINES)
    parser.add_argument("--page", type=Path, default=Path("docs/results/false-alarms.md"))
    parser.add_argument("--again", action="store_true", help="also by today's checks")
    options = parser.parse_args(arguments)
    jobs = headline_jobs(read_lines(options.records))
    rows = [cells(job, runs) for job, runs in jobs.items()]
    rows.append(cells("all", [run for runs in jobs.values() for run in runs]))
    put_table(options.page, MARK, HEAD, rows)
    if not options.again:
        return
    archives = sorted(options.records.parent.glob(f"*/{PREFIX}*{SUFFIX}"))
    judged = {path.name.removesuffix(SUFFIX): list(judge_archive(path)) for path in archives}
    again = [again_cells(job, runs) for job, runs in judged.items()]
    again.append(again_cells("all", [run for runs in judged.values() for run in runs]))
    put_table(options.page, AGAIN_MARK, AGAIN_HEAD, again)


if __name__ == "__main__":
    main()

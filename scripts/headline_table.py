"""Write the table of headline results into docs/results/headline.md, from records that obey the rules.

README.md gets a narrower one: the work, the rate, the energy, the peers and the date.

    python scripts/headline_table.py [ARCHIVE|FOLDER ...] [--readme README.md] [--page docs/results/headline.md]

Without arguments it reads every results/*/headline-*.tar.gz. A job is one archive, or one folder of run folders. Its
peers stand beside it, in a file whose name ends in .peers.jsonl instead of .tar.gz (of a folder: peers.jsonl in it).

A row is one trial of one job, the newest job that has it. It is shown when

- the job has three runs of it or more, each in fresh processes, and none that failed;
- all of them are of one machine, one device and one version of the software;
- each has a steady window of 20 s or more, after 5 s or more of steps that warm the device;
- no check failed; checks that warn, or could not be made, are counted in the row. So are runs that ended at their time
  limit, which is no doubt by itself;
- each has its energy and its step series, and `prony verify` agrees with its record.

Where a rule is broken the row is refused with a sentence, on stderr and below the table of PAGE.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from page_tables import put_lines, table_lines
from results_records import Line, line_of, read_runs

from prony.analysis.variation import NORMAL, own_variation
from prony.study.request import parse_trial
from prony_node.contract.errors import RequestError
from prony_node.contract.trial import Trial
from prony_node.stats.intervals import between_run

MARK = "headline"
LEAST_RUNS = 3
LEAST_WINDOW_S = 20.0
LEAST_WARM_S = 5.0
NONE_YET = "No job has been measured under these rules yet."
LEAST_PEER_S = 5.0  # a rate of less is of a device that is not warm
HEAD = ["work", "batch", "rate (mean, 95 % CI between runs)", "energy per sample (GPU)", "runs, shortest window",
        "ended at time limit", "doubts", "not checked", "peers in the same job", "job, date"]  # fmt: skip
README_HEAD = ["work", "batch", "rate (mean, 95 % CI)", "energy per sample (GPU)", "peer in the same job", "date"]
PEER_HEAD = ["work", "peer", "version", "its settings", "rate (mean, 95 % CI between runs)", "runs, shortest window",
             "Prony beside it"]  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """What someone else's program did with the work of a row: one line of a job's peers.

    name: the program, such as "timm benchmark.py, compiled". version: of it, or its commit.
    workload: the trial of Prony with the same work, in the words of `prony run`.
    settings: the options of the program. seconds: how long it measured. device: the device's UUID, where known.
    """

    name: str
    version: str
    workload: str
    settings: str
    rate: float
    unit: str
    seconds: float
    date: str
    device: str | None = None

    @property
    def trial(self) -> Trial:
        target, *words = self.workload.split()
        return parse_trial(target, words)


@dataclass(frozen=True)
class Job:
    """The runs of one job, and the peers that ran in it."""

    name: str
    runs: tuple[Line, ...]
    peers: tuple[Peer, ...]


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    trial: Trial
    job: Job
    runs: tuple[Line, ...]
    peers: tuple[Peer, ...]

    @property
    def work(self) -> str:
        first = self.runs[0]
        phase = f", {self.trial.settings['phase']}" if "phase" in self.trial.settings else ""
        return f"{first.workload}, {first.mode}{phase}, {first.precision}"

    @property
    def mean(self) -> float:
        return between_run([run.rate or 0.0 for run in self.runs]).mean

    @property
    def date(self) -> str:
        return min(run.date for run in self.runs)


def read_job(source: Path) -> Job:
    runs = tuple(sorted((line_of(run) for run in read_runs(source)), key=lambda line: line.date))
    beside = source / "peers.jsonl" if source.is_dir() else Path(str(source).removesuffix(".tar.gz") + ".peers.jsonl")
    return Job(source.name.removesuffix(".tar.gz"), runs, tuple(read_peers(beside)) if beside.exists() else ())


def read_peers(path: Path) -> Iterable[Peer]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            peer = Peer(**json.loads(line))
            if not (peer.rate > 0 and peer.seconds > 0):
                raise ValueError("rate and seconds must be positive")
            peer.trial  # noqa: B018 - its words must name a trial
            yield peer
        except (TypeError, ValueError, RequestError) as error:
            raise RequestError(f"{path}:{number}: this line is no peer: {error}") from error


def trials_of(job: Job) -> dict[str, list[Line]]:
    """The runs of a job by their trial, without those that a person or a time limit ended."""
    found: dict[str, list[Line]] = {}
    for run in job.runs:
        if run.status != "interrupted":
            found.setdefault(Trial(run.workload, run.settings).hash, []).append(run)
    return found


def make_row(job: Job, runs: list[Line]) -> Row:
    """The row of a trial; a RequestError says which rule it breaks."""
    trial = Trial(runs[0].workload, runs[0].settings)
    for run in runs:
        refuse_run(run)
    if len(runs) < LEAST_RUNS:
        raise RequestError(f"it has {len(runs)} of the {LEAST_RUNS} runs that a row needs")
    for what, values in (
        ("machines", {run.machine for run in runs}),
        ("devices", {run.device_id for run in runs}),
        ("versions of the software", {run.software for run in runs}),
    ):
        if len(values) > 1:
            raise RequestError(f"its runs are of {len(values)} {what}; a row needs one")
    peers = tuple(peer for peer in job.peers if peer.trial.hash == trial.hash)
    for peer in peers:
        if peer.unit != runs[0].unit:
            raise RequestError(f"{peer.name} is given in {peer.unit}, and the row in {runs[0].unit}")
        if peer.device not in (None, runs[0].device_id):
            raise RequestError(f"{peer.name} ran on another device, {peer.device}")
    return Row(trial, job, tuple(runs), peers)


def refuse_run(run: Line) -> None:
    if run.status != "ok" or run.rate is None:
        raise RequestError(f"run {run.id} failed")
    if run.failed_checks:
        raise RequestError(f"run {run.id} failed its check {', '.join(run.failed_checks)}")
    if run.window_s is None or run.window_s < LEAST_WINDOW_S:
        raise RequestError(f"run {run.id} has a steady window of {run.window_s or 0:.1f} s; a row needs "
                           f"{LEAST_WINDOW_S:.0f} s")  # fmt: skip
    if run.warm_up_s is None or run.warm_up_s < LEAST_WARM_S:
        raise RequestError(f"run {run.id} was measured after {run.warm_up_s or 0:.1f} s of steps; a warm device needs "
                           f"{LEAST_WARM_S:.0f} s")  # fmt: skip
    if run.energy_per_sample_j is None:
        raise RequestError(f"run {run.id} has no energy")
    if not run.step_series:
        raise RequestError(f"run {run.id} has no step series")
    if not run.verified:
        raise RequestError(f"run {run.id} does not verify; `prony verify` says why")


def make_rows(jobs: Iterable[Job]) -> tuple[list[Row], list[str]]:
    """One row per trial, of the newest job that has one; and a sentence for each row or peer that is not shown."""
    rows: dict[str, Row] = {}
    refused: list[str] = []
    for job in jobs:
        trials = trials_of(job)
        for key, runs in trials.items():
            try:
                row = make_row(job, runs)
            except RequestError as error:
                refused.append(f"{Trial(runs[0].workload, runs[0].settings)} of {job.name} is not shown: {error}.")
                continue
            if key not in rows or rows[key].date < row.date:
                rows[key] = row
        refused += [f"{peer.name} of {job.name} is not shown: the job has no run of {peer.workload}."
                    for peer in job.peers if peer.trial.hash not in trials]  # fmt: skip
    return list(rows.values()), refused


def cells(row: Row) -> list[str]:
    first, found = row.runs[0], between_run([run.rate or 0.0 for run in row.runs])
    unit = str(first.unit)
    half = f" ± {100 * half_width(row):.2g} %"
    energy = statistics.fmean(run.energy_per_sample_j or 0.0 for run in row.runs)
    return [
        row.work, str(first.batch_size), f"**{found.mean:,.0f} {unit}**{half}",
        f"{joules(energy)}/{unit.removesuffix('s/s')}",
        f"{len(row.runs)}, {min(run.window_s or 0.0 for run in row.runs):.0f} s",
        f"{sum(run.at_limit for run in row.runs)} of {len(row.runs)}",
        counted(run.doubts for run in row.runs), counted(run.unknown for run in row.runs),
        "; ".join(f"{one[0].name}: {peer_rate(one)}{too_short(one)}" for one in programs(row)) or "-",
        f"{row.job.name}, {row.date[:10]}",
    ]  # fmt: skip


def readme_cells(row: Row) -> list[str]:
    work, batch, rate, energy, *_, peers, _ = cells(row)
    return [work, batch, rate, energy, peers, row.date[:10]]


def half_width(row: Row) -> float:
    """Relative half width of the CI between runs, as `prony compare` has it.

    Three runs that happen to agree do not say more than each of them does by itself.
    """
    squares = [((run.rate_high - run.rate_low) / 2 / NORMAL / run.rate) ** 2 for run in row.runs
               if run.rate and run.rate_low is not None and run.rate_high is not None]  # fmt: skip
    found = own_variation([run.rate or 0.0 for run in row.runs], math.sqrt(statistics.fmean(squares or [0.0])))
    return found.half_width(len(row.runs))


def joules(value: float) -> str:
    shown, unit = (value, "J") if value >= 0.1 else (1e3 * value, "mJ")
    return f"{shown:#.3g}".removesuffix(".") + f" {unit}"  # three digits, trailing zeros too


def counted(named: Iterable[tuple[str, ...]]) -> str:
    """How many checks, and which, with the number of runs that have each."""
    count = Counter(name for names in named for name in names)
    return f"{count.total()}: " + ", ".join(f"{name} ({runs})" for name, runs in count.items()) if count else "0"


def programs(row: Row) -> list[list[Peer]]:
    """The runs of each program with the same version and settings."""
    found: dict[tuple[str, str, str], list[Peer]] = {}
    for peer in row.peers:
        found.setdefault((peer.name, peer.version, peer.settings), []).append(peer)
    return list(found.values())


def peer_rate(runs: list[Peer]) -> str:
    """The mean rate with its CI between runs; one run has none."""
    found = between_run([peer.rate for peer in runs])
    if found.low is None or found.high is None:
        return f"{found.mean:,.0f} (1 run)"
    return f"{found.mean:,.0f} ± {100 * (found.high - found.low) / 2 / found.mean:.2g} % ({len(runs)} runs)"


def too_short(runs: list[Peer]) -> str:
    """How long it measured, where that is too short for a ratio."""
    shortest_s = min(peer.seconds for peer in runs)
    return f", measured for {seconds(shortest_s)}" if shortest_s < LEAST_PEER_S else ""


def peer_cells(row: Row, runs: list[Peer]) -> list[str]:
    """A ratio only where each run of the program measured long enough."""
    peer, shortest_s = runs[0], min(peer.seconds for peer in runs)
    ratio = f"{row.mean / statistics.fmean(peer.rate for peer in runs):.2f}x"
    if too_short(runs):
        ratio = f"no ratio: measured for less than {LEAST_PEER_S:.0f} s"
    rate, _, count = peer_rate(runs).partition(" (")
    mean, plus_minus, width = rate.partition(" ± ")
    return [f"{row.work}, {row.runs[0].batch_size}", peer.name, peer.version, f"`{peer.settings}`",
            f"{mean} {peer.unit}{plus_minus}{width}", f"{count.split()[0]}, {seconds(shortest_s)}", ratio]  # fmt: skip


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 9.95 else f"{value:.1f} s"


def write(jobs: list[Job], readme: Path, page: Path, order: list[Trial]) -> list[str]:
    """Put the table into both pages; the sentences of what is not shown."""
    rows, refused = make_rows(jobs)
    place = {trial.hash: number for number, trial in enumerate(order)}
    rows.sort(key=lambda row: (place.get(row.trial.hash, len(place)), str(row.trial)))
    table = table_lines(HEAD, map(cells, rows)) if rows else [NONE_YET]
    peers = [peer_cells(row, runs) for row in rows for runs in programs(row)]
    below = ["", "The peers, each in the job of its row:", "", *table_lines(PEER_HEAD, peers)] if peers else []
    below += ["", *(f"- {sentence}" for sentence in refused)] if refused else []
    put_lines(readme, MARK, table_lines(README_HEAD, map(readme_cells, rows)) if rows else table)
    put_lines(page, MARK, [*table, *below])
    return refused


def main(arguments: list[str] | None = None) -> int:
    from device_results import read_trials

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, metavar="ARCHIVE|FOLDER")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/headline.md"))
    parser.add_argument("--order", type=Path, default=Path("scripts/trials/headline.txt"), help="which row comes first")
    options = parser.parse_args(arguments)
    try:
        jobs = [read_job(source) for source in options.sources or sorted(Path().glob("results/*/headline-*.tar.gz"))]
        refused = write(jobs, options.readme, options.page, read_trials(options.order))
    except RequestError as error:
        print(f"headline_table.py: {error}", file=sys.stderr)
        return 2
    for sentence in refused:
        print(f"headline_table.py: {sentence}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

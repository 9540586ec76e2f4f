"""Checks run folders: the record against its schema, its manifest, and what the files give when computed again.

Rate, interval, step time, utilisation and energy are recomputed by the code that made them: the step series goes
through `prony_node.stats`, the power samples through the supervisor's own window. What the files cannot give again
(losses, latencies, memory) is named as not recomputed. This shows that a folder agrees with itself, which an edited
record does not. It cannot show that a whole folder was not made up.

A record that other code made keeps its figures: rate and energy are arithmetic on the files. Its intervals and its cut
of the transient come from that code's statistics; where today's differ, a note says so.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.record import EnergyDetail, Metric, Record, implausible, parse_record
from prony_node.contract.record_upgrades import name_kernels, trial_with_kernels
from prony_node.contract.run_folder import (
    CHANGED,
    LOST_MANIFEST,
    NO_MANIFEST,
    RESULT_FIELDS,
    Energy,
    Verification,
    assemble,
    has_manifest,
    lost_manifest,
    manifest_problems,
    node_source_hash,
    read_parts,
)
from prony_node.contract.safe_files import plain_lines
from prony_node.contract.settings import in_lockstep, models, rank_count
from prony_node.contract.trial import Plan, settings_hash
from prony_node.contract.typed import encode
from prony_node.run.energy import ENERGY_METRICS, QUALITY_ENERGY_METRICS, energy_of_run
from prony_node.run.step_series import CopySeries, common_window, summed
from prony_node.stats import Estimate, StopRule, Tracker

ENERGY = {*ENERGY_METRICS, *QUALITY_ENERGY_METRICS}
RECORD_CHANGED = CHANGED.format(files.RECORD)
TOLERANCE = 1e-9  # relative
# What the record copies from the plan and from the parts beside it, whatever the run gave.
COPIED = ("trial", "study", "repeat", "status", "stop", "unit", "fingerprint", "facts")
COLLECTIVE_NAMES = ("throughput", "throughput_per_device", "bus_bandwidth")


def verify_folder(folder: Path) -> Verification:
    """The verdict on a run folder. Whatever is wrong with it is a problem, never an exception."""
    try:
        document = files.read_json(folder / files.RECORD)
        record = parse_record(document)
    except (RequestError, OSError) as error:
        return Verification(str(folder), None, "not verified", (_why_unread(folder, error),))
    if not has_manifest(folder) and not lost_manifest(folder):
        return Verification(str(folder), record.id, "unverified", (NO_MANIFEST,), (), tuple(record.metrics))
    problems = manifest_problems(folder) if has_manifest(folder) else [LOST_MANIFEST]
    if problems and problems != [RECORD_CHANGED]:  # what was changed proves nothing, and may be anything
        return Verification(str(folder), record.id, "not verified", tuple(problems), (), tuple(record.metrics))
    # Where the record alone was edited, the files beside it still say what was measured.
    again = Recomputation(folder, record, [*problems, *(f"it cannot be true: {one}" for one in implausible(record))])
    try:
        again.run()
    except Exception as error:  # a file that agrees with the manifest and makes no sense
        again.problems.append(f"the files could not be computed with: {type(error).__name__}: {error}")
    known = {name for name, metric in record.metrics.items() if metric.value is not None}
    made = tuple(name for name in record.metrics if name in again.recomputed)
    return Verification(
        str(folder),
        record.id,
        "not verified" if again.problems else "verified",
        tuple(again.problems),
        made,
        tuple(name for name in record.metrics if name in known and name not in again.recomputed),
        tuple(again.notes),
    )


def _why_unread(folder: Path, error: Exception) -> str:
    if folder.is_symlink():
        return "it is a symbolic link: name the run folder itself"
    return str(error) if (folder / files.RECORD).is_file() else "it has no readable record.json"


@dataclass(frozen=True)
class RankBlocks:
    """The timed blocks of a rank, as they lie on disk: steps, seconds, and the mean over ranks of a collective."""

    steps: tuple[int, ...]
    times_s: tuple[float, ...]

    @property
    def duration_s(self) -> float:
        return sum(self.times_s)

    def mean_after(self, cut_steps: int) -> float:
        """Seconds per step of the blocks after the first `cut_steps` steps."""
        seen, begin = 0, 0
        while begin < len(self.steps) and seen < cut_steps:
            seen, begin = seen + self.steps[begin], begin + 1
        return sum(self.times_s[begin:]) / sum(self.steps[begin:])

    def first(self, count: int | None) -> RankBlocks:
        return self if count is None else RankBlocks(self.steps[:count], self.times_s[:count])

    def estimate(self, confidence: float, period: int) -> Estimate | None:
        """By the same code that the rank asks."""
        tracker = Tracker(StopRule(confidence=confidence), period)
        for steps, time_s in zip(self.steps, self.times_s, strict=True):
            tracker.add(time_s, steps)
        return tracker.estimate()


def read_series(path: Path, column: str = "duration_s") -> RankBlocks:
    rows = [(int(row["steps"]), float(row[column])) for row in csv.DictReader(plain_lines(path))]
    return RankBlocks(tuple(steps for steps, _ in rows), tuple(time_s for _, time_s in rows))


@dataclass
class Recomputation:
    """Everything of one run that its files give again, compared with what its record says."""

    folder: Path
    record: Record
    problems: list[str] = field(default_factory=list)
    recomputed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def made_by(self) -> str | None:
        """The hash of the code that made the record; None where it is the code that recomputes."""
        theirs = self.record.facts.software.prony_node_source
        return None if theirs == node_source_hash() else str(theirs)

    def _differs(self, said: str) -> None:
        """Something that another version may compute otherwise."""
        if self.made_by is None:
            self.problems.append(said)
        else:
            self.notes.append(f"{said} (the record was made by other code, {self.made_by})")

    def run(self) -> None:
        self.plan = Plan.from_json(files.read_json(self.folder / files.PLAN))
        self.parts = read_parts(self.folder)
        self._identity()
        self._parts()
        if self.record.status != "ok":
            how = "failed" if self.record.status == "failed" else "was interrupted"
            self.notes.append(f"the run {how}: it has no figures to recompute")
            return
        self._series()
        self._utilisation()
        self._energy()
        self._result()

    def _identity(self) -> None:
        """The record is of this plan, and its hashes are those of what they stand for."""
        trial = self.record.trial
        effective = dict(self.parts.effective_settings)
        asked = trial_with_kernels({**self.plan.trial.to_json(), "file": self.plan.file, "effective": effective})
        if self.record.id != self.plan.run_id or dict(trial.settings) != asked["settings"]:
            self.problems.append("record.json is not of the run that plan.json asks for")
        if trial.hash != asked["hash"]:
            self.problems.append("trial.hash is not the hash of the trial")
        if trial.effective and trial.effective_hash != settings_hash(trial.workload, _settings(self.record)):
            self.problems.append("trial.effective_hash is not the hash of the effective settings")

    def _parts(self) -> None:
        """What the record copies is what the parts beside it say: device, software, effective settings, status."""
        stated = encode(self.record)
        energy = {name: metric for name, metric in self.record.metrics.items() if name in ENERGY}
        again = assemble(
            self.plan,
            self.parts,
            started=self.record.started or "",
            ended=self.record.ended or "",
            failure=self.record.failure,
            energy=Energy(energy, [], self.record.energy),
        )
        made = encode(parse_record(name_kernels(again)))
        for name in COPIED:
            if not _same(stated.get(name), made.get(name), shared=self.made_by is not None):
                self.problems.append(f"{name} of record.json and of the files that it was made from differ")

    def _result(self) -> None:
        """The record says what the rank's result says, word for word, and nothing besides."""
        stated, result = encode(self.record), files.read_json(self.folder / files.RESULT) or {}
        for name in RESULT_FIELDS:
            own, theirs = stated.get(name), result.get(name)
            if theirs is None and not own:
                continue
            if theirs is None:
                if name == "metrics" and not own.keys() - ENERGY:
                    continue
                if name == "checks" or name in COPIED:  # those of the supervisor; from effective.json
                    continue
            elif name == "metrics":
                theirs = {key: _without_nulls(one) for key, one in theirs.items() if key not in ENERGY}
                own = {key: self._plain(key) for key in self.record.metrics if key not in ENERGY}
            elif name == "checks":
                own = own[: len(theirs)] if own else own
            if not _same(own, theirs):
                self.problems.append(f"{name} of record.json and of result.json differ")

    def _plain(self, name: str) -> Any:
        return _without_nulls(encode(self.record.metrics[name]))

    def _series(self) -> None:
        record = self.record
        if record.metrics.get("throughput") is None or record.metrics["throughput"].value is None:
            self.notes.append("the run has no rate")
            return
        path = self.folder / files.STEPS
        if not path.is_file():
            self.problems.append(f"there is no {files.STEPS} to recompute the rate from")
            return
        steady = record.steady
        whole = read_series(path, "mean_s" if record.collective else "duration_s")
        confidence = steady.confidence if steady and steady.confidence else StopRule().confidence
        seen = whole.first(steady.blocks_seen if steady else None)
        estimate = seen.estimate(confidence, self.parts.result.series_period or 0)
        self._steady(estimate)
        step_s = estimate.step_time_s if estimate else whole.duration_s / sum(whole.steps)
        ends = (estimate.step_time_low_s, estimate.step_time_high_s) if estimate else (None, None)
        if self.made_by and steady and estimate and steady.cut_steps != estimate.cut_steps:
            step_s = seen.mean_after(int(_number(steady.cut_steps)))  # of the window that the other code found
        self._compare("step_time", step_s, *ends)
        if record.collective:
            self._collective(record.collective, step_s, ends)
            return
        self._work(whole, seen, estimate)
        settings = _settings(record)
        if rank_count(settings) > 1 and not in_lockstep(settings):
            self._copies()
            return
        units = _number(record.work.units) / _number(record.work.steps)
        devices = _number(record.work.devices)
        self._compare_rate("throughput", units, step_s, ends)
        self._compare_rate("throughput_per_device", units / devices, step_s, ends)

    def _compare_rate(self, name: str, units: float, step_s: float, ends: tuple[float | None, float | None]) -> None:
        low_s, high_s = ends
        low, high = (units / end if end else None for end in (high_s, low_s if low_s and low_s > 0 else None))
        self._compare(name, units / step_s, low, high)

    def _steady(self, estimate: Estimate | None) -> None:
        stated = self.record.steady
        if (stated is None) != (estimate is None):
            self.problems.append(
                f"steady is {'null' if stated is None else 'there'}, and the step series says otherwise"
            )
        if stated is None or estimate is None:
            return
        own = {name: value for name, value in encode(stated).items() if value is not None}
        for name, value in dataclasses.asdict(estimate).items():
            if name in own and not _same(own[name], value):
                self._differs(f"steady.{name} is {own[name]}, from {files.STEPS} it is {value}")

    def _work(self, whole: RankBlocks, seen: RankBlocks, estimate: Estimate | None) -> None:
        """Steps are those of the series, and samples those of the steps."""
        work, settings = self.record.work, _settings(self.record)
        if rank_count(settings) > 1 and not in_lockstep(settings):
            return  # of copies both are counted in the window that they have in common
        cut = estimate.cut_steps if estimate else 0
        if self.made_by and self.record.steady and self.record.steady.cut_steps is not None:
            cut = self.record.steady.cut_steps
        steps = {sum(whole.steps) - cut, sum(seen.steps) - cut}
        if work.steps not in steps:
            self.problems.append(f"work.steps is {work.steps}, from {files.STEPS} it is {max(steps)}")
        each = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1)) * models(settings)
        if work.samples != _number(work.steps) * each:
            self.problems.append(f"work.samples is {work.samples}: {work.steps} steps of {each} samples are others")

    def _copies(self) -> None:
        """Independent copies: their sum over the window that all of them were measured in."""
        record = self.record
        accounts = [self._copy(one) for one in (record.parallel or {}).get("ranks") or []]
        window = common_window(accounts) if accounts else None
        if window is None:
            self.problems.append("the copies were never measured at the same time, and the record has a rate")
            return
        settings = _settings(record)
        each = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1))
        per_sample = round(_number(record.work.units) / _number(record.work.samples))
        found = summed(window, accounts, each * per_sample)
        for name, parts in (("throughput", 1.0), ("throughput_per_device", _number(record.work.devices))):
            low, high = (None if end is None else end / parts for end in (found.low, found.high))
            self._compare(name, found.value / parts, low, high)

    def _copy(self, told: Mapping[str, Any]) -> CopySeries:
        """The series of one copy, on the clock that the record has it by."""
        series = read_series(files.rank_folder(self.folder, told["rank"]) / files.STEPS)
        blocks = tuple((steps, time_s, 0.0) for steps, time_s in zip(series.steps, series.times_s, strict=True))
        named = ("begin_s", "cut_s", "seconds", "step_s", "low_s", "high_s")
        return CopySeries(**{name: told[name] for name in named}, blocks=blocks)

    def _collective(
        self, collective: Mapping[str, Any], step_s: float, ends: tuple[float | None, float | None]
    ) -> None:
        """Bus bandwidth at the largest message; the other sizes have no series of their own."""
        size = collective["curve"][-1]["size_bytes"]
        for name in COLLECTIVE_NAMES:
            self._compare_rate(name, collective["factor"] * size, step_s, ends)
        self._compare_rate("algorithm_bandwidth", size, step_s, ends)
        self.notes.append("of a collective only the largest message is recomputed: the others have no step series")

    def _utilisation(self) -> None:
        """Counted FLOPs times the rate of a device, over the peak that the plan carries."""
        record, metrics = self.record, self.record.metrics
        stated, flops = metrics.get("mfu"), metrics.get("flops_per_sample")
        rate = metrics.get("throughput_per_device")
        if stated is None or stated.value is None or flops is None or rate is None:
            return
        name, precision = str(record.device.name), _settings(record).get("precision")
        peaks = [one.flops for one in self.plan.peaks if one.precision == precision and re.search(one.device, name)]
        if not peaks:
            self.notes.append(f"mfu is not recomputed: plan.json has no peak of {name} in {precision}")
            return
        per_sample = _number(record.work.units) / _number(record.work.samples)
        achieved = _number(rate.value) / per_sample * _number(flops.value)
        self._compare("mfu", achieved / peaks[0], None, None)

    def _energy(self) -> None:
        record = self.record
        stated = ENERGY & record.metrics.keys()
        if record.energy is None and not any(record.metrics[name].value is not None for name in stated):
            return
        count = int(self.plan.trial.settings.get("nodes", 1))
        absent = [node for node in range(1, count) if not files.node_folder(self.folder, node).is_dir()]
        if absent:
            self.notes.append("energy is not recomputed: the folders of the other nodes are not beside this one")
            return
        found = energy_of_run(self.plan, self.folder, self.parts)
        for name in sorted(stated & found.metrics.keys()):
            again = found.metrics[name]
            self._compare(name, again.value, again.low, again.high)
        if record.energy is not None and not _same(encode(record.energy), encode(found.detail or EnergyDetail())):
            self._differs(f"energy of record.json differs from what {files.POWER_SAMPLES} gives")

    def _compare(self, name: str, value: float | None, low: float | None, high: float | None) -> None:
        stated = self.record.metrics.get(name)
        if stated is None:
            return
        if value is not None:
            self.recomputed.add(name)
        for part, own, again in _ends(stated, value, low, high):
            if _same(own, again):
                continue
            said = f"metrics.{name}.{part} is {_shown(own)}, recomputed it is {_shown(again)}"
            if part == "value":
                self.problems.append(said)
            else:
                self._differs(said)
            return


def _ends(stated: Metric, value: Any, low: Any, high: Any) -> Iterator[tuple[str, Any, Any]]:
    yield "value", stated.value, value
    yield "low", stated.low, low
    yield "high", stated.high, high


def _settings(record: Record) -> dict[str, Any]:
    return dict(record.trial.effective or {})


def _number(value: float | None) -> float:
    if value is None:
        raise ValueError("the record's work is not counted")
    return value


def _shown(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, int | float) else "null" if value is None else str(value)


def _without_nulls(document: Any) -> Any:
    return {name: one for name, one in document.items() if one is not None}


def _same(own: Any, other: Any, shared: bool = False) -> bool:
    """Equal, numbers within the tolerance; `shared`: in the fields that both have, for one may be of other code."""
    if isinstance(own, dict) and isinstance(other, dict):
        names = own.keys() & other.keys() if shared else own.keys()
        return (shared or own.keys() == other.keys()) and all(_same(own[name], other[name], shared) for name in names)
    if isinstance(own, list | tuple) and isinstance(other, list | tuple):
        return len(own) == len(other) and all(_same(*pair, shared) for pair in zip(own, other, strict=True))
    if isinstance(own, bool) or isinstance(other, bool):
        return own is other
    if isinstance(own, int | float) and isinstance(other, int | float):
        return own == other or math.isclose(own, other, rel_tol=TOLERANCE)
    return bool(own == other)


def main(words: list[str]) -> int:
    """`python -m prony_node verify FOLDER ...`: a line of JSON each; 1 where one does not verify."""
    failed = False
    for word in words:
        found = verify_folder(Path(word))
        failed |= found.outcome == "not verified"
        print(json.dumps(encode(found)), flush=True)
    return 1 if failed else 0

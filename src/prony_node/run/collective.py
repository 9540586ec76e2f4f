"""A run of a collective: its curve over message sizes, and its largest message until the interval is narrow enough."""

from __future__ import annotations

import csv
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from prony_node.contract import files
from prony_node.contract.machine import identify
from prony_node.contract.metrics import measured, missing
from prony_node.measure import checks, memory
from prony_node.measure.clock import CpuUsage
from prony_node.measure.collective_loop import (
    WARM_OPERATIONS,
    OperationSeries,
    TimedOperation,
    time_block,
    time_point,
    time_until,
)
from prony_node.run.energy import with_energy
from prony_node.run.several_ranks import own_times, times_of_nodes
from prony_node.stats import Estimate, StopRule
from prony_node.workloads.collective.config import KINDS, message_sizes
from prony_node.workloads.collective.operations import Collective, gather, make_collective, refuse_unoffered

if TYPE_CHECKING:
    from prony_node.run.run import Run

INTERVAL = "95 %, within one run"
NOTES = {
    ("reducescatter", "gloo"): "gloo has no reduce-scatter: torch makes it from a copy and an allreduce of the whole "
    "array, so that more goes over the link than this bus bandwidth counts",
}


class CollectiveRun:
    """Measures what a run's workload names, and fills the run's findings. Every rank does the same, in step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.name, self.settings, self.device = run.workload.name, run.settings, run.device
        self.factor = float(KINDS[self.name].factor(dist.get_world_size()))
        self.clock = "host clock" if self.device.type == "cpu" else "device events"
        self.curve: list[dict[str, Any]] = []
        self.sizes = message_sizes(self.settings)

    def execute(self) -> None:
        run = self.run
        memory.reset_peak(self.device)
        with run.phase("cold_start", steps=WARM_OPERATIONS):
            refuse_unoffered(self.name, self.settings, self.device)
            time_block(self._operation(self._make(self.sizes[0])), WARM_OPERATIONS, time.monotonic())
        with run.phase("messages"):
            for size in self.sizes[:-1]:
                self._point(self._make(size))
        self._headline(self._make(self.sizes[-1]))
        run.metrics |= memory.memory_metrics(self.device)
        run.found["collective"] = {
            "operation": self.name,
            "ranks": dist.get_world_size(),
            "backend": str(dist.get_backend()),
            "factor": self.factor,
            "note": NOTES.get((self.name, str(dist.get_backend())), ""),
            "curve": self.curve,
        }
        run.checks.append(self._right_check())

    def _make(self, size: int) -> Collective:
        return make_collective(self.name, size, self.settings, self.device)

    def _operation(self, made: Collective) -> TimedOperation:
        return TimedOperation(made.run, made.renew, lambda values: gather(values, self.device), self.device)

    def _wrong(self, made: Collective) -> str:
        """Why this size's time is not to be believed; empty where every rank had the right answer."""
        answers = gather((float(made.is_right()),), self.device)
        wrong = [str(rank) for rank, (right,) in enumerate(answers) if not right]
        return f"the answer was wrong on rank {', '.join(wrong)}" if wrong else ""

    def _point(self, made: Collective) -> None:
        wrong = self._wrong(made)
        if wrong:
            self.curve.append({"size_bytes": made.size, "time_s": None, "reason": wrong})
            return
        series = time_point(self._operation(made), self.run.rule)
        self.curve.append(self._row(made.size, series, series.tracker.estimate()))
        self.run.progress.note(f"{made.size:,} B in {self.curve[-1]['time_s']:.3g} s")

    def _row(self, size: int, series: OperationSeries, estimate: Estimate | None) -> dict[str, Any]:
        """A point of the curve: times of one operation in seconds, bandwidths in bytes per second."""
        seconds = estimate.step_time_s if estimate else series.seconds / series.operations
        low_s, high_s = (estimate.step_time_low_s, estimate.step_time_high_s) if estimate else (None, None)
        return {
            "size_bytes": size,
            "time_s": seconds,
            "time_low_s": low_s,
            "time_high_s": high_s,
            "algorithm_bandwidth": size / seconds,
            "bus_bandwidth": self.factor * size / seconds,
            "bus_bandwidth_low": self.factor * size / high_s if high_s else None,
            "bus_bandwidth_high": self.factor * size / low_s if low_s else None,
            "operations": series.operations,
        }

    def _rule(self) -> StopRule:
        """The first rank's, since the power sensors of one node must not make its ranks go on without the others."""
        own = with_energy(self.run.rule, self.run.folder, self.device.type)
        return dataclasses.replace(own, min_time_s=gather((own.min_time_s,), self.device)[0][0])

    def _headline(self, made: Collective) -> None:
        run = self.run
        wrong = self._wrong(made)
        if wrong:
            self.curve.append({"size_bytes": made.size, "time_s": None, "reason": wrong})
            run.metrics |= {
                name: missing(wrong) for name in ("throughput", "throughput_per_device", "bus_bandwidth", "step_time")
            }
            return
        run.rule = self._rule()
        run.progress.rule = run.rule
        run.progress.units_per_step = round(self.factor * made.size)
        run.progress.phase("measure")
        usage = CpuUsage(len(run.cores))
        fixed = int(self.settings["steps"]) if "steps" in self.settings else None
        series = time_until(self._operation(made), run.rule, fixed, run.progress.measuring)
        ended = time.monotonic()
        run.metrics["cpu_utilisation"] = usage.metric()
        run.found["stop_reason"] = series.reason
        estimate = series.tracker.estimate()
        self.curve.append(self._row(made.size, series, estimate))
        self._fill(made.size, series, estimate, ended)
        work, timed = run.found["work"], run.phases["steady"]
        run.checks.append(checks.arithmetic_check(self.curve[-1]["bus_bandwidth"], timed["seconds"], work["units"]))
        run.found["parallel"] = self._parallel(series)
        run.checks += checks.series_checks(estimate, run.rule, fixed is not None)
        with run.phase("teardown"):
            write_operations(run.folder / files.STEPS, series)

    def _fill(self, size: int, series: OperationSeries, estimate: Estimate | None, ended: float) -> None:
        """Phases, work, window and metrics of the largest message."""
        run, row = self.run, self.curve[-1]
        cut_steps = estimate.cut_steps if estimate else 0
        cut_s = _end_of(series, cut_steps)
        began, steps = series.monotonic_start, series.operations - cut_steps
        run.found["steady"] = dataclasses.asdict(estimate) if estimate else None
        run.found["loop_monotonic"] = [began, ended]
        run.found["window_monotonic"] = [began + cut_s, ended]
        timed_s = estimate.window_s if estimate else series.seconds
        run.phases["warm_up"] = {"seconds": cut_s, "steps": cut_steps}
        run.phases["steady"] = {"seconds": timed_s, "steps": steps}  # rate x time = work
        run.phases["between_blocks"] = {"seconds": max(0.0, ended - began - cut_s - timed_s), "steps": 0}
        ranks = dist.get_world_size()
        run.found["work"] = {
            "samples": steps, "units": steps * round(self.factor * size), "steps": steps, "devices": ranks,
            "window": "steady", "total_samples": series.operations, "total_steps": series.operations,
        }  # fmt: skip
        where = f"{size:,} B between {ranks} ranks, mean over them by {self.clock}"
        more: dict[str, Any] = {"interval": INTERVAL if estimate else "none: too few steps"}
        ends = {"low": row["bus_bandwidth_low"], "high": row["bus_bandwidth_high"]}
        whole = {name: value and value / self.factor for name, value in ends.items()}
        times = {"low": row["time_low_s"], "high": row["time_high_s"]}
        link = {"scope": "a device's link", "source": f"bus bandwidth at the largest size, {where}", **more}
        one = {"scope": "one operation", "source": where, **more}
        run.metrics |= {
            "throughput": measured(row["bus_bandwidth"], "B/s", **ends, **link),
            "throughput_per_device": measured(row["bus_bandwidth"], "B/s", **ends, **link),
            "bus_bandwidth": measured(row["bus_bandwidth"], "B/s", **ends, **link),
            "step_time": measured(row["time_s"], "s", **times, **one),
            "algorithm_bandwidth": measured(row["algorithm_bandwidth"], "B/s", **whole, **one),
            "message_latency": self._latency(),
        }
        cold = run.phases["cold_start"]["seconds"]
        run.metrics["cold_start"] = measured(cold, "s", scope="rank", source="host clock: connecting the ranks")

    def _parallel(self, series: OperationSeries) -> dict[str, Any]:
        """The ranks, with what each saw of the largest message: they wait for each other, so none is slow by itself."""
        run, own_s = self.run, sum(block.own_s for block in series.blocks)
        place = run.ranks.place
        mine = {
            "rank": place.rank, "node": place.node, "host": identify()["host"], "device": str(self.device),
            "steps": series.operations, "seconds": own_s, "step_s": own_s / series.operations, "times": own_times(run),
        }  # fmt: skip
        known = {"form": "collective", "backend": run.ranks.backend, "timeout_s": run.ranks.timeout_s}
        accounts: list[dict[str, Any]] = run.ranks.gathered(mine)
        run.found["nodes"] = times_of_nodes(accounts)
        return {**known, "ranks": accounts}

    def _latency(self) -> dict[str, Any]:
        row = self.curve[0]
        if row["time_s"] is None:
            return missing(row["reason"])
        source = f"{row['size_bytes']:,} B, mean over the ranks by {self.clock}, one operation after the other"
        return measured(
            row["time_s"], "s", scope="one operation", source=source, low=row["time_low_s"], high=row["time_high_s"],
            interval=INTERVAL,
        )  # fmt: skip

    def _right_check(self) -> checks.Check:
        wrong = [f"{row['size_bytes']:,} B: {row['reason']}" for row in self.curve if row["time_s"] is None]
        if wrong:
            return checks.check(
                "collective", "fail", f"no time is given where the answer was wrong: {'; '.join(wrong)}"
            )
        text = f"every rank had the right answer at each of {len(self.curve)} sizes before it was timed"
        return checks.check("collective", "pass", text)


def _end_of(series: OperationSeries, steps: int) -> float:
    """When so many operations were over, on the host, since the first began."""
    end_s, seen = 0.0, 0
    for block in series.blocks:
        if seen >= steps:
            break
        end_s, seen = block.end_s, seen + block.operations
    return end_s


def write_operations(path: Path, series: OperationSeries) -> None:
    """The step series: what each block took on this rank, and on the mean of all ranks, which the rate is made of."""
    with files.open_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s", "mean_s"])
        for number, block in enumerate(series.blocks):
            writer.writerow(
                (number, block.operations, float(block.end_s), float(block.own_s), 0.0, float(block.mean_s))
            )

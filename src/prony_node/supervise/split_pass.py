"""An inference over a whole test split: each of its samples once in a pass, its answers judged and its time taken."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import measured, missing
from prony_node.contract.quality import SHARES
from prony_node.contract.trial import judges_split
from prony_node.measure.clock import clock_for
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.measure.protocol import Batch
from prony_node.stats import Tracker, share_interval

if TYPE_CHECKING:
    from prony_node.supervise.run import Run


@dataclass(frozen=True)
class RankShare:
    """What one rank did of all passes."""

    seconds: float  # from the first batch that was asked for to the last answer
    samples: int
    sums: dict[str, float]  # of each score over its samples


class SplitPass:
    """Whole batches are timed as any steps are; the last samples, too few for a step, count in the time of the pass."""

    def __init__(self, run: Run) -> None:
        assert run.inputs.opened is not None
        self.run = run
        self.part = run.inputs.test_part(run.ranks.place.rank, run.ranks.size)
        self.passes = int(run.settings["epochs"])
        self.steps_per_pass = len(self.part) // run.samples_per_step
        if self.steps_per_pass == 0:
            raise RequestError(
                f"a step of {run.samples_per_step} samples is more than the {len(self.part):,} of the test split that "
                f"a device has; batch_size={max(1, len(self.part))} would do"
            )
        self._scores: dict[str, list[Tensor]] = {}
        self._seconds = 0.0
        self._rest, self._rest_s = 0, 0.0  # steps of too few samples, and their time

    @property
    def steps(self) -> int:
        """Whole steps of all passes."""
        return self.passes * self.steps_per_pass

    def measure(self, step_s: float) -> Window:
        """All passes; one window of their whole steps."""
        run = self.run
        whole = Window("")
        run.tracker = Tracker(run.rule)
        block_steps = steps_per_block(step_s)
        intervals = []
        for _ in range(self.passes):
            began = time.monotonic()
            batches = run.inputs.test(run.step, run.samples_per_step, self.part)
            window = measured_loop(
                self._answer,
                batches,
                clock_for(run.device, block_steps * step_s),
                run.tracker,
                block_steps=block_steps,
                fixed_steps=self.steps_per_pass,
                time_waits=run.inputs.waits,
                report=run.report_measuring,
            )
            whole_steps_end = time.monotonic()
            for batch in batches:
                self._answer_few(batch)
            run.synchronise()
            ended = time.monotonic()
            self._seconds += ended - began
            self._rest_s += ended - whole_steps_end
            intervals.append(window.monotonic)
            whole.clock = window.clock
            whole.blocks += window.blocks
        whole.monotonic = (intervals[0][0], intervals[-1][1])
        answered_s = math.fsum(end_s - start_s for start_s, end_s in intervals)
        whole.paused_s = whole.monotonic[1] - whole.monotonic[0] - answered_s
        whole.stop_reason = f"passes over the test split: {self.passes}"
        return whole

    def _answer(self, batch: Batch) -> None:
        self.run.step(batch)
        self._judge(batch)

    def _answer_few(self, batch: Batch) -> None:
        """Repeated to fill a step, whose shape may be compiled or captured; what is repeated is not judged again."""
        count = len(batch[0])
        rows = torch.arange(self.run.samples_per_step, device=batch[0].device) % count
        self.run.step(tuple(tensor[rows] for tensor in batch))
        self._judge(batch)
        self._rest += 1

    def _judge(self, batch: Batch) -> None:
        """On the device, without waiting for it."""
        answer, judged = self.run.step.output, self.run.task.judged
        assert answer is not None
        assert judged is not None
        for name, values in judged(answer[: len(batch[0])], batch).items():
            self._scores.setdefault(name, []).append(values)

    def judge(self) -> None:
        """The metrics of the passes of all ranks, in the first one's result."""
        run = self.run
        sums = {name: float(torch.cat(values).double().sum()) for name, values in self._scores.items()}
        parts = run.ranks.gathered(RankShare(self._seconds, self.passes * len(self.part), sums))
        run.phases["rest_of_split"] = {"seconds": self._rest_s, "steps": self._rest}
        if not parts:
            return
        samples = sum(part.samples for part in parts)
        seconds = max(part.seconds for part in parts)  # all began together
        name = run.workload.scores[0]
        value = sum(part.sums[name] for part in parts) / samples
        run.metrics["quality"] = self._quality(name, value, samples // self.passes)
        clock = "host clock, from the first batch asked for to the last answer"
        each = f"{clock}, mean of {self.passes} passes" if self.passes > 1 else clock
        run.metrics["split_time"] = measured(seconds / self.passes, "s", scope="all devices", source=each)
        source = f"{samples:,} {run.task.unit} over the {clock}"
        run.metrics["split_throughput"] = measured(
            samples * run.task.units_per_sample / seconds, f"{run.task.unit}/s", scope="all devices", source=source
        )

    def _quality(self, name: str, value: float, samples: int) -> dict[str, Any]:
        if not math.isfinite(value):
            return missing(f"the {name} was not finite")
        bounds: dict[str, Any] = {}
        if name in SHARES:
            low, high = share_interval(value, samples)
            bounds = {"low": low, "high": high, "interval": "95 %, of the test split's size"}
        source = f"{samples:,} samples of {self.run.found['data']['kind']}'s test split"
        return measured(value, name, scope="test split", source=source, **bounds)


def split_pass(run: Run) -> SplitPass | None:
    """The passes that a run was asked for; None where it has another length, or answers that cannot be judged."""
    asked = judges_split(run.settings) and run.task.judged is not None
    return SplitPass(run) if asked and not run.plan.cut_short else None

"""Runs judged on a test split: training to a quality, epoch by epoch, and an inference over the whole split."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import measured, missing
from prony_node.contract.parallel import replicas
from prony_node.contract.run_folder import make_check
from prony_node.contract.settings import MORE, SCORES, SHARES, QualityTarget, parse_target
from prony_node.contract.trial import judges_split
from prony_node.measure.clock import clock_for
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.measure.protocol import Batch
from prony_node.measure.training import rate_factor
from prony_node.run.auto_batch import STEPS
from prony_node.stats import Tracker, share_interval

if TYPE_CHECKING:
    from prony_node.run.run import Run


class QualityTraining:
    """Trains, evaluates, and keeps the learning curve."""

    def __init__(self, run: Run) -> None:
        self.run = run
        assert run.inputs.opened is not None
        self.test_samples = len(run.inputs.opened.test)
        self.replicas = replicas(run.settings)  # that share an epoch
        self.steps_per_epoch = len(run.inputs.opened.train) // self.replicas // run.samples_per_step
        self.epochs = int(run.settings["epochs"])
        if run.plan.cut_short:
            self.epochs, self.steps_per_epoch = 1, STEPS
        scores = run.workload.scores
        self.target: QualityTarget | None = None
        if "until" in run.settings:
            self.target = parse_target(str(run.settings["until"]), scores)
        self.score = self.target.score if self.target else scores[0]
        self.curve: list[dict[str, Any]] = []
        self.reached: dict[str, int] | None = None
        self.intervals: list[tuple[float, float]] = []  # of training, on the monotonic clock
        self._step = 0
        self._evaluation_s = 0.0

    def train(self, step_s: float) -> Window:
        """Epochs until the target is reached or all are over; one window of all their steps."""
        run = self.run
        whole = Window("")
        run.tracker = Tracker(run.rule)
        self._began = time.monotonic()
        for epoch in range(1, self.epochs + 1):
            run.progress.phase("measure", self._where(epoch))
            part = self._epoch(epoch, run.tracker, step_s)
            self.intervals.append(part.monotonic)
            whole.clock = part.clock
            whole.blocks += part.blocks
            self._evaluate(epoch, whole.duration_s)
            if self.reached is not None:
                break
        run.found["training_monotonic"] = [list(interval) for interval in self.intervals]
        whole.monotonic = (self.intervals[0][0], self.intervals[-1][1])
        trained_s = math.fsum(end_s - start_s for start_s, end_s in self.intervals)
        whole.paused_s = whole.monotonic[1] - whole.monotonic[0] - trained_s
        count = len(self.curve)
        whole.stop_reason = f"{self.target} after {count} epochs" if self.reached else f"{count} epochs were over"
        return whole

    def _epoch(self, epoch: int, tracker: Tracker, step_s: float) -> Window:
        run = self.run
        self._epoch_began = time.monotonic()
        block_steps = steps_per_block(step_s)
        total = self.epochs * self.steps_per_epoch

        def step(batch: Batch) -> None:
            run.step.set_rate(rate_factor(self._step, total))
            self._step += 1
            run.step(batch)

        return measured_loop(
            step,
            run.batches,
            clock_for(run.device, block_steps * step_s),
            tracker,
            block_steps=block_steps,
            fixed_steps=self.steps_per_epoch,
            time_waits=run.inputs.waits,
            report=lambda steps, _: self._report(epoch, steps),
        )

    def _evaluate(self, epoch: int, training_s: float) -> None:
        run = self.run
        run.progress.phase("evaluation")
        began = time.perf_counter()
        found = evaluate(run) if self.replicas == 1 or run.ranks.first else {}
        if self.replicas > 1:  # one model: the first rank judges it, and all go by what it found
            found = run.ranks.from_first(found)
        self._evaluation_s += time.perf_counter() - began
        rate = run.task.learning_rate * rate_factor(self._step - 1, self.epochs * self.steps_per_epoch)
        point = {
            "epoch": epoch,
            "steps": self._step,
            "samples": self._step * run.samples_per_step * self.replicas,
            "training_s": round(training_s, 6),
            "evaluation_s": round(self._evaluation_s, 6),
            "learning_rate": rate,
        }
        # A loss that went over all bounds is null: JSON has no infinity.
        self.curve.append(point | {name: value if math.isfinite(value) else None for name, value in found.items()})
        run.found["learning"] = self.document()  # an interrupted run keeps what it learned so far
        value = found[self.score]
        if self.target is not None and math.isfinite(value) and self.target.reached(value):
            self.reached = {"epoch": epoch, "steps": self._step}

    def _report(self, epoch: int, steps: int) -> None:
        """A line of progress; the time left is that of training all epochs."""
        done = (epoch - 1) * self.steps_per_epoch + steps
        elapsed_s = time.monotonic() - self._began
        left_s = elapsed_s / max(1, done) * (self.epochs * self.steps_per_epoch - done)
        rate = steps * self.run.units_per_step * self.replicas / max(1e-9, time.monotonic() - self._epoch_began)
        self.run.progress.write(steps=done, rate=rate, left_s=left_s, note=self._where(epoch))

    def _where(self, epoch: int) -> str:
        value = self.curve[-1][self.score] if self.curve else None
        last = "" if value is None else f", {self.score} {value:.4g} so far"
        return f"epoch {epoch} of {self.epochs}{last}"

    def document(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "better": SCORES[self.score],
            "until": str(self.target) if self.target else None,
            "target": self.target.value if self.target else None,
            "reached": self.reached,
            "test_samples": self.test_samples,
            "epochs": self.epochs,
            "curve": self.curve,
        }

    def judge(self, window: Window) -> None:
        """The metrics and the check of what was learned."""
        run = self.run
        run.found["learning"] = self.document()
        run.found["work"]["epoch_units"] = self._step * run.units_per_step * self.replicas
        run.phases["evaluation"] = {"seconds": self._evaluation_s, "steps": 0}
        run.metrics["quality"] = self._quality(len(self.curve))
        if "report_at_epochs" in run.settings:
            run.metrics["quality_at_epochs"] = self._quality(int(run.settings["report_at_epochs"]))
        run.metrics["energy_to_quality"] = missing("no energy was measured")  # the supervisor may know better
        run.metrics["time_to_quality"] = self._time_to_quality(window.clock)
        if self.target is None:
            return
        best = self._best()
        level = "pass" if self.reached else "fail"
        said = (
            f"{self.target} after {len(self.curve)} epochs" if self.reached else f"not reached: {self.target}, {best}"
        )
        run.checks.append(make_check("quality", level, said))

    def _quality(self, epoch: int) -> dict[str, Any]:
        """The score after so many epochs."""
        if epoch > len(self.curve):
            return missing(f"there is no epoch {epoch}: the run ended after {len(self.curve)}")
        value = self.curve[epoch - 1][self.score]
        if value is None:
            if SCORES[self.score] == MORE:
                return missing(f"there is no {self.score}: the test split has nothing to be found")
            return missing(f"the {self.score} was not finite after epoch {epoch}")
        bounds: dict[str, Any] = {}
        if self.score in SHARES:
            low, high = share_interval(value, self.test_samples)
            bounds = {"low": low, "high": high, "interval": "95 %, of the test split's size"}
        kind = str(self.run.found["data"]["kind"])
        source = f"{self.test_samples:,} samples of {kind}'s test split after epoch {epoch}"
        return measured(value, self.score, scope="test split", source=source, **bounds)

    def _time_to_quality(self, clock: str) -> dict[str, Any]:
        if self.target is None:
            sign = ">=" if SCORES[self.score] == MORE else "<="
            return missing(f"no quality was asked for; until='{self.score}{sign}...' asks for one")
        if self.reached is None:
            return missing(f"{self.target} was not reached: {self._best()}")
        source = f"{self.target} after epoch {self.reached['epoch']}, by {clock}"
        seconds = self.curve[-1]["training_s"]
        return measured(seconds, "s", scope="training alone, without evaluation", source=source)

    def _best(self) -> str:
        known = [point[self.score] for point in self.curve if point[self.score] is not None]
        if not known:
            return f"the {self.score} was never finite"
        best = max(known) if SCORES[self.score] == MORE else min(known)
        return f"at best {best:.4g} in {len(self.curve)} epochs"


def evaluate(run: Run) -> dict[str, float]:
    """The scores of the model as it stands, over the whole test split."""
    found: dict[str, list[torch.Tensor]] = {}
    for batch in run.inputs.test(run.step, run.samples_per_step):
        for name, values in run.step.scores(batch).items():
            found.setdefault(name, []).append(values.float())
        if run.plan.cut_short:  # it was there to see whether it fits; a part of the split has no score
            return dict.fromkeys(found, math.nan) | dict.fromkeys(run.workload.scores, math.nan)
    assert run.inputs.opened is not None
    return run.inputs.opened.test.scores({name: torch.cat(values).cpu() for name, values in found.items()})


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

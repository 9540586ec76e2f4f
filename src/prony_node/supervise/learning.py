"""A run that trains to a quality: epoch after epoch on a data set, judged on its test split after each."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

from prony_node.contract.assemble import make_check
from prony_node.contract.metrics import measured, missing
from prony_node.contract.parallel import replicas
from prony_node.contract.quality import MORE, SCORES, SHARES, Target, parse_target
from prony_node.measure.clock import clock_for
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.measure.protocol import Batch
from prony_node.measure.schedule import rate_factor
from prony_node.stats import Tracker, share_interval
from prony_node.supervise.auto_batch import STEPS

if TYPE_CHECKING:
    from prony_node.supervise.run import Run


class Learning:
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
        self.target: Target | None = None
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

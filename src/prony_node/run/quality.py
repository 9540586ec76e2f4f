"""Runs judged on a test split: training to a quality, epoch by epoch, and an inference over the whole split."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prony_node.backends.protocol import Batch, SplitAnswers
from prony_node.contract.errors import RequestError
from prony_node.contract.record import Check, LearnedEpoch, Learning, Metric, Phase, TargetReached, measured, missing
from prony_node.contract.run_folder import Findings
from prony_node.contract.settings import MORE, SCORES, SHARES, QualityTarget, parse_target, replicas
from prony_node.contract.typed import stated
from prony_node.measure.loop import Window, measured_loop, steps_per_block
from prony_node.run.journal import Journal
from prony_node.run.prepare import TRY_STEPS, Built, Setup
from prony_node.stats import Decision, Tracker, share_interval

WARM_UP = 0.2  # share of the steps until the highest rate


def rate_factor(step: int, steps: int) -> float:
    """The share of the highest learning rate at step number `step`, from 0, of `steps`."""
    highest = max(1.0, WARM_UP * steps)
    if step + 1 <= highest:
        return (step + 1) / highest
    return max(0.0, (steps - step) / (steps - highest + 1))


@dataclass(frozen=True)
class EpochPlan:
    """Epochs of training, and what is asked of the model after each."""

    epochs: int
    steps_per_epoch: int
    replicas: int  # that share an epoch
    test_samples: int
    score: str
    target: QualityTarget | None

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch


def plan_epochs(setup: Setup, built: Built) -> EpochPlan:
    """As long as the settings ask for; a run that is cut short takes a few steps."""
    settings, scores, opened = setup.settings, setup.workload.scores, setup.opened
    assert opened is not None
    count = replicas(settings)
    epochs, steps = int(settings["epochs"]), len(opened.train) // count // built.samples_per_step
    if setup.plan.cut_short:
        epochs, steps = 1, TRY_STEPS
    target = parse_target(str(settings["until"]), scores) if "until" in settings else None
    return EpochPlan(epochs, steps, count, len(opened.test), target.score if target else scores[0], target)


@dataclass(frozen=True)
class Training:
    """What was learned: the curve by epoch, and when the target was reached."""

    plan: EpochPlan
    curve: tuple[LearnedEpoch, ...] = ()
    reached: TargetReached | None = None
    steps: int = 0
    evaluation_s: float = 0.0
    window: Window = field(default_factory=lambda: Window(""))  # of all epochs' steps
    intervals: tuple[tuple[float, float], ...] = ()  # of training, on the monotonic clock

    def learning(self) -> Learning:
        """As the record has it."""
        plan = self.plan
        return stated(
            Learning,
            score=plan.score,
            better=SCORES[plan.score],
            until=str(plan.target) if plan.target else None,
            target=plan.target.value if plan.target else None,
            reached=self.reached,
            test_samples=plan.test_samples,
            epochs=plan.epochs,
            curve=self.curve,
        )


class EpochTraining:
    """Trains and evaluates epoch by epoch; what it learned so far is in the journal."""

    def __init__(self, setup: Setup, built: Built, plan: EpochPlan, journal: Journal) -> None:
        self.setup, self.built, self.plan, self.journal = setup, built, plan, journal
        self.curve: list[LearnedEpoch] = []
        self.reached: TargetReached | None = None
        self.evaluation_s = 0.0
        self.steps = 0
        self.began_s = time.monotonic()

    def epoch(self, epoch: int, tracker: Tracker, step_s: float) -> Window:
        built, began_s = self.built, time.monotonic()
        step, total = built.model.step, self.plan.total_steps
        block_steps = steps_per_block(step_s)

        def train(batch: Batch) -> None:
            step.set_rate(rate_factor(self.steps, total))
            self.steps += 1
            step(batch)

        return measured_loop(
            train,
            built.model.batches,
            self.setup.backend.clock(block_steps * step_s),
            tracker,
            block_steps=block_steps,
            fixed_steps=self.plan.steps_per_epoch,
            time_waits=built.model.waits_for_data,
            report=lambda steps, _: self.report(epoch, steps, began_s),
        )

    def evaluate(self, epoch: int, training_s: float) -> None:
        """A point of the curve."""
        plan, ranks, built = self.plan, self.setup.ranks, self.built
        self.journal.progress.phase("evaluation")
        began = time.perf_counter()
        found: dict[str, float] = {}
        if plan.replicas == 1 or ranks.first:
            found = built.model.scores(self.setup.workload.scores, one_batch=self.setup.plan.cut_short)
        if plan.replicas > 1:  # one model: the first rank judges it, and all go by what it found
            found = ranks.from_first(found)
        self.evaluation_s += time.perf_counter() - began
        rate = built.task.learning_rate * rate_factor(self.steps - 1, plan.total_steps)
        # A loss that went over all bounds is null: JSON has no infinity.
        scores = {name: value if math.isfinite(value) else None for name, value in found.items()}
        point = LearnedEpoch(
            epoch=epoch,
            steps=self.steps,
            samples=self.steps * built.samples_per_step * plan.replicas,
            training_s=round(training_s, 6),
            evaluation_s=round(self.evaluation_s, 6),
            learning_rate=rate,
            loss=scores.get("loss"),
            more={name: value for name, value in scores.items() if name != "loss" or value is None},
        )
        self.curve.append(point)
        self.journal.keep(learning=self.so_far().learning())  # an interrupted run keeps what it learned so far
        value = found[plan.score]
        if plan.target is not None and math.isfinite(value) and plan.target.reached(value):
            self.reached = TargetReached(epoch, self.steps)

    def so_far(self) -> Training:
        return Training(self.plan, tuple(self.curve), self.reached, self.steps, self.evaluation_s)

    def report(self, epoch: int, steps: int, began_s: float) -> None:
        """A line of progress; the time left is that of training all epochs."""
        done = (epoch - 1) * self.plan.steps_per_epoch + steps
        elapsed_s = time.monotonic() - self.began_s
        left_s = elapsed_s / max(1, done) * (self.plan.total_steps - done)
        rate = steps * self.built.units_per_step * self.plan.replicas / max(1e-9, time.monotonic() - began_s)
        self.journal.progress.write(steps=done, rate=rate, left_s=left_s, note=self.where(epoch))

    def where(self, epoch: int) -> str:
        score = self.plan.score
        value = self.curve[-1].score(score) if self.curve else None
        last = "" if value is None else f", {score} {value:.4g} so far"
        return f"epoch {epoch} of {self.plan.epochs}{last}"


def train_epochs(training: EpochTraining, tracker: Tracker, step_s: float) -> Training:
    """Epochs until the target is reached or all are over; one window of all their steps."""
    parts: list[Window] = []
    for epoch in range(1, training.plan.epochs + 1):
        training.journal.progress.phase("measure", training.where(epoch))
        parts.append(training.epoch(epoch, tracker, step_s))
        training.evaluate(epoch, math.fsum(part.duration_s for part in parts))
        if training.reached is not None:
            break
    intervals = tuple(part.monotonic for part in parts)
    found = training.so_far()
    count = len(found.curve)
    why = f"{found.plan.target} after {count} epochs" if found.reached else f"{count} epochs were over"
    window = in_one(parts, why)
    return Training(found.plan, found.curve, found.reached, found.steps, found.evaluation_s, window, intervals)


def in_one(parts: list[Window], why: str) -> Window:
    """Several windows as one; what lies between them is no part of it."""
    begin_s, end_s = parts[0].monotonic[0], parts[-1].monotonic[1]
    paused_s = end_s - begin_s - math.fsum(part.monotonic[1] - part.monotonic[0] for part in parts)
    blocks = tuple(block for part in parts for block in part.blocks)
    return Window(parts[-1].clock, why, blocks, (begin_s, end_s), paused_s)


def judge_training(training: Training, settings: dict[str, Any], kind: str) -> Findings:
    """The metrics and the check of what was learned; `kind` is that of the data set."""
    metrics = {"quality": quality_after(training, len(training.curve), kind)}
    if "report_at_epochs" in settings:
        metrics["quality_at_epochs"] = quality_after(training, int(settings["report_at_epochs"]), kind)
    metrics["energy_to_quality"] = missing("no energy was measured")  # the supervisor may know better
    metrics["time_to_quality"] = time_to_quality(training)
    phases = {"evaluation": Phase(training.evaluation_s, 0)}
    target, count = training.plan.target, len(training.curve)
    if target is None:
        return Findings(metrics, (), phases)
    if training.reached:
        return Findings(metrics, (Check("quality", "pass", f"{target} after {count} epochs"),), phases)
    return Findings(metrics, (Check("quality", "fail", f"not reached: {target}, {best_of(training)}"),), phases)


def quality_after(training: Training, epoch: int, kind: str) -> Metric:
    """The score after this epoch."""
    score, curve = training.plan.score, training.curve
    if epoch > len(curve):
        return missing(f"there is no epoch {epoch}: the run ended after {len(curve)}")
    value = curve[epoch - 1].score(score)
    if value is None:
        if SCORES[score] == MORE:
            return missing(f"there is no {score}: the test split has nothing to be found")
        return missing(f"the {score} was not finite after epoch {epoch}")
    count = training.plan.test_samples
    return score_metric(score, value, count, f"{count:,} samples of {kind}'s test split after epoch {epoch}")


def score_metric(name: str, value: float, samples: int, source: str) -> Metric:
    """With its interval, where it is a share of the samples."""
    if name not in SHARES:
        return measured(value, name, scope="test split", source=source)
    low, high = share_interval(value, samples)
    interval = "95 %, of the test split's size"
    return measured(value, name, scope="test split", source=source, low=low, high=high, interval=interval)


def time_to_quality(training: Training) -> Metric:
    plan = training.plan
    if plan.target is None:
        sign = ">=" if SCORES[plan.score] == MORE else "<="
        return missing(f"no quality was requested; until='{plan.score}{sign}...' requests one")
    if training.reached is None:
        return missing(f"{plan.target} was not reached: {best_of(training)}")
    source = f"{plan.target} after epoch {training.reached.epoch}, by {training.window.clock}"
    seconds = training.curve[-1].training_s or 0.0
    return measured(seconds, "s", scope="training alone, without evaluation", source=source)


def best_of(training: Training) -> str:
    score, curve = training.plan.score, training.curve
    known = [value for point in curve if (value := point.score(score)) is not None]
    if not known:
        return f"the {score} was never finite"
    best = max(known) if SCORES[score] == MORE else min(known)
    return f"at best {best:.4g} in {len(curve)} epochs"


@dataclass(frozen=True)
class SplitPass:
    """What this rank did of all passes. The last samples, too few for a step, count in the time of the pass."""

    window: Window  # of the whole steps
    seconds: float  # from the first batch that was asked for to the last answer
    rest_s: float  # of that, for steps of too few samples
    rest_steps: int
    samples: int
    passes: int
    answers: SplitAnswers


@dataclass(frozen=True)
class RankShare:
    """What one rank tells the first of its passes."""

    seconds: float
    samples: int
    sums: dict[str, float]  # of each score over its samples


@dataclass(frozen=True)
class SplitPlan:
    """Passes over this rank's part of the test split: whole batches are timed as any steps are."""

    answers: SplitAnswers
    passes: int
    steps_per_pass: int

    def measure(
        self,
        setup: Setup,
        built: Built,
        tracker: Tracker,
        step_s: float,
        report: Callable[[int, Decision | None], None],
    ) -> SplitPass:
        """All passes; one window of their whole steps."""
        block_steps = steps_per_block(step_s)
        parts: list[Window] = []
        seconds, rest_s, rest_steps = 0.0, 0.0, 0
        for _ in range(self.passes):
            began = time.monotonic()
            batches = self.answers.batches()
            parts.append(
                measured_loop(
                    self.answers.answer,
                    batches,
                    setup.backend.clock(block_steps * step_s),
                    tracker,
                    block_steps=block_steps,
                    fixed_steps=self.steps_per_pass,
                    time_waits=built.model.waits_for_data,
                    report=report,
                )
            )
            whole_steps_end = time.monotonic()
            for batch in batches:
                self.answers.answer_few(batch)
                rest_steps += 1
            setup.backend.synchronise()
            ended = time.monotonic()
            seconds += ended - began
            rest_s += ended - whole_steps_end
        window = in_one(parts, f"passes over the test split: {self.passes}")
        samples = self.passes * len(self.answers)
        return SplitPass(window, seconds, rest_s, rest_steps, samples, self.passes, self.answers)


def plan_split(setup: Setup, built: Built) -> SplitPlan:
    answers = built.model.split_answers()
    steps = len(answers) // built.samples_per_step
    if steps == 0:
        raise RequestError(
            f"a step of {built.samples_per_step} samples is more than the {len(answers):,} of the test split that "
            f"a device has; batch_size={max(1, len(answers))} would do"
        )
    return SplitPlan(answers, int(setup.settings["epochs"]), steps)


def judge_split(setup: Setup, built: Built, done: SplitPass, kind: str) -> Findings:
    """The metrics of the passes of all ranks, in the first one's result."""
    task = built.task
    parts = setup.ranks.gathered(RankShare(done.seconds, done.samples, done.answers.sums()))
    phases = {"rest_of_split": Phase(done.rest_s, done.rest_steps)}
    if not parts:
        return Findings(phases=phases)
    samples = sum(part.samples for part in parts)
    seconds = max(part.seconds for part in parts)  # all began together
    name = setup.workload.scores[0]
    value, split_samples = sum(part.sums[name] for part in parts) / samples, samples // done.passes
    clock = "host clock, from the first batch asked for to the last answer"
    each = f"{clock}, mean of {done.passes} passes" if done.passes > 1 else clock
    quality = missing(f"the {name} was not finite")
    if math.isfinite(value):
        quality = score_metric(name, value, split_samples, f"{split_samples:,} samples of {kind}'s test split")
    rate = samples * task.units_per_sample / seconds
    source = f"{samples:,} {task.unit} over the {clock}"
    metrics = {
        "quality": quality,
        "split_time": measured(seconds / done.passes, "s", scope="all devices", source=each),
        "split_throughput": measured(rate, f"{task.unit}/s", scope="all devices", source=source),
    }
    return Findings(metrics, (), phases)

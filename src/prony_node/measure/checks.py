"""Checks made on a run by the rank itself: each a level and a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prony_node.contract.record import Check, Level, Metric
from prony_node.measure.loop import Window
from prony_node.stats import Estimate, StopRule
from prony_node.stats.stopping import SLOW_FACTOR, WINDOW_TO_CUT

MOST_SKIPPED = 0.01  # of the steps, by a gradient scaler
FEW_IDLE = 0.1  # of the tensors: more of them without a gradient, and most of the backward pass was left out
ARITHMETIC = 0.001  # by which rate x time may miss the work
FEW_BLOCKS = 5.5  # effectively independent ones, under which an interval is a guess
ONE_SIDE = 0.84  # of the half width at 95 %: what the one bound that is looked at exceeds in 5 % of cases
FEW_STEPS = 100  # of training, under which a loss that did not fall says nothing


def series_checks(estimate: Estimate | None, rule: StopRule, fixed: bool) -> list[Check]:
    """Steady, levels, blocks, tolerance."""
    if estimate is None:
        reason = "too few steps were timed to judge"
        if fixed:
            return [Check(name, "unknown", reason) for name in ("steady", "levels", "blocks", "tolerance")]
        missing = "too few steps were timed for an interval: measure for longer"
        return [
            *(Check(name, "unknown", reason) for name in ("steady", "levels")),
            *(Check(name, "warn", missing) for name in ("blocks", "tolerance")),
        ]
    width = f"{estimate.relative_half_width:.2%}, {estimate.window_s:.3g} s"
    checks = []
    drift = "too few blocks to fit"
    if estimate.drift is not None and estimate.drift_half_width is not None:
        drift = f"{estimate.drift:+.2%} over the window (± {estimate.drift_half_width:.2%})"
    most = math.inf
    if estimate.drift is not None and estimate.drift_half_width is not None:
        most = abs(estimate.drift) + ONE_SIDE * estimate.drift_half_width
    if not fixed and estimate.window_s < WINDOW_TO_CUT * estimate.cut_s:
        text = f"{estimate.cut_s:.3g} s were cut as a transient, and the window of {estimate.window_s:.3g} s is not"
        checks.append(Check("steady", "warn", f"{text} twice as long: the device may not be warm yet"))
    elif estimate.drifting == "yes" and most < rule.drift_limit:
        text = f"the step time drifted by less than {rule.drift_limit:.0%}: {drift}"
        checks.append(Check("steady", "pass", text))
    elif estimate.drifting == "yes":
        checks.append(Check("steady", "warn", f"the step time drifted: {drift}"))
    elif estimate.drifting == "no":
        checks.append(Check("steady", "pass", f"no drift shown: {drift}"))
    else:
        text = f"a drift of {rule.drift_limit:.0%} could not have been told from this noise: {drift}"
        checks.append(Check("steady", "unknown", text))
    if estimate.levels > 1:
        values = ", ".join(f"{value * 1e3:.4g} ms" for value in estimate.level_values_s)
        apart = max(estimate.level_values_s) / min(estimate.level_values_s) - 1
        text = f"the step time jumped between {estimate.levels} levels, {apart:.1%} apart: {values}"
        checks.append(Check("levels", "warn" if apart > rule.drift_limit else "pass", text))
    else:
        checks.append(Check("levels", "pass", "one level of step time"))
    checks.append(_blocks_check(estimate, rule, fixed))
    if fixed:
        checks.append(Check("tolerance", "unknown", f"a run of fixed length; the interval is ± {width}"))
    elif estimate.relative_half_width <= rule.tolerance:
        text = f"± {width}: within the requested ± {rule.tolerance:.2%}"
        if estimate.slowest_event_s:
            text += f"; an event rarer than one in {estimate.slowest_event_s:.2g} s may not have occurred in it"
        checks.append(Check("tolerance", "pass", text))
    else:
        text = f"± {width}: the maximum time of {rule.max_time_s:g} s is over, and ± {rule.tolerance:.2%} was requested"
        checks.append(Check("tolerance", "warn", text))
    return checks


def arithmetic_check(rate: float | None, seconds: float, units: float) -> Check:
    """Rate x time = work: the three figures of one window must agree."""
    if rate is None:
        return Check("arithmetic", "unknown", "there is no rate to multiply with the time")
    off = rate * seconds / units - 1.0 if units else math.inf
    text = f"rate x time is {rate * seconds:,.6g}, the counted work {units:,.6g}"
    if abs(off) <= ARITHMETIC or abs(rate * seconds - units) <= 0.5:  # work of copies is rounded to whole units
        return Check("arithmetic", "pass", text)
    return Check("arithmetic", "fail", f"{text}: {off:+.2%} apart, so one of the three is wrong")


def _blocks_check(estimate: Estimate, rule: StopRule, fixed: bool) -> Check:
    """Enough of them for the interval?

    The count is the smallest of several resolutions and uncertain: white noise that ends at the maximum time may show
    two thirds of what the rule asks of a series that stops by itself. An interval that would be within the tolerance
    though it were several times as wide needs fewer.
    """
    independent = estimate.independent_blocks
    text = f"{independent:.0f} effectively independent blocks of steps"
    if independent >= 0.5 * rule.min_independent_blocks:
        return Check("blocks", "pass", text)
    if independent >= FEW_BLOCKS and SLOW_FACTOR * estimate.relative_half_width <= rule.tolerance:
        return Check("blocks", "pass", f"{text}; few, but the interval is much narrower than requested")
    if fixed and independent >= FEW_BLOCKS:
        return Check("blocks", "unknown", f"{text}: how wide the interval should be is not well known")
    return Check("blocks", "warn", f"{text}: too few to trust the interval")


def clock_check(window: Window) -> Check:
    """Device time and host time of the same window must be the same time."""
    host_s = window.monotonic[1] - window.monotonic[0] - window.paused_s
    device_s = window.duration_s
    gap = device_s / host_s - 1 if host_s > 0 else 0.0
    # The first submission and the last synchronisation lie between the two: milliseconds.
    level: Level = "pass" if abs(gap) < 0.01 or abs(device_s - host_s) < 0.02 else "warn"
    return Check("clock", level, f"{device_s:.3f} s by {window.clock}, {host_s:.3f} s on the host")


def learning_checks(
    first: float, last: float, steps: int, moved: int, parameters: int, finite: bool, precision: str = "fp32"
) -> list[Check]:
    """Training must train."""
    checks = []
    losses = f"held-out loss {first:.4g} before and {last:.4g} after {steps} steps"
    if not (math.isfinite(first) and math.isfinite(last)):
        checks.append(Check("loss", "fail", losses))
    elif last < first:
        checks.append(Check("loss", "pass", losses))
    elif steps < FEW_STEPS:
        checks.append(Check("loss", "unknown", f"{losses}: too few steps to judge"))
    else:
        checks.append(Check("loss", "warn", f"{losses}: it did not fall"))
    text = f"{moved} of {parameters} parameter tensors changed"
    if 0 < moved < parameters and precision == "bf16-pure":
        # 1.0 has no neighbour nearer than 0.4 % in bf16, so the scales of norms stay put at usual learning rates.
        text += "; weights in bf16 lose an update that is smaller than half their spacing"
        checks.append(Check("parameters", "warn", text))
    else:
        checks.append(Check("parameters", "pass" if moved == parameters else "fail", text))
    text = "every parameter and the last loss are finite" if finite else "a parameter or the last loss is not finite"
    checks.append(Check("finite", "pass" if finite else "fail", text))
    return checks


def losses_check(finite: list[bool]) -> Check:
    """Of every step of the loop, by rank: a loss that is not a number for a while trains nothing meanwhile."""
    if all(finite):
        return Check("losses", "pass", "every loss in the window is finite")
    lost = [str(rank) for rank, good in enumerate(finite) if not good]
    of = f" on rank {', '.join(lost)}" if len(finite) > 1 else ""
    return Check("losses", "fail", f"the loss of at least one step in the window was not finite{of}")


def updates_check(steps: int, made: int, skipped: int) -> Check:
    """Each step of a training run updates the weights once; a gradient scaler may skip a few after an overflow."""
    if made != steps:
        return Check("updates", "fail", f"{made:,} optimizer steps in {steps:,} steps")
    text = f"{made - skipped:,} optimizer steps in {steps:,} steps"
    if not skipped:
        return Check("updates", "pass", text)
    text += f"; the gradient scaler skipped {skipped:,}"
    return Check("updates", "pass" if skipped <= max(1, MOST_SKIPPED * steps) else "warn", text)


@dataclass(frozen=True)
class StillTraining:
    """What some more of the measured steps did to the parameters, right after the window."""

    steps: int
    tensors: int  # that had changed since the run began
    changed: int  # of them, in these steps
    idle: int | None  # of them, those with no gradient or one of zeros throughout; None: it cannot be seen here
    idle_steps: int = 0  # of these steps, without any gradient, or after which no weight had changed
    stalled: int = 0  # parts of the window in which the weights stood still
    parts: int = 0

    def with_others(self, others: Sequence[StillTraining]) -> StillTraining:
        """The same of a model whose parts lie on several ranks."""
        idle = [one.idle for one in others]
        return StillTraining(
            steps=self.steps,
            tensors=sum(one.tensors for one in others),
            changed=sum(one.changed for one in others),
            idle=None if None in idle else sum(count or 0 for count in idle),
            idle_steps=min(one.idle_steps for one in others),
            stalled=max(one.stalled for one in others),
            parts=min(one.parts for one in others),
        )


def still_training_check(found: StillTraining, skipped: int, precision: str) -> Check:
    """Whether the model trained to the end of the window, and in each part of it."""
    name = "still-training"
    text = f"{found.changed} of {found.tensors} parameter tensors changed in {found.steps} steps after the window"
    if found.stalled > skipped:
        return Check(name, "fail", f"the weights stood still in {found.stalled} of {found.parts} parts of the window")
    if found.idle_steps and not skipped and precision != "fp16":
        return Check(name, "fail", f"{found.idle_steps} of {found.steps} steps after the window changed nothing")
    if found.idle:
        text += f"; {found.idle} had no gradient"
        return Check(name, "fail" if found.idle > FEW_IDLE * found.tensors else "warn", text)
    still = found.tensors - found.changed
    swallowed = precision == "bf16-pure" and found.changed > 0  # its spacing loses small updates
    if still and found.idle is None and not swallowed:  # captured: whether there are gradients cannot be seen
        return Check(name, "warn" if still <= FEW_IDLE * found.tensors else "fail", text)
    if still:
        text += "; updates of the others are too small to show"
    if found.parts:
        text += f"; weights moved in each of {found.parts} parts of the window"
    return Check(name, "pass", text)


def not_as_asked(made: Check) -> Check:
    """The same of ranks that exchanged no gradients: what one of them learned says nothing about the trial."""
    level = made.level if made.level == "fail" else "unknown"
    said = f"{made.message}; of one rank alone, since sync=off exchanges nothing"
    return replace(made, level=level, message=said)


OUTPUT_BOUND = {
    "default": 1e-2, "fp32": 1e-3, "tf32": 1e-2, "bf16": 6e-2, "bf16-pure": 6e-2, "fp16": 1e-2, "fp64": 1e-3,
}  # fmt: skip


def output_checks(error: float | None, finite: bool, precision: str) -> list[Check]:
    """Inference must answer, and what fp32 would have answered; `error` is None where that is zero throughout."""
    bound = OUTPUT_BOUND[precision]
    text = "the fp32 answer is zero throughout, so no other can be compared with it"
    if error is not None:
        text = f"relative distance to the fp32 answer {error:.2e}, at most {bound:.0e} in {precision}"
    return [
        Check("outputs", "pass" if error is not None and error <= bound else "fail", text),
        Check(
            "finite",
            "pass" if finite else "fail",
            "outputs are finite" if finite else "an output is not finite",
        ),
    ]


def loader_check(share: float | None) -> Check:
    if share is None:
        return Check("loader", "pass", "batches lie in device memory; there is no loader to wait for")
    text = f"{share:.1%} of step time waiting for data"
    return Check("loader", "pass" if share < 0.02 else "warn", text if share < 0.02 else f"input-bound: {text}")


def utilisation_check(mfu: Metric) -> Check:
    if mfu.value is None:
        return Check("utilisation", "unknown", mfu.reason or "")
    text = f"{mfu.value:.1%} of the peak ({mfu.source})"
    if mfu.value > 1:
        return Check("utilisation", "fail", f"{text}: more than possible, so a count or a peak is wrong")
    return Check("utilisation", "pass", text)

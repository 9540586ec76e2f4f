"""Checks made on a run by the rank itself: each a level and a sentence."""

from __future__ import annotations

import math
from typing import Any

from prony_node.measure.loop import Window
from prony_node.stats import Estimate, StopRule

Check = dict[str, str]
ARITHMETIC = 0.001  # by which rate x time may miss the work
FEW_STEPS = 100  # of training, under which a loss that did not fall says nothing


def check(name: str, level: str, message: str) -> Check:
    return {"name": name, "level": level, "message": message}


def series_checks(estimate: Estimate | None, rule: StopRule, fixed: bool) -> list[Check]:
    """Steady, levels, blocks, tolerance."""
    if estimate is None:
        reason = "too few steps were timed to judge"
        return [check(name, "unknown", reason) for name in ("steady", "levels", "blocks", "tolerance")]
    width = f"{estimate.relative_half_width:.2%}, {estimate.window_s:.3g} s"
    checks = []
    drift = "too few blocks to fit"
    if estimate.drift is not None and estimate.drift_half_width is not None:
        drift = f"{estimate.drift:+.2%} over the window (± {estimate.drift_half_width:.2%})"
    if estimate.drifting == "yes":
        checks.append(check("steady", "warn", f"the step time drifted: {drift}"))
    elif estimate.drifting == "no":
        checks.append(check("steady", "pass", f"no drift shown: {drift}"))
    else:
        text = f"a drift of {rule.drift_limit:.0%} could not have been told from this noise: {drift}"
        checks.append(check("steady", "unknown", text))
    if estimate.levels > 1:
        values = ", ".join(f"{value * 1e3:.4g} ms" for value in estimate.level_values_s)
        checks.append(check("levels", "warn", f"the step time jumped between {estimate.levels} levels: {values}"))
    else:
        checks.append(check("levels", "pass", "one level of step time"))
    # The count is the smallest of several resolutions and uncertain: white noise that ends at the maximum time may
    # show two thirds of what the rule asks of a series that stops by itself.
    enough = estimate.independent_blocks >= 0.5 * rule.min_independent_blocks
    text = f"{estimate.independent_blocks:.0f} effectively independent blocks of steps"
    checks.append(check("blocks", "pass" if enough else "warn", text + ("" if enough else ": too few to trust")))
    if fixed:
        checks.append(check("tolerance", "unknown", f"a run of fixed length; the interval is ± {width}"))
    elif estimate.relative_half_width <= rule.tolerance:
        text = f"± {width}: within the requested ± {rule.tolerance:.2%}"
        if estimate.slowest_event_s:
            text += f"; an event rarer than one in {estimate.slowest_event_s:.2g} s may not have occurred in it"
        checks.append(check("tolerance", "pass", text))
    else:
        text = f"± {width}: the maximum time of {rule.max_time_s:g} s is over, and ± {rule.tolerance:.2%} was requested"
        checks.append(check("tolerance", "warn", text))
    return checks


def arithmetic_check(rate: float | None, seconds: float, units: float) -> Check:
    """Rate x time = work: the three figures of one window must agree."""
    if rate is None:
        return check("arithmetic", "unknown", "there is no rate to multiply with the time")
    off = rate * seconds / units - 1.0 if units else math.inf
    text = f"rate x time is {rate * seconds:,.6g}, the counted work {units:,.6g}"
    if abs(off) <= ARITHMETIC:
        return check("arithmetic", "pass", text)
    return check("arithmetic", "fail", f"{text}: {off:+.2%} apart, so one of the three is wrong")


def clock_check(window: Window) -> Check:
    """Device time and host time of the same window must be the same time."""
    host_s = window.monotonic[1] - window.monotonic[0] - window.paused_s
    device_s = window.duration_s
    gap = device_s / host_s - 1 if host_s > 0 else 0.0
    # The first submission and the last synchronisation lie between the two: milliseconds.
    level = "pass" if abs(gap) < 0.01 or abs(device_s - host_s) < 0.02 else "warn"
    return check("clock", level, f"{device_s:.3f} s by {window.clock}, {host_s:.3f} s on the host")


def learning_checks(
    first: float, last: float, steps: int, moved: int, parameters: int, finite: bool, precision: str = "fp32"
) -> list[Check]:
    """Training must train."""
    checks = []
    losses = f"held-out loss {first:.4g} before and {last:.4g} after {steps} steps"
    if not (math.isfinite(first) and math.isfinite(last)):
        checks.append(check("loss", "fail", losses))
    elif last < first:
        checks.append(check("loss", "pass", losses))
    elif steps < FEW_STEPS:
        checks.append(check("loss", "unknown", f"{losses}: too few steps to judge"))
    else:
        checks.append(check("loss", "warn", f"{losses}: it did not fall"))
    text = f"{moved} of {parameters} parameter tensors changed"
    if 0 < moved < parameters and precision == "bf16-pure":
        # 1.0 has no neighbour nearer than 0.4 % in bf16, so the scales of norms stay put at usual learning rates.
        text += "; weights in bf16 lose an update that is smaller than half their spacing"
        checks.append(check("parameters", "warn", text))
    else:
        checks.append(check("parameters", "pass" if moved == parameters else "fail", text))
    text = "every parameter and the last loss are finite" if finite else "a parameter or the last loss is not finite"
    checks.append(check("finite", "pass" if finite else "fail", text))
    return checks


def not_as_asked(made: Check) -> Check:
    """The same of ranks that exchanged no gradients: what one of them learned says nothing about the trial."""
    level = made["level"] if made["level"] == "fail" else "unknown"
    return {
        **made,
        "level": level,
        "message": f"{made['message']}; of one rank alone, since sync=off exchanges nothing",
    }


OUTPUT_BOUND = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 6e-2, "bf16-pure": 6e-2, "fp16": 1e-2, "fp64": 1e-3}


def output_checks(error: float | None, finite: bool, precision: str) -> list[Check]:
    """Inference must answer, and what fp32 would have answered; `error` is None where that is zero throughout."""
    bound = OUTPUT_BOUND[precision]
    text = "the fp32 answer is zero throughout, so no other can be compared with it"
    if error is not None:
        text = f"relative distance to the fp32 answer {error:.2e}, at most {bound:.0e} in {precision}"
    return [
        check("outputs", "pass" if error is not None and error <= bound else "fail", text),
        check(
            "finite",
            "pass" if finite else "fail",
            "outputs are finite" if finite else "an output is not finite",
        ),
    ]


def loader_check(share: float | None) -> Check:
    if share is None:
        return check("loader", "pass", "batches lie in device memory; there is no loader to wait for")
    text = f"{share:.1%} of step time waiting for data"
    return check("loader", "pass" if share < 0.02 else "warn", text if share < 0.02 else f"input-bound: {text}")


def utilisation_check(mfu: dict[str, Any]) -> Check:
    if mfu["value"] is None:
        return check("utilisation", "unknown", mfu["reason"])
    text = f"{mfu['value']:.1%} of the peak ({mfu['source']})"
    if mfu["value"] > 1:
        return check("utilisation", "fail", f"{text}: more than possible, so a count or a peak is wrong")
    return check("utilisation", "pass", text)

"""Numbers as people read them: SI prefixes, binary bytes, as many digits as mean something."""

from __future__ import annotations

import math
from dataclasses import replace

from prony.analysis.summary import Headline, Quality
from prony_node.contract.errors import counted
from prony_node.contract.record import Metric

NOTHING = "–"
NOT_REACHED = "not reached"
# Metrics whose interval is of the steady window.
OF_WINDOW = ("throughput", "throughput_per_device", "step_time", "bus_bandwidth", "algorithm_bandwidth")
SHARES = ("mfu", "data_wait_share", "cpu_utilisation")
SCORED_SHARES = ("accuracy", "exact_match", "miou")  # scores whose targets people give in percent
LARGE = 1e7  # from which on thousands are counted no more: 12.4 M tokens/s, 24.8 MJ
SMALL = 1e-9  # under which there are more zeros than a reader counts: joules a FLOP
WITH_PREFIX = ("FLOP/", "B/")  # rates in units that take SI prefixes, as images do not
_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_number(value: float, digits: int = 4) -> str:
    """A number with this many digits that mean something, thousands set apart: 12,650 or 0.05312."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < SMALL:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1  # 999.96 became 1000
    return f"{rounded:,.{max(0, min(decimals, 12))}f}"


def format_rate(
    value: float | None,
    unit: str | None,
    low: float | None = None,
    high: float | None = None,
    window_s: float | None = None,
) -> str:
    """A rate with its unit, half of its interval and the window that it is of: 6,843 images/s ± 0.31 %, 10 s."""
    width = "" if value is None else format_half_width(value, low, high, window_s)
    if value is None:
        return NOTHING
    if unit and unit.startswith(WITH_PREFIX):  # a ceiling's own: 712.3 TFLOP/s
        return format_si(value, unit) + width
    if unit == "J" and abs(value) >= LARGE:
        return format_si(value, unit) + width
    shown = f"{format_number(value / 1e6)} M" if abs(value) >= LARGE else format_number(value)
    return f"{shown} {unit or ''}".rstrip() + width


def format_half_width(value: float, low: float | None, high: float | None, window_s: float | None = None) -> str:
    """Half of an interval in percent and, where it is of one steady window, how long that was: ± 0.1 %, 10 s."""
    if low is None or high is None or value <= 0.0:
        return ""
    share = max(high - value, value - low) / value
    return f" ± {format_share(share, digits=2)}" + format_window(window_s)


def format_window(window_s: float | None) -> str:
    """The length of a steady window as it stands beside ±: whole seconds, or two digits of a short one."""
    if window_s is None or window_s <= 0.0:
        return ""
    return f", {window_s:,.0f} s" if window_s >= 9.5 else f", {window_s:.2g} s"


def format_share(value: float, digits: int = 3) -> str:
    """A share in percent: 41.2 %."""
    return f"{format_number(100.0 * value, digits)} %"


def format_seconds(value: float | None) -> str:
    """A time in the unit that suits it: 40.48 ms, 12.3 s, 3 min 05 s."""
    if value is None:
        return NOTHING
    if abs(value) >= 120.0:
        minutes, seconds = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"
    if value == 0.0:
        return "0 s"
    for size, unit in _SECONDS:
        if abs(value) >= 0.99995 * size or unit == "ns":
            return f"{format_number(value / size)} {unit}"
    raise AssertionError("every time has a unit")


def format_bytes(value: float | None) -> str:
    """Memory in binary units: 44.20 GiB."""
    if value is None:
        return NOTHING
    for size, unit in _BYTES:
        if abs(value) >= size:
            return f"{format_number(value / size)} {unit}"
    return f"{value:,.0f} B"


def format_si(value: float, unit: str) -> str:
    """A count with an SI prefix: 24.50 GFLOP."""
    for size, prefix in _SI:
        if abs(value) >= size:
            return f"{format_number(value / size)} {prefix}{unit}"
    return f"{format_number(value)} {unit.strip()}"


def format_metric(name: str, metric: Metric | None, window_s: float | None = None) -> str:
    """A metric of a record with its interval; a dash and the reason where it was not measured.

    `window_s`: of the record's steady window, shown beside intervals that come from it.
    """
    if metric is None:
        return NOTHING
    value, unit = metric.value, metric.unit or ""
    if value is None:
        return f"{NOTHING} ({metric.reason})"
    if name not in OF_WINDOW:
        window_s = None
    if name == "quality":
        return format_score(unit, value, metric.low, metric.high)
    if unit == "s":
        text = format_seconds(value)
    elif unit == "B":
        text = format_bytes(value)
    elif unit == "FLOP":
        text = format_si(value, unit)
    elif unit == "1":
        if name in SHARES:  # an interval in percent of a percentage would be read wrongly
            return format_share(value) + _share_interval(metric)
        text = format_number(value)
    else:
        return format_rate(value, unit, metric.low, metric.high, window_s)
    return text + format_half_width(value, metric.low, metric.high, window_s)


def format_score(score: str, value: float, low: float | None = None, high: float | None = None) -> str:
    """A score by its name, with the ends of its interval: accuracy 0.9342 (0.9290 to 0.9390)."""
    ends = "" if low is None or high is None else f" ({format_number(low)} to {format_number(high)})"
    return f"{score} {format_number(value)}{ends}"


def format_target(score: str, target: float) -> str:
    """A target as people say it: 93 %, or a loss of 1.3 as it is."""
    return f"{100.0 * target:.6g} %" if score in SCORED_SHARES else f"{target:.6g}"


def format_quality(quality: Quality) -> str:
    """What was learned, and how long the target took: accuracy 0.9342 after 17 epochs, 93 % reached in 41.30 s."""
    text = format_score(quality.score, quality.value)
    if quality.epoch is not None:
        text += f" after {counted(quality.epoch, 'epoch')}"
    if quality.target is None:
        return text
    text += f", {format_target(quality.score, quality.target)} "
    if not quality.reached:
        return text + NOT_REACHED
    return text + ("reached" if quality.time_s is None else f"reached in {format_seconds(quality.time_s)}")


def format_time_to(quality: Quality | None) -> str:
    """The time to the target for a column."""
    if quality is None or quality.target is None:
        return NOTHING
    return format_seconds(quality.time_s) if quality.reached else NOT_REACHED


def _share_interval(metric: Metric) -> str:
    low, high = metric.low, metric.high
    return "" if low is None or high is None else f" ({format_share(low)} to {format_share(high)})"


def format_value(name: str, metric: Metric | None) -> str:
    """The value of a metric without interval or reason, for a column."""
    return NOTHING if metric is None else format_metric(name, replace(metric, low=None, high=None))


def format_headline(headline: Headline) -> str:
    """The headline in a line: the rate, or how the run ended, with what its interval covers."""
    if headline.status == "failed":
        return f"failed, {headline.failure_kind}: {headline.failure_message}"
    rate = format_rate(headline.rate, headline.unit, headline.low, headline.high, headline.window_s)
    if headline.rate is None:
        rate = f"no rate: {headline.failure_message or headline.reason}"
    elif headline.relative_half_width is not None and headline.interval:
        covers = headline.interval if "%" in headline.interval else f"95 %, {headline.interval}"
        rate = f"{rate} ({covers})"
    learned = f"; {format_quality(headline.quality)}" if headline.quality else ""
    return f"{headline.status}, {rate}{learned}" if headline.status != "ok" else f"{rate}{learned}"

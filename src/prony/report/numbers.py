"""Numbers as people read them: SI prefixes, binary bytes, as many digits as mean something."""

from __future__ import annotations

import math
from typing import Any

from prony.analysis.headline import Headline

NOTHING = "–"
SHARES = ("mfu", "data_wait_share", "cpu_utilisation")
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


def format_rate(value: float | None, unit: str | None, low: float | None = None, high: float | None = None) -> str:
    """A rate with its unit and, where there is one, half of its interval: 6,843 images/s ± 0.31 %."""
    if value is None:
        return NOTHING
    if unit and unit.startswith(WITH_PREFIX):  # a ceiling's own: 712.3 TFLOP/s
        return format_si(value, unit) + format_half_width(value, low, high)
    number = f"{format_number(value / 1e6)} M" if abs(value) >= 1e7 else format_number(value)
    return f"{number} {unit or ''}".rstrip() + format_half_width(value, low, high)


def format_half_width(value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None or value <= 0.0:
        return ""
    share = max(high - value, value - low) / value
    return f" ± {format_share(share, digits=2)}"


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


def format_metric(name: str, metric: dict[str, Any] | None) -> str:
    """A metric of a record with its interval; a dash and the reason where it was not measured."""
    if not metric:
        return NOTHING
    value, unit = metric.get("value"), metric.get("unit", "")
    if value is None:
        return f"{NOTHING} ({metric['reason']})" if metric.get("reason") else NOTHING
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
        return format_rate(value, unit, metric.get("low"), metric.get("high"))
    return text + format_half_width(value, metric.get("low"), metric.get("high"))


def _share_interval(metric: dict[str, Any]) -> str:
    low, high = metric.get("low"), metric.get("high")
    return "" if low is None or high is None else f" ({format_share(low)} to {format_share(high)})"


def format_headline(headline: Headline) -> str:
    """The headline in a line: the rate, or how the run ended, with what its interval covers."""
    if headline.status == "failed":
        return f"failed, {headline.failure_kind}: {headline.failure_message}"
    rate = format_rate(headline.rate, headline.unit, headline.low, headline.high)
    if headline.rate is None:
        rate = f"no rate: {headline.failure_message or headline.reason}"
    elif headline.relative_half_width is not None and headline.interval:
        covers = headline.interval if "%" in headline.interval else f"95 %, {headline.interval}"
        rate = f"{rate} ({covers})"
    return f"{headline.status}, {rate}" if headline.status != "ok" else rate

"""Where the time of several devices went: what is lost against one device, part by part.

Everything is a share of the step time on N devices, and the parts are steps of one ladder, so that they add up to what
was lost: the time that the work takes at the one device's rate; the further wait for input; what else the ranks take
when none waits for another (the run with sync=off); the slowest of them beyond their mean; and the rest of the way to
the time with synchronisation, which is exposed communication. Noise can put one rung below another: it is moved to its
neighbour, so that no part is below nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prony.analysis.compare import Side, rate_ratio, side
from prony.analysis.scaling_law import Figure
from prony.analysis.scaling_record import are_copies, data_wait, is_summed, rank_paces, rank_step_times
from prony.analysis.settings import Record
from prony.analysis.variation import Repeat
from prony_node.stats import mean_interval

NO_PACES = "the records do not hold how long each rank takes by itself"
COMMUNICATION, INPUT, IMBALANCE, REST = "communication", "input", "imbalance", "rest"


@dataclass(frozen=True)
class LostPart:
    """One part of what was lost; None, with a reason, where it was not measured and is in the rest."""

    name: str
    share: Figure | None
    reason: str | None = None


@dataclass(frozen=True)
class Losses:
    """What N devices lose against N times one: a share of the step time, and its parts, which add up to it."""

    lost: Figure
    parts: list[LostPart]
    exposed: Figure | None  # what sync=off saves, as measured: communication and imbalance, before the ladder
    doubts: list[str]


def losses(
    base: Sequence[Record],
    synchronised: Sequence[Record],
    free: Sequence[Record],
    efficiency: Figure,
    no_free: str,
    pool: Sequence[Repeat] = (),
) -> Losses:
    """The parts, from the good runs on one device, on N, and on N with sync=off; `no_free` is why there are none.

    `pool` has the runs of the series: a single run takes the variation between runs from its repeats.
    """
    ends = (None if end is None else max(0.0, 1.0 - end) for end in (efficiency.high, efficiency.low))
    lost = Figure(max(0.0, 1.0 - efficiency.value), *ends)
    ideal = 1.0 - lost.value
    if free:
        ratio = rate_figure(
            side(synchronised, pool, free), side(free, pool, synchronised)
        )  # the step time with sync=off over that with it
        communication, imbalance, alone = _synchronisation(ratio, _apart(synchronised, free), ideal)
        exposed, doubts = _exposed(ratio), _doubts(ratio, efficiency)
    elif all(are_copies(record) for record in synchronised):
        communication, imbalance = (LostPart(name, Figure(0.0)) for name in (COMMUNICATION, IMBALANCE))
        alone, exposed, doubts = 1.0, None, []
    else:
        communication, imbalance = (LostPart(name, None, no_free) for name in (COMMUNICATION, IMBALANCE))
        alone, exposed, doubts = 1.0, None, []
    doubts += _stragglers([*synchronised, *free])
    waited, reason = _further_wait(base, free or synchronised, alone, ideal)
    held = 0.0 if waited is None else _between(waited.value, 0.0, alone - ideal)
    waiting = LostPart(INPUT, None if waited is None else _around(held, waited.low, waited.high), reason)
    rest = LostPart(REST, Figure(max(0.0, alone - ideal - held)))
    return Losses(lost, [communication, waiting, imbalance, rest], exposed, doubts)


def _synchronisation(
    ratio: Figure, apart: tuple[float, float] | None, ideal: float
) -> tuple[LostPart, LostPart, float]:
    """Communication and imbalance, and the time that ranks take which do not wait for each other."""
    mean, slowest = apart or (1.0, 1.0)
    alone = _between(ratio.value * mean, ideal, 1.0)
    last = _between(ratio.value * slowest, alone, 1.0)
    # How far apart the ranks are is taken as known here: a mean over the runs, without an interval of its own.
    ends = (None if end is None else 1.0 - slowest * end for end in (ratio.high, ratio.low))
    communication = LostPart(COMMUNICATION, _around(1.0 - last, *ends))
    if apart is None:
        return communication, LostPart(IMBALANCE, None, NO_PACES), alone
    return communication, LostPart(IMBALANCE, Figure(last - alone)), alone


def _apart(synchronised: Sequence[Record], free: Sequence[Record]) -> tuple[float, float] | None:
    """The mean of the ranks, and the slowest, each over what the rate with sync=off stands for; None where not known.

    How long a rank takes by itself is the mean over all runs of this count: of a single short look at equal ranks one
    would always seem to be the slowest. Ranks that wait for nobody add their rates, so the mean that counts is the
    harmonic one. The rate with sync=off is that of the first rank, unless it was summed; it may have been held up where
    the ranks agree when to stop, but the slowest never is, so the way leads over the slowest's own step time.
    """
    paces = [rank_paces(record) for record in (*synchronised, *free)]
    ranks = set(paces[0])
    if len(ranks) < 2 or any(set(one) != ranks for one in paces):
        return None
    means = [mean_interval([one[rank] for one in paces]).mean for rank in ranks]
    behind = max(means) * math.fsum(1.0 / pace for pace in means) / len(means)  # the slowest over the mean
    if all(is_summed(record) for record in free):
        return 1.0, behind
    windows = [rank_step_times(record) for record in free]
    if any("0" not in one for one in windows):
        return None
    slowest = mean_interval([max(one.values()) / one["0"] for one in windows]).mean
    return slowest / behind, slowest


def _exposed(ratio: Figure) -> Figure:
    ends = (None if end is None else 1.0 - end for end in (ratio.high, ratio.low))
    return Figure(1.0 - ratio.value, *ends)


def _doubts(ratio: Figure, efficiency: Figure) -> list[str]:
    """What cannot be, were synchronisation all that sync=off leaves out."""
    if ratio.low is not None and ratio.low > 1.0:
        return [
            f"a step with sync=off takes {ratio.value:.3g} times as long as one with it: "
            "something other than synchronisation differs between these runs"
        ]
    if efficiency.low is not None and ratio.high is not None and efficiency.low > ratio.high:
        return [
            f"with sync=off each device does {efficiency.value / ratio.value:.1%} of what one does alone, so that "
            "synchronisation costs more than was lost: something else was gained, or the run on one device "
            "was slow".replace("%", " %", 1)
        ]
    return []


def _stragglers(many: Sequence[Record]) -> list[str]:
    """What the runs themselves say of a rank that is late."""
    found = [check for record in many for check in record["checks"] if check["name"] == "ranks"]
    said = [str(check.get("message") or "") for check in found if check["level"] in ("warn", "fail")]
    return [said[0] + (f" (and the like in {len(said) - 1} more)" if len(said) > 1 else "")] if said else []


def _between(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))


def rate_figure(ours: Side, theirs: Side) -> Figure:
    """Our rate over theirs, both known, with an interval where both have one."""
    found = rate_ratio(ours, theirs)
    if found is None:
        return Figure((ours.rate or 0.0) / (theirs.rate or 1.0))
    return Figure(found.ratio, found.low, found.high)


def _further_wait(
    base: Sequence[Record], many: Sequence[Record], time: float, ideal: float
) -> tuple[Figure | None, str | None]:
    """The wait for input on N devices beyond that on one, as a share of the step time on N."""
    ours, theirs = (_waits(records) for records in (base, many))
    if isinstance(ours, str) or isinstance(theirs, str):
        return None, ours if isinstance(ours, str) else str(theirs)
    before = mean_interval(ours).mean * ideal
    return _mean([wait * time - before for wait in theirs]), None


def _waits(records: Sequence[Record]) -> list[float] | str:
    found: list[float] = []
    for record in records:
        share, reason = data_wait(record)
        if share is None:
            return reason
        found.append(share)
    return found


def _mean(values: Sequence[float]) -> Figure:
    """The mean of repeats, with Student's interval where there are several."""
    found = mean_interval(values)
    return Figure(found.mean, found.low, found.high)


def _around(value: float, low: float | None, high: float | None) -> Figure:
    """A share with its interval, held to what a share can be and to where the ladder put its value."""
    if low is None or high is None:
        return Figure(value)
    return Figure(value, min(value, _between(low, 0.0, 1.0)), max(value, _between(high, 0.0, 1.0)))

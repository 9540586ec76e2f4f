"""Above 100 %: N devices cannot do more than N times one, so something was wrong with the one, or differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prony.analysis.scaling_changes import Change
from prony.analysis.scaling_law import STRONG, Figure
from prony.analysis.scaling_record import data_wait
from prony.analysis.settings import Record
from prony.analysis.stated import number
from prony_node.contract.record import LEVELS

FULL = 0.9  # of the device's memory, from which on the allocator may have to give back and ask again
CLOCK_RANGE = re.compile(r"(\d+) to (\d+) MHz")  # as the check of clocks states it
SLOWER_CLOCK = 0.02
WAITS = 0.02  # of the step, more on one device than on several
SPOILS = (
    "throttled", "clocks", "memory-clock", "foreign-processes", "pcie-link", "device-errors", "host-cpus", "cpu-limit",
    "swap", "steady", "levels",
)  # checks that explain a slow run  # fmt: skip
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Alarm:
    """An efficiency above 100 %, with its probable causes, the likeliest first."""

    devices: int
    efficiency: Figure
    shown: bool  # whether all of the interval lies above
    causes: list[str]


def find_alarm(
    devices: int,
    efficiency: Figure,
    base: Sequence[Record],
    many: Sequence[Record],
    kind: str,
    changed: Sequence[Change],
) -> Alarm | None:
    """The alarm of this count; None up to 100 %."""
    if efficiency.value <= 1.0:
        return None
    shown = efficiency.low is not None and efficiency.low > 1.0
    causes = _causes(devices, base, many, kind, changed)
    if not shown:
        told = "the interval includes 100 %" if efficiency.low is not None else "there is no interval"
        causes = [f"chance: {told}, so nothing above 100 % is shown", *causes]
    return Alarm(devices, efficiency, shown, causes)


def _causes(
    devices: int, base: Sequence[Record], many: Sequence[Record], kind: str, changed: Sequence[Change]
) -> list[str]:
    found = [f"not only the devices changed: {one.sentence}" for one in changed if str(devices) in one.others]
    found += _checks(base, many)
    found += _clocks(base, many)
    found += _waiting(base, many)
    found += _memory(base, many, kind)
    if not found:
        found.append(
            "the records name none: in settings, facts, clocks, throttling, foreign processes and the wait for data "
            "nothing speaks against the run on one device; repeat it"
        )
    return found


def _checks(base: Sequence[Record], many: Sequence[Record]) -> list[str]:
    """Checks that were worse on one device than on several: it was held back, so it is a poor measure of one."""
    found = []
    for name in SPOILS:
        ours, theirs = (max((_level(record, name) for record in records), default=0) for records in (base, many))
        if ours >= LEVELS.index("warn") and ours > theirs:
            said = next(_message(record, name) for record in base if _level(record, name) == ours)
            found.append(f"the run on one device was slowed down ({name}): {said}")
    return found


def _level(record: Record, name: str) -> int:
    levels = [check["level"] for check in record["checks"] if check["name"] == name]
    return max((LEVELS.index(level) for level in levels), default=0)


def _message(record: Record, name: str) -> str:
    return next(str(check.get("message") or "") for check in record["checks"] if check["name"] == name)


def _clocks(base: Sequence[Record], many: Sequence[Record]) -> list[str]:
    """A clock that was lower on one device all the time, which the check of a run by itself cannot see."""
    ours, theirs = (
        [
            (int(match.group(1)), int(match.group(2)))
            for record in records
            if _has(record, "clocks") and (match := CLOCK_RANGE.search(_message(record, "clocks")))
        ]
        for records in (base, many)
    )
    if not ours or not theirs:
        return []
    highest, lowest = max(high for _, high in ours), min(low for low, _ in theirs)
    if highest >= (1.0 - SLOWER_CLOCK) * lowest:
        return []
    return [f"the clock was lower on one device: {highest} MHz at most, against {lowest} MHz at least"]


def _has(record: Record, name: str) -> bool:
    return any(check["name"] == name for check in record["checks"])


def _waiting(base: Sequence[Record], many: Sequence[Record]) -> list[str]:
    ours, theirs = (
        [share for record in records if (share := data_wait(record)[0]) is not None] for records in (base, many)
    )
    if not ours or not theirs or min(ours) <= max(theirs) + WAITS:
        return []
    return [
        f"the run on one device waited for input, {min(ours):.1%} of the step against {max(theirs):.1%}: "
        "more devices brought more loader workers".replace("%", " %")
    ]


def _memory(base: Sequence[Record], many: Sequence[Record], kind: str) -> list[str]:
    """A full device, or work that came to fit a cache."""
    held, room = _most(base, "peak_memory_reserved"), _fact(base, "memory_total_bytes")
    found = []
    if held is not None and room and held > FULL * room:
        share = f"{held / room:.0%}".replace("%", " %")
        found.append(f"the run on one device was short of memory: {share} of the device's was in use")
    cache = _cache_bytes(base)
    ours, theirs = _most(base, "peak_memory"), _most(many, "peak_memory")
    if cache and ours and theirs and theirs <= cache < ours:
        found.append(f"a cache: what a device works on fits its {cache / 2**20:.0f} MiB now, and did not on one device")
    elif kind == STRONG and not found:
        found.append(
            "a cache: in strong scaling each device works on less, and more of that stays close; "
            "the records do not show whether it did"
        )
    return found


def _most(records: Sequence[Record], name: str) -> float | None:
    values = [number((record["metrics"].get(name) or {}).get("value")) for record in records]
    return max((value for value in values if value is not None), default=None)


def _fact(records: Sequence[Record], name: str) -> float | None:
    devices = [device for record in records for device in record["facts"].get("devices") or []]
    return next((found for device in devices if (found := number(device.get(name))) is not None), None)


def _cache_bytes(records: Sequence[Record]) -> float | None:
    """The last cache before the device's memory: a GPU's L2, a CPU's L3."""
    on_device = _fact(records, "l2_cache_bytes")
    if on_device is not None:
        return on_device
    for record in records:
        host: dict[str, Any] = record["facts"].get("host") or {}
        caches = (host.get("cpu") or {}).get("caches") or {}
        match = re.fullmatch(r"(\d+)([KMG])i?B?", str(caches.get("L3") or caches.get("L2") or ""))
        if match:
            return float(match.group(1)) * UNITS[match.group(2)]
    return None

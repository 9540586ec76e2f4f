"""What else changed while the devices did: a scaling series answers one question, or says by what it is confounded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prony.analysis.facts import ROOMS, fact_differences
from prony.analysis.scaling_law import STRONG
from prony.analysis.scaling_record import cores_each, device_count
from prony.analysis.settings import DRAWN, LABELS, Record, setting_differences, show_setting

# What a series varies, and what follows from it; cores are those of a node, and compared as those of a rank.
SCALED = ("devices", "nodes", "sync", "global_batch", "learning_rate", "cores")
# Which of several alike a device is, and where it is plugged in: other devices are the point of the series.
PLACE = re.compile(r"devices\.0\.(uuid|rank|host|pci\.(numa_node|cpus))")


@dataclass(frozen=True)
class Change:
    """Something besides the number of devices that is not what it was on one device."""

    what: str  # a setting's name, or a room of facts: machine, software
    one: Any  # on one device
    others: dict[str, Any]  # by the number of devices

    @property
    def sentence(self) -> str:
        values = ", ".join(f"{show_setting(value)} on {devices}" for devices, value in self.others.items())
        return f"{self.what}: {show_setting(self.one)} on one device, {values}"


def changes(base: Record, others: Sequence[Record], kind: str) -> list[Change]:
    """Settings and facts of the others that differ from the base's without following from the number of devices."""
    allowed = {*SCALED, *LABELS, *DRAWN, *(("batch_size",) if kind == STRONG else ())}
    found: dict[str, Change] = {}
    for record in others:
        devices = str(device_count(record))
        for difference in setting_differences(base, record):
            # What only one side has follows from another setting, and that is compared itself.
            if difference.name in allowed or difference.a is None or difference.b is None:
                continue
            change = found.setdefault(difference.name, Change(difference.name, difference.a, {}))
            change.others[devices] = difference.b
        cores, theirs = cores_each(base), cores_each(record)
        shared = [("cores of a rank", cores, theirs)] if cores != theirs else []
        for name, one, other in [*shared, *_facts(base, record)]:
            found.setdefault(name, Change(name, one, {})).others.setdefault(devices, other)
    return list(found.values())


def _facts(base: Record, record: Record) -> list[tuple[str, Any, Any]]:
    """Facts that differ, each device of the record held against the one of the base."""
    ours = base["facts"].get("devices") or [{}]
    theirs = record["facts"].get("devices") or [{}]
    found: dict[str, tuple[str, Any, Any]] = {}
    for device in theirs:
        alone = {**record, "facts": {**record["facts"], "devices": [device]}}
        for one in fact_differences({**base, "facts": {**base["facts"], "devices": ours[:1]}}, alone).matter:
            if not PLACE.fullmatch(one.name):
                found.setdefault(one.name, (one.name, one.a, one.b))
    for name in ("machine", "software"):
        a, b = ((side.get("fingerprint") or {}).get(name) for side in (base, record))
        explained = any(ROOMS.get(fact.partition(".")[0]) == name for fact in found)
        if a != b and a is not None and b is not None and not explained:
            found[f"fingerprint of the {name}"] = (f"fingerprint of the {name}", a, b)
    return list(found.values())

"""Which records are a scaling series."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from prony.analysis.scaling_law import STRONG, WEAK
from prony.analysis.scaling_record import cores_each, device_batch, device_count, global_batch, is_free
from prony.analysis.settings import DRAWN, Record
from prony_node.contract.parallel import SEVERAL_ONLY
from prony_node.contract.record import rate_fails

VARIED = {"devices", "nodes", "sync", "batch_size", "global_batch", *DRAWN}


def find_series(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """The series among these records: one device and more, asked for with the same settings and the same batch.

    A scheduler gives each count the nodes that are free: what is in no machine's own series is one over several
    machines of one kind.
    """
    found = []
    for kind in (WEAK, STRONG):
        for group in _grouped(records, partial(_key, kind=kind)):
            own = [series for those in _grouped(group, _machine) for series in _series_in(those)]
            found += [(kind, series) for series in (*own, *_over_machines(group, own))]
    return found


def _over_machines(group: list[Record], own: list[list[Record]]) -> list[list[Record]]:
    """The series of what no machine has in its own: by itself, else with the machines that have one."""
    known = {id(record) for series in own for record in series}
    rest = [record for record in group if id(record) not in known]
    if alone := _series_in(rest):
        return alone
    more = {id(record) for record in rest if _counts(record) and device_count(record) > 1}
    return [series for series in _series_in(group) if any(id(record) in more for record in series)]


def asked_of(record: Record) -> dict[str, Any]:
    """Settings as requested, without those that a series varies."""
    settings = dict(record["trial"]["settings"])
    if "cores" in settings:
        settings["cores"] = cores_each(record)
    return {name: value for name, value in settings.items() if name not in VARIED}


def constant_batch(record: Record, kind: str) -> int | None:
    return device_batch(record) if kind == WEAK else global_batch(record)


def _grouped(records: Sequence[Record], key: Callable[[Record], str]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def _series_in(records: Sequence[Record]) -> list[list[Record]]:
    """One device has no form of parallel work, so it stands beside each that the others have."""
    alone = [record for record in records if device_count(record) == 1]
    forms = _grouped([record for record in records if device_count(record) > 1], _form)
    return [series for those in forms if _is_series(series := [*alone, *those])]


def _is_series(records: Sequence[Record]) -> bool:
    counts = {device_count(record) for record in records if _counts(record)}
    return 1 in counts and len(counts) > 1


def _counts(record: Record) -> bool:
    return record["status"] == "ok" and not rate_fails(record) and not is_free(record)


def _form(record: Record) -> str:
    return _text({name: value for name, value in asked_of(record).items() if name in SEVERAL_ONLY})


def _key(record: Record, kind: str) -> str:
    asked = {name: value for name, value in asked_of(record).items() if name not in SEVERAL_ONLY}
    facts = record.get("facts") or {}
    cpu = (facts.get("host") or {}).get("cpu") or {}
    device = (facts.get("devices") or [{}])[0].get("name")
    kind_of_machine = [cpu.get("model"), cpu.get("threads"), device]
    return _text([record["trial"]["workload"], asked, constant_batch(record, kind), kind_of_machine])


def _machine(record: Record) -> str:
    return str((record.get("fingerprint") or {}).get("machine"))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)

"""What a machine's links can do, measured by a collective: it stands beside what a series sends over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prony.analysis.scaling_law import Figure
from prony.analysis.scaling_record import device_count, node_count
from prony.analysis.settings import Record, settings_of
from prony.analysis.stated import number

OPERATIONS = {"ddp": "allreduce", "fsdp": "allgather"}  # what most of a step's exchange is, by the form of the work


@dataclass(frozen=True)
class Link:
    """The bus bandwidth that a collective reached with its largest message, between as many devices."""

    run: str
    operation: str
    bandwidth: Figure  # bytes per second


def operation_of(record: Record) -> str | None:
    """The collective that shows what the exchange of this run could reach; None where no one does."""
    return OPERATIONS.get(str(settings_of(record).get("parallel", "")))


def find_link(ours: Sequence[Record], collectives: Sequence[Record]) -> Link | None:
    """Of the good runs of that collective, between as many devices of the same machine, the latest."""
    if not ours:
        return None
    found = [one for one in collectives if one["status"] == "ok" and _beside(one, ours[0]) and _bandwidth(one)]
    if not found:
        return None
    record = max(found, key=lambda one: (str(one.get("ended") or ""), str(one["id"])))
    bandwidth = _bandwidth(record)
    assert bandwidth is not None
    return Link(str(record["id"]), str(record["trial"]["workload"]), bandwidth)


def _beside(collective: Record, ours: Record) -> bool:
    theirs, own = ((one.get("fingerprint") or {}).get("machine") for one in (collective, ours))
    return (
        collective["trial"]["workload"] == operation_of(ours)
        and (device_count(collective), node_count(collective)) == (device_count(ours), node_count(ours))
        and theirs is not None
        and theirs == own
    )


def _bandwidth(record: Record) -> Figure | None:
    stated = record["metrics"].get("bus_bandwidth") or {}
    value = number(stated.get("value"))
    return None if value is None else Figure(value, number(stated.get("low")), number(stated.get("high")))

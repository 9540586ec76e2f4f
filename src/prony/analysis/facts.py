"""Facts of records: where those differ that a result depends on, and the few that introduce a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prony.analysis.settings import Difference, Record

# A fact whose name has one of these words changes from minute to minute and explains nothing by itself.
VOLATILE = {
    "load", "uptime", "temperature", "temperatures", "free", "available", "used", "usage", "now", "current",
    "utilisation", "utilization", "draw", "processes", "pid", "pids", "time", "timestamp", "date", "throttle",
    "throttled", "throttling", "missing", "evidence", "boot", "fan", "idle", "elapsed", "reasons",
}  # fmt: skip
# Which specimen it is. Another specimen of the same kind is worth a note; its differences count themselves.
IDENTITY = {"hostname", "serial", "id", "bus", "path", "index", "minor", "address"}
# What a run sets itself, because a setting says so: it follows from the settings and is no fact of its own.
FOLLOWS = ("software.imported", "software.torch.switches", "software.torch.threads", "software.torch.interop_threads")
# Which of several alike; and the parts of the host's memory, which a virtual machine moves about.
PLACES = r"devices\.\d+\.device|host\.numa\.\d+\.memory_bytes"
ROOMS = {"devices": "machine", "host": "machine", "software": "software", "container": "container",
         "environment": "environment", "compile cache": "compile cache"}  # fmt: skip
TELLING = ("software.prony_node_source", "devices.0.name", "devices.0.uuid", "devices.0.driver", "host.cpu.model",
           "software.torch", "software.cuda", "software.python", "software.driver", "container")  # fmt: skip


@dataclass(frozen=True)
class FactDifferences:
    """Facts that differ: those that may explain a difference of rates, and those worth a note."""

    matter: list[Difference]
    noted: list[Difference]

    def groups(self) -> list[str]:
        """What differs, in a word each: machine, software, container, environment."""
        return list(dict.fromkeys(ROOMS.get(d.name.partition(".")[0], "other facts") for d in self.matter))


def fact_differences(a: Record, b: Record) -> FactDifferences:
    """Facts that differ between two records, the most telling ones first."""
    ours, theirs = dict(_flatten(a["facts"])), dict(_flatten(b["facts"]))
    matter: list[Difference] = []
    noted: list[Difference] = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if ours.get(name) == theirs.get(name) or _is_volatile(name):
            continue
        difference = Difference(name, ours.get(name), theirs.get(name))
        (noted if _is_note(name) else matter).append(difference)
    return FactDifferences(sorted(matter, key=_rank), sorted(noted, key=_rank))


def cache_states(records: Sequence[Record]) -> list[str]:
    """The states in which the runs found their compile cache, each once; nothing where nothing was compiled."""
    caches = [((record.get("phases") or {}).get("cold_start") or {}).get("compile_cache") or {} for record in records]
    return sorted({str(cache["state"]) for cache in caches if cache.get("state") in ("cold", "partly warm", "warm")})


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by dotted name. A list of plain values is one leaf."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for position, inner in enumerate(value):
            yield from _flatten(inner, f"{name}.{position}")
    elif value not in (None, "", [], {}):
        yield name, value


def _words(name: str) -> set[str]:
    return set(re.split(r"[._\-]", name.lower()))


def _is_volatile(name: str) -> bool:
    """Never a part of the software: each is fixed while a run lasts."""
    if name.startswith("software.") and "missing" not in _words(name):
        return False
    return not name.startswith("environment.") and bool(_words(name) & VOLATILE)


def _is_note(name: str) -> bool:
    room = name.partition(".")[0]
    if room == "environment":
        return bool(_words(name) & {"id", "jobid"})
    if room == "source" or name.startswith(FOLLOWS) or re.fullmatch(PLACES, name):
        return True
    return bool(_words(name) & IDENTITY)


def _rank(difference: Difference) -> tuple[int, str]:
    for position, start in enumerate(TELLING):
        if difference.name.startswith(start):
            return position, difference.name
    return len(TELLING), difference.name


def introduce(record: Record) -> list[tuple[str, str]]:
    """The facts that a person wants first, each with a label; what is not known is left out."""
    facts = record["facts"]
    device = (facts.get("devices") or [{}])[0]
    host, software = facts.get("host") or {}, facts.get("software") or {}
    cpu = host.get("cpu") or {}
    cores = cpu.get("cores") or cpu.get("threads")
    lines = [
        ("device", device.get("name")),
        ("driver", device.get("driver") or _drivers(software.get("drivers"))),
        ("host", host.get("hostname")),
        ("CPU", f"{cpu['model']}, {cores} cores" if cpu.get("model") and cores else cpu.get("model")),
        ("system", _first(host, "os")),
        ("kernel", host.get("kernel")),
        ("torch", _version(software, "torch")),
        ("CUDA", _version(software, "cuda")),
        ("ROCm", _version(software, "hip", "rocm")),
        ("cuDNN", _version(software, "cudnn")),
        ("Python", _version(software, "python")),
        ("Prony", _version(software, "prony", "prony_node")),
        ("container", _container(facts.get("container"))),
    ]
    return [(label, str(text)) for label, text in lines if text]


def _drivers(drivers: Any) -> str | None:
    if not isinstance(drivers, dict):
        return str(drivers) if drivers else None
    return ", ".join(f"{name} {version}" for name, version in drivers.items() if version) or None


def _first(facts: dict[str, Any], *names: str) -> Any:
    return next((facts[name] for name in names if facts.get(name)), None)


def _version(software: dict[str, Any], *names: str) -> Any:
    """A version stands directly under its name, or in an object, or among the packages, or under torch."""
    places = (software, software.get("packages") or {}, software.get("torch") or {})
    for place in places:
        found = _first(place, *names) if isinstance(place, dict) else None
        if isinstance(found, dict):
            found = _first(found, "version")
        if found:
            return found
    return None


def _container(container: Any) -> str | None:
    if not isinstance(container, dict):
        return str(container) if container else None
    found = _first(container, "image", "name", "runtime", "kind")
    return str(found) if found else None

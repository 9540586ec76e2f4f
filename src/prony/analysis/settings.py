"""Settings and facts of records: what they are, and where they differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from prony_node.contract.facts import CpuFacts
from prony_node.contract.record import Record
from prony_node.contract.settings import SETTINGS, Value
from prony_node.contract.typed import encode

LONGEST_WORD = 60


def number(value: Any) -> float | None:
    """A finite number; None for whatever else a stranger's record holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int | None:
    """A whole number of at least 0."""
    found = number(value)
    return int(found) if found is not None and found >= 0.0 and found == int(found) else None


def word(value: Any, longest: int = LONGEST_WORD) -> str | None:
    """A text on one line, cut where it is too long to be shown."""
    if not isinstance(value, str):
        return None
    printable = (sign if sign.isprintable() else " " for sign in value[: 2 * longest])
    text = " ".join("".join(printable).split())
    return f"{text[: longest - 3]}..." if len(text) > longest else text or None


# The study behind a preset only says where its settings come from.
LABELS = ("study",)
# What no preset chooses: a difference that nobody asked for is then the machine's.
NO_PRESETS = ("workload", "device", "cores")
# Runs that differ in these alone are repeats: a seed is drawn, not chosen.
DRAWN = ("seed",)
USUAL = ("mode", "batch_size", "precision")


@dataclass(frozen=True)
class Difference:
    """Something that is not the same on both sides; None where a side does not have it."""

    name: str
    a: Any
    b: Any


def settings_of(record: Record) -> dict[str, Value]:
    """Effective settings; as requested where the run failed before they were known."""
    return dict(cast("Mapping[str, Value]", record.trial.effective or record.trial.settings))


def asked_settings(record: Record) -> dict[str, Value]:
    """Settings as requested."""
    return dict(cast("Mapping[str, Value]", record.trial.settings))


def show_setting(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)


def setting_differences(a: Record, b: Record) -> list[Difference]:
    """Settings that differ, the workload first, then in the order in which settings are listed."""
    found = []
    if a.trial.workload != b.trial.workload:
        found.append(Difference("workload", a.trial.workload, b.trial.workload))
    ours, theirs = settings_of(a), settings_of(b)
    for name in in_order(ours | theirs):
        if ours.get(name) != theirs.get(name):
            found.append(Difference(name, ours.get(name), theirs.get(name)))
    return found


def questions(differences: Sequence[Difference], records: Sequence[Record]) -> list[str]:
    """The settings that a comparison of these records is about.

    A setting that one side alone has (the optimizer, against inference) follows from another one that
    differs: it is no question of its own, unless alone. A seed never is one.
    """
    chosen = [d for d in differences if d.name not in DRAWN]
    own = [d.name for d in chosen if d.a is not None and d.b is not None and d.name not in LABELS]
    return without_presets_choices(own, records) or [d.name for d in chosen]


def without_presets_choices(names: list[str], records: Sequence[Record]) -> list[str]:
    """What differs between these records; where presets do, without what they chose and nobody asked for.

    A preset is more than the settings that it chooses: with `fast` kernels are tried out and batch norms folded.
    """
    if "preset" not in names:
        return names
    asked = {"preset", *NO_PRESETS, *(name for record in records for name in record.trial.settings)}
    return [name for name in names if name in asked]


def chosen_settings(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Settings without those that tell repeats apart."""
    return {name: value for name, value in settings.items() if name not in DRAWN}


def varying(records: Sequence[Record]) -> list[str]:
    """Settings that take more than one value over these records."""
    every = [settings_of(record) for record in records]
    names = in_order(name for settings in every for name in settings)
    values = {name: {str(settings[name]) for settings in every if name in settings} for name in names}
    found = [name for name in names if len(values[name]) > 1]
    return without_presets_choices([name for name in found if name not in LABELS], records)


def shown_settings(records: Sequence[Record]) -> list[str]:
    """The settings that a table of these records shows: the usual ones, what a workload's runs vary, and what some of
    them alone have (bind=numa), where rows would be alike without it.

    What differs between workloads alone follows from the workload and would only widen the table.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.trial.workload, []).append(record)
    usual = [name for name in USUAL if any(name in settings_of(record) for record in records)]
    names = [*usual, *(name for group in groups.values() for name in varying(group))]
    names += [name for group in groups.values() for name in _hidden(group, names)]
    return in_order(names)


def _hidden(records: Sequence[Record], shown: Sequence[str]) -> list[str]:
    """What was asked for and only some records have, of those that agree in everything that is shown."""
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        settings = settings_of(record)
        alike.setdefault(tuple(str(settings.get(name)) for name in shown), []).append(record)
    found: list[str] = []
    for group in alike.values():
        for name in {name for record in group for name in record.trial.settings} - {*LABELS, *DRAWN}:
            if len({str(settings_of(record).get(name)) for record in group}) > 1:
                found.append(name)
    return in_order(found)


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of the settings' table, a workload's own ones after them."""
    known = dict.fromkeys(names)
    return [name for name in SETTINGS if name in known] + sorted(name for name in known if name not in SETTINGS)


# What each precision gives up against fp32, in words.
PRECISIONS = {
    "default": "convolutions rounded to 10 bits, other products in single precision",
    "fp32": "single precision throughout",
    "tf32": "products rounded to 10 bits",
    "bf16": "products in 8 bits of precision, weights in fp32",
    "bf16-pure": "no fp32 at all: small updates of weights are lost",
    "fp16": "products in 11 bits with a small range, losses scaled, weights in fp32",
    "fp8": "linear layers in 8-bit numbers",
}
# These change how a step is computed, never what: kernels, layouts, loaders.
SAME_MATHEMATICS = {
    "compile", "compile_cache", "graphs", "memory_format", "fused", "workers", "prefetch", "pin_memory", "cores",
    "recompute", "kernels", "decode", "cache", "stage", "data_format", "device", "memory_cap", "preset",
}  # fmt: skip
SIZES = ("batch_size", "grad_accumulation")


def mathematics_sentences(start: Mapping[str, Any], winner: Mapping[str, Any], mode: str) -> list[str]:
    """A sentence for each setting by which the winner computes something else than the start."""
    said = []
    for name in sorted(winner):
        before, after = start.get(name), winner[name]
        if before == after or name in SAME_MATHEMATICS or (name in SIZES and mode == "infer"):
            continue
        change = f"{name}={show_setting(after)} instead of {show_setting(before)}"
        if name == "precision":
            said.append(f"It changes the mathematics: {change} ({PRECISIONS.get(str(after), 'another precision')}).")
        elif name in SIZES:
            said.append(
                f"It changes how a model learns: {change}; --goal time-to-quality judges that, a rate does not."
            )
        else:
            said.append(f"It changes the mathematics: {change}.")
    return said


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
    ours, theirs = dict(_flatten(rooms_of_facts(a))), dict(_flatten(rooms_of_facts(b)))
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
    phases = [record.phases.get("cold_start") for record in records]
    states = {phase.compile_cache.state for phase in phases if phase is not None and phase.compile_cache is not None}
    return sorted(state for state in states if state in ("cold", "partly warm", "warm"))


def rooms_of_facts(record: Record) -> Mapping[str, Any]:
    """The facts of a record by their room: host, software, devices."""
    facts = record.facts
    return {
        "host": encode(facts.host), "software": encode(facts.software), "container": encode(facts.container),
        "environment": facts.environment, "source": encode(facts.source), **facts.more,
        "devices": encode(facts.devices),
    }  # fmt: skip


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by dotted name. A list of plain values is one leaf."""
    if isinstance(value, Mapping) and value:
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
    device, host, software = record.device, record.facts.host, encode(record.facts.software)
    cpu = host.cpu or CpuFacts()
    cores = cpu.cores or cpu.threads
    lines = [
        ("device", device.name),
        ("driver", device.driver or _drivers(record.facts.software.drivers)),
        ("host", host.hostname),
        ("CPU", f"{cpu.model}, {cores} cores" if cpu.model and cores else cpu.model),
        ("system", host.os),
        ("kernel", host.kernel),
        ("torch", _version(software, "torch")),
        ("CUDA", _version(software, "cuda")),
        ("ROCm", _version(software, "hip", "rocm")),
        ("cuDNN", _version(software, "cudnn")),
        ("Python", _version(software, "python")),
        ("Prony", _version(software, "prony", "prony_node")),
        ("container", _container(encode(record.facts.container))),
    ]
    return [(label, str(text)) for label, text in lines if text]


def _drivers(drivers: Mapping[str, str] | None) -> str | None:
    if not drivers:
        return None
    return ", ".join(f"{name} {version}" for name, version in drivers.items() if version) or None


def _first(facts: Mapping[str, Any], *names: str) -> Any:
    return next((facts[name] for name in names if facts.get(name)), None)


def _version(software: Mapping[str, Any], *names: str) -> Any:
    """A version stands directly under its name, or in an object, or among the packages, or under torch."""
    places = (software, software.get("packages") or {}, software.get("torch") or {})
    for place in places:
        found = _first(place, *names) if isinstance(place, dict) else None
        if isinstance(found, dict):
            found = _first(found, "version")
        if found:
            return found
    return None


def _container(container: Mapping[str, Any]) -> str | None:
    found = _first(container, "image", "name", "runtime", "kind")
    return str(found) if found else None

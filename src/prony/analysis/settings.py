"""Effective settings of records: what they are and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prony_node.contract.settings import SETTINGS

Record = dict[str, Any]

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


def settings_of(record: Record) -> dict[str, Any]:
    """Effective settings; as requested where the run failed before they were known."""
    trial = record["trial"]
    return dict(trial.get("effective") or trial.get("settings") or {})


def show_setting(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else str(value)


def setting_differences(a: Record, b: Record) -> list[Difference]:
    """Settings that differ, the workload first, then in the order in which settings are listed."""
    found = []
    if a["trial"]["workload"] != b["trial"]["workload"]:
        found.append(Difference("workload", a["trial"]["workload"], b["trial"]["workload"]))
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
    asked = {"preset", *NO_PRESETS, *(name for record in records for name in record["trial"]["settings"])}
    return [name for name in names if name in asked]


def chosen_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that tell repeats apart."""
    return {name: value for name, value in settings.items() if name not in DRAWN}


def varying(records: Sequence[Record]) -> list[str]:
    """Settings that take more than one value over these records."""
    every = [settings_of(record) for record in records]
    names = in_order({name: None for settings in every for name in settings})
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
        groups.setdefault(record["trial"]["workload"], []).append(record)
    usual = [name for name in USUAL if any(name in settings_of(record) for record in records)]
    names = [*usual, *(name for group in groups.values() for name in varying(group))]
    names += [name for group in groups.values() for name in _hidden(group, names)]
    return in_order(dict.fromkeys(names))


def _hidden(records: Sequence[Record], shown: Sequence[str]) -> list[str]:
    """What was asked for and only some records have, of those that agree in everything that is shown."""
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        settings = settings_of(record)
        alike.setdefault(tuple(str(settings.get(name)) for name in shown), []).append(record)
    found: dict[str, None] = {}
    for group in alike.values():
        for name in {name for record in group for name in record["trial"]["settings"]} - {*LABELS, *DRAWN}:
            if len({str(settings_of(record).get(name)) for record in group}) > 1:
                found[name] = None
    return in_order(found)


def in_order(names: dict[str, Any]) -> list[str]:
    """Names in the order of the settings' table, a workload's own ones after them."""
    table = [name for name in SETTINGS if name in names]
    return table + sorted(name for name in names if name not in SETTINGS)

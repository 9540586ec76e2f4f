"""Command line words to a trial, and to when its runs have seen enough."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from prony_node.contract import plugins
from prony_node.contract.errors import ParameterError, RequestError, nearest, unknown
from prony_node.contract.settings import SETTINGS, Setting, former_setting
from prony_node.contract.trial import LOADER_ONLY, Peak, Plan, Stop, Trial
from prony_node.workloads import WORKLOADS, find_workload, plugin_of
from prony_node.workloads.config import Workload

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
NAMED_OWNERS = 3  # workloads in a sentence
JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6}


def split_words(words: Iterable[str], known: Iterable[Setting] = ()) -> dict[str, str]:
    """`setting=value` words as a dictionary; anything else is refused with what was probably meant."""
    given: dict[str, str] = {}
    settings = SETTINGS | {setting.name: setting for setting in known}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise RequestError(f"{word!r} is not a setting=value{_meant(word, settings)}")
        if name not in settings:
            raise unknown_setting(name, settings, value)
        if name in given:
            raise RequestError(f"{name} is given twice: {given[name]} and {value}")
        given[name] = value
    return given


def unknown_setting(name: str, known: Iterable[str], value: str | None = None) -> RequestError:
    """With what it is called now, or whose it is, where other workloads have it: that is no misspelling."""
    if (now := former_setting(name, value)) is not None:
        return RequestError(now)
    owners = [owner.name for owner in WORKLOADS.values() if name in {own.name for own in owner.own_settings()}]
    if not owners:
        return unknown("setting", name, known)
    more = f" and {len(owners) - NAMED_OWNERS} more" if len(owners) > NAMED_OWNERS else ""
    return RequestError(f"unknown setting {name!r} here; it is one of {', '.join(owners[:NAMED_OWNERS])}{more}")


def with_loader(given: dict[str, str]) -> dict[str, str]:
    """Settings of a loader ask for batches that it can load: from host memory, where nobody says from where."""
    asked = "data" not in given and not given.keys().isdisjoint(LOADER_ONLY)
    return {**given, "data": "host"} if asked else given


def _meant(word: str, settings: dict[str, Setting]) -> str:
    for setting in settings.values():
        if word in setting.choices:
            return f"; did you mean {setting.name}={word}?"
    guess = nearest(word, settings)
    return f"; did you mean {guess}=...?" if guess else ""


def parse_trial(target: str | Workload, words: Iterable[str]) -> Trial:
    """The trial that a command line asks for, every name and value checked."""
    workload = find_workload(target) if isinstance(target, str) else target
    return Trial(workload.name, workload.parse(with_loader(split_words(words, workload.own_settings()))))


def check_target(name: str, suites: Iterable[str]) -> None:
    """Refuse a name that is neither workload nor suite, with the nearest of both."""
    known = {*WORKLOADS, *suites}
    if name in known:
        return
    if "/" in name or plugin_of(name):
        find_workload(name)
    else:
        raise unknown("workload or suite", name, known | set(plugins.of_group(plugins.WORKLOADS)))


def parse_tolerance(text: str) -> float:
    """`1%` or `0.01` as a share of the rate."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    value = float(match.group(1)) / (100.0 if match.group(2) else 1.0) if match else math.nan
    if not 0.0 < value < 0.5:
        raise ParameterError("tolerance", f"{text} is not possible: give a share such as 1% or 0.01, below 50%")
    return value


def parse_seconds(text: str, parameter: str = "max_time") -> float:
    """`120s`, `2m`, `1h` or a bare number of seconds."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", text)
    if match is None or match.group(2) not in SECONDS or float(match.group(1)) <= 0.0:
        raise ParameterError(parameter, f"{text} is not possible: give a time such as 120s or 2m")
    return float(match.group(1)) * SECONDS[match.group(2)]


def parse_joules(text: str, parameter: str = "max_energy") -> float:
    """`500Wh`, `1kWh`, `2MJ` or `7200J`."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*", text)
    if match is None or match.group(2) not in JOULES or float(match.group(1)) <= 0.0:
        raise ParameterError(parameter, f"{text} is not possible: give an energy such as 500Wh, 1kWh or 2MJ")
    return float(match.group(1)) * JOULES[match.group(2)]


def make_stop(tolerance: str | None, max_time: str | None, otherwise: Stop | None = None) -> Stop:
    """When to stop: what was asked for, else `otherwise`, else Prony's defaults."""
    base = otherwise or Stop()
    max_time_s = base.max_time_s if max_time is None else parse_seconds(max_time)
    return Stop(
        tolerance=base.tolerance if tolerance is None else parse_tolerance(tolerance),
        min_time_s=min(base.min_time_s, max_time_s),
        max_time_s=max_time_s,
    )


def new_run_id(workload: str, now: datetime | None = None) -> str:
    """`<workload>-<UTC time>-<random>`; the random part keeps two runs of one second apart.

    It names a folder, so what a file system or a shell would take amiss (the slash of timm/NAME) becomes a dash.
    """
    moment = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%S")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", workload).strip("-.") or "run"
    return f"{name[:80]}-{moment}-{secrets.token_hex(3)}"


def make_plan(
    trial: Trial,
    stop: Stop,
    peaks: tuple[Peak, ...],
    repeat: int = 0,
    *,
    energy: bool = True,
    file: dict[str, Any] | None = None,
    study: dict[str, Any] | None = None,
) -> Plan:
    """The plan of one run, under an id of its own."""
    return Plan(
        run_id=new_run_id(trial.workload),
        trial=trial,
        repeat=repeat,
        stop=stop,
        peaks=peaks,
        energy=energy,
        file=file,
        study=study,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )

"""Suites: named lists of trials that ship with Prony, as data."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from prony.plan.request import make_stop
from prony_node.contract.errors import RequestError
from prony_node.contract.plan import Stop
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

KINDS = ("cpu", "accelerator")


@dataclass(frozen=True)
class SuiteTrial:
    """A trial of a suite: when its runs stop, and on which kind of device it belongs (None: on both)."""

    trial: Trial
    stop: Stop
    on: str | None = None


@dataclass(frozen=True)
class Suite:
    """A named list of trials."""

    name: str
    help: str
    trials: tuple[SuiteTrial, ...]

    @property
    def depends_on_device(self) -> bool:
        return any(entry.on is not None for entry in self.trials)

    def trials_on(self, kind: str) -> list[SuiteTrial]:
        """The trials for a device kind as torch names it: cpu, or an accelerator's."""
        wanted = "cpu" if kind == "cpu" else "accelerator"
        return [entry for entry in self.trials if entry.on in (None, wanted)]


def load_suites() -> dict[str, Suite]:
    """Every shipped suite by name."""
    folder = resources.files("prony.catalog") / "suites"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            suite = parse_suite(file.read_text(encoding="utf-8"), file.name)
            found[suite.name] = suite
    return found


def parse_suite(text: str, where: str) -> Suite:
    """A suite from its YAML, every trial checked; an error names the file and the entry."""
    try:
        # Every scalar stays text: YAML would read `on` and `off` as booleans, and settings parse themselves.
        document = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise RequestError(f"{where} is not YAML: {error}") from error
    _only(document, {"name", "help", "stop", "trials"}, where)
    if not isinstance(document.get("trials"), list) or not document["trials"] or not document.get("name"):
        raise RequestError(f"{where} needs a name and a list of trials")
    stop = _stop(document.get("stop"), None, where)
    trials = []
    for number, entry in enumerate(document["trials"], start=1):
        trials.append(_parse_trial(entry, stop, f"{where}, trial {number}"))
    return Suite(str(document["name"]), str(document.get("help", "")), tuple(trials))


def _parse_trial(entry: Any, stop: Stop, where: str) -> SuiteTrial:
    _only(entry, {"workload", "settings", "on", "stop"}, where)
    on = entry.get("on")
    if on is not None and on not in KINDS:
        raise RequestError(f"{where}: on is {' or '.join(KINDS)}, not {on!r}")
    settings = entry.get("settings") or {}
    if not isinstance(settings, dict):
        raise RequestError(f"{where}: settings are names with values")
    try:
        workload = find_workload(str(entry.get("workload")))
        trial = Trial(workload.name, workload.parse(settings))
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    return SuiteTrial(trial, _stop(entry.get("stop"), stop, where), on)


def _stop(entry: Any, otherwise: Stop | None, where: str) -> Stop:
    if entry is None:
        return otherwise or Stop()
    _only(entry, {"tolerance", "max_time"}, f"{where}, stop")
    return make_stop(entry.get("tolerance"), entry.get("max_time"), otherwise)


def _only(entry: Any, known: set[str], where: str) -> None:
    if not isinstance(entry, dict):
        raise RequestError(f"{where} is not a mapping with {', '.join(sorted(known))}")
    strange = sorted(set(entry) - known)
    if strange:
        raise RequestError(f"{where}: {strange[0]!r} is none of {', '.join(sorted(known))}")

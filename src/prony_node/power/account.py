"""The energy of a span of time, whatever ran in it: a command, or a block of someone's own script."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.assemble import make_check
from prony_node.contract.cost import Rates, cost_json
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import read_in_run
from prony_node.power import conditions, quality
from prony_node.power.curve import power_points
from prony_node.power.figures import NodeEnergy, PartEnergy, idle_power, node_energy, part_energies
from prony_node.power.recording import Recording, read_recording
from prony_node.power.window import SHORTEST_S

ENERGY = "energy.json"
ENERGY_SCHEMA = "prony.energy/1"
SILENT = ("replay",)  # a reader whose absence is no news


@dataclass
class Account:
    """What was measured between two instants of the monotonic clock; what was not has its reason."""

    start_s: float
    end_s: float
    recording: Recording = field(default_factory=Recording)
    parts: list[PartEnergy] = field(default_factory=list)
    node: NodeEnergy | None = None
    idle: dict[str, tuple[float | None, str]] = field(default_factory=dict)  # W by part, or why not
    checks: dict[str, list[quality.Check]] = field(default_factory=dict)  # by part; of all of them under ""
    reason: str = ""  # why nothing was measured at all
    complaints: list[str] = field(default_factory=list)  # of the sampler

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def why_nothing(self) -> str:
        """One line: why there is no figure of the node."""
        if self.node is not None:
            return ""
        return self.reason or "; ".join(dict.fromkeys(part.reason for part in self.parts)) or "no sensor"

    def reader_reasons(self) -> dict[str, str]:
        return {name: why for name, why in self.recording.reasons.items() if name not in SILENT}


def make_account(folder: Path, start_s: float, end_s: float) -> Account:
    """The account of a span, from the recording in a folder. Nothing that goes wrong here raises."""
    account = Account(start_s, end_s, complaints=_log(folder))
    try:
        recording = read_recording(folder)
        if recording is None:
            account.reason = "the sampler did not start" + "".join(f": {line}" for line in account.complaints[-1:])
            return account
        account.recording = recording
        if not recording.traces:
            account.reason = "no power sensor answers here"
            return account
        _fill(account)
    except RequestError as error:
        account.reason = str(error)
    except Exception as error:  # what was measured is for a command that went well; it must not end badly by us
        account.reason = f"the samples could not be judged: {type(error).__name__}: {error}"
    return account


def _fill(account: Account) -> None:
    recording = account.recording
    found = part_energies(recording, account.start_s, account.end_s)
    if account.seconds < SHORTEST_S:
        short = f"it took {account.seconds:.2g} s, and under {SHORTEST_S:.0f} s there is no energy figure"
        found = [replace(part, figure=None, reason=short) for part in found]
    found = [_with_peak(part, recording, account.start_s, account.end_s) for part in found]
    sensors = [trace.sensor for trace in recording.traces]
    account.parts = found
    account.node = node_energy(found, sensors)
    account.idle = {part.part: idle_power(recording, part.part, account.start_s) for part in found}
    limits_w = recording.about.get("limits_w") or {}
    busy = recording.about.get("busy_at_start") or {}
    seen = recording.about.get("conditions") or {}
    for part in found:
        checks = [*_span(part, account.seconds), *quality.part_checks(part, limits_w.get(part.part))]
        if part.scope in ("gpu", "module"):
            checks.append(conditions.throttling(seen.get(part.part)))
        checks.append(conditions.foreign(busy.get(part.part), seen.get(part.part)))
        account.checks[part.part] = checks
    everything = quality.covered([part.part for part in found], found)
    account.checks[""] = [*quality.node_checks(account.node, found, sensors), everything]


def _with_peak(part: PartEnergy, recording: Recording, start_s: float, end_s: float) -> PartEnergy:
    """The peak of the whole span, not of what lies between two ticks."""
    points, sensor = power_points(recording.of_part(part.part), start_s, end_s)
    known = part.peak_w is not None and points
    return replace(part, peak_w=max(power_w for _, power_w in points), peak_sensor=sensor) if known else part


def _span(part: PartEnergy, seconds: float) -> list[quality.Check]:
    """A counter knows the time from its first tick to its last. What is outside is said, and never made up for."""
    figure = part.figure
    if figure is None:
        return []
    missed_s = seconds - figure.seconds
    level = "pass" if missed_s <= max(3.0 * figure.period_s, 0.02 * seconds) else "warn"
    return [make_check("energy-span", level, f"covers {figure.seconds:.2f} s of {seconds:.2f} s")]


def _log(folder: Path) -> list[str]:
    """What the sampler complained of."""
    try:
        return read_in_run(folder / files.POWER_LOG).decode("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return []


def account_json(account: Account, about: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """The document of an account; `about` says what ran."""
    node = quality.node_json(account.node, account.recording)
    if account.node is None:
        node["reason"] = account.why_nothing()
    return {
        "schema": ENERGY_SCHEMA,
        **about,
        "seconds": account.seconds,
        "span_monotonic_s": [account.start_s, account.end_s],
        "parts": [
            {**quality.part_json(part, account.idle[part.part]), "conditions": _seen(account, part)}
            for part in account.parts
        ],
        "node": node,
        "checks": [{"part": name or None, **check} for name, checks in account.checks.items() for check in checks],
        **cost_json(node["energy_j"], str(node.get("how") or ""), rates),
        "reasons": account.reader_reasons(),
        "notes": [*(account.recording.about.get("notes") or []), *account.complaints],
    }


def _seen(account: Account, part: PartEnergy) -> Any:
    return (account.recording.about.get("conditions") or {}).get(part.part)

"""HPE Cray nodes, through /sys/cray/pm_counters: files like "348134 J 1416590204112961 us", updated at 10 Hz.

`energy` is the node's with everything in it; `cpu_energy`, `memory_energy` and `accel0_energy` are parts of it (HPE:
"User access to compute node power data"). Others that end in energy (capped_energy, overshoot_energy) are not energy
of a part. `startup` changes when the counters were set back, `freshness` with every update. The stamp is the
node controller's own clock, which is not ours: readings are timed by when they were asked for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from prony_node.power.sensor import Folder, Sensor, SensorLost, Unavailable, plausible_j

COUNTERS = "/sys/cray/pm_counters"
COUNTER = re.compile(r"(?:(cpu|memory|accel)([0-9]{0,2})_)?energy", re.ASCII)
CONTENT = re.compile(r"([0-9]{1,20})\s+J(?:\s+[0-9]{1,20}\s+us)?", re.ASCII)
USUAL_HZ = 10.0
STALE_S = 10.0  # a hundred updates missed
SUPERCHIP = (
    "accel counters are left out: this node also counts a CPU for each of them, and whether an accelerator's counter "
    "holds its CPU there is not documented"
)


class CrayReader:
    """Counters of the node and of its parts."""

    id = "cray"

    def __init__(self, folder: Folder, sensors: list[Sensor], notes: list[str], now: Callable[[], float]) -> None:
        self._folder, self._now = folder, now
        self.sensors = sensors
        self.notes = notes
        startup = folder.text(f"{COUNTERS}/startup")
        self._startup = {sensor.id: startup for sensor in sensors}
        self._fresh: tuple[str | None, float] = (None, now())

    def read(self, sensor: Sensor) -> float:
        startup = self._folder.text(f"{COUNTERS}/startup")
        if startup != self._startup[sensor.id]:
            # Said once: the counter is good again from here on, but not across this moment.
            self._startup[sensor.id] = startup
            raise SensorLost("the node controller started anew and set its counters back")
        self._check_freshness()
        return _read_j(self._folder, sensor.id.partition(" ")[2])

    def _check_freshness(self) -> None:
        fresh = self._folder.text(f"{COUNTERS}/freshness")
        if fresh is None or fresh != self._fresh[0]:
            self._fresh = (fresh, self._now())
        elif self._now() - self._fresh[1] > STALE_S:
            raise SensorLost(f"the counters were last updated more than {STALE_S:.0f} s ago")

    def busy(self, part: str) -> str | None:
        return None

    def close(self) -> None:
        pass


def open_reader(root: Path, now: Callable[[], float] = time.monotonic) -> CrayReader:
    folder = Folder(root)
    found = [path.rpartition("/")[2] for path in folder.names(f"{COUNTERS}/*energy")]
    names = [name for name in found if COUNTER.fullmatch(name)]
    if not names:
        raise Unavailable(
            f"there are no counters in {folder.path(COUNTERS)}: this is no HPE Cray node, or they are hidden"
        )
    notes: list[str] = []
    kept, reasons = _readable(folder, names, notes)
    if not kept:
        raise Unavailable(f"no counter of the node can be read: {reasons[0]}")
    return CrayReader(folder, _sensors(folder, kept), notes, now)


def _readable(folder: Folder, names: list[str], notes: list[str]) -> tuple[list[str], list[str]]:
    """The counters that count, without those that would count a part twice."""
    kept, reasons = [], []
    for name in names:
        try:
            if _read_j(folder, name) > 0.0:
                kept.append(name)
            else:
                reasons.append(f"{COUNTERS}/{name} reads 0, so nothing is counted there")
        except SensorLost as error:
            reasons.append(str(error))
    notes += [f"a counter is left out: {reason}" for reason in reasons]
    single = {_kind(name)[0] for name in kept if _kind(name)[1]}
    if {"cpu", "accel"} <= single:
        kept = [name for name in kept if _kind(name)[0] != "accel"]
        notes.append(SUPERCHIP)
    # A sum over the node beside its single ones is the same energy once more.
    return [name for name in kept if not (_kind(name)[0] in single and not _kind(name)[1])], reasons


def _kind(name: str) -> tuple[str, str]:
    """`accel0_energy` is ("accel", "0"), `energy` is ("", "")."""
    match = COUNTER.fullmatch(name)
    assert match is not None
    return match[1] or "", match[2] or ""


def _sensors(folder: Folder, names: list[str]) -> list[Sensor]:
    has_cpu = any(_kind(name)[0] == "cpu" for name in names)
    parts = {name: _part(name) for name in names}
    packages = _packages(folder)
    sensors = []
    for name in sorted(names, key=lambda name: (bool(_kind(name)[0]), name)):
        kind, number = _kind(name)
        # Where no CPU is counted apart, the accelerator has it inside (MI300A).
        scope = {"": "node", "cpu": "package", "memory": "dram"}.get(kind, "gpu" if has_cpu else "module")
        inside: tuple[str, ...] = ()
        if not kind:
            inside = tuple(part for other, part in parts.items() if other != name)
        elif kind == "accel":
            inside = (f"gpus-of-{parts[name]}",)  # which device that is, is not said here
        else:  # the names that RAPL would give to the same
            numbers = [number] if number else packages
            inside = tuple(f"{'package' if kind == 'cpu' else 'dram'}-{package}" for package in numbers)
        sensors.append(
            Sensor(
                id=f"cray.energy {name}",
                reader="cray",
                kind="counter",
                scope=scope,
                part=parts[name],
                label=f"HPE Cray {parts[name]}, energy counter (pm_counters/{name})",
                contains=inside,
                period_s=_period_s(folder),
                resolution=1.0,
            )
        )
    return sensors


def _part(name: str) -> str:
    kind, number = _kind(name)
    if not kind:
        return "node"
    return f"cray-{kind}-{number}" if number else {"cpu": "cpus", "memory": "memory", "accel": "accelerators"}[kind]


def _packages(folder: Folder) -> list[str]:
    names = folder.names("/sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")
    return sorted({text for text in map(folder.text, names) if text and re.fullmatch("[0-9]{1,4}", text, re.ASCII)})


def _period_s(folder: Folder) -> float:
    text = folder.text(f"{COUNTERS}/raw_scan_hz") or ""
    rate_hz = float(text) if re.fullmatch("[0-9]{1,4}", text, re.ASCII) else 0.0
    return 1.0 / (rate_hz or USUAL_HZ)


def _read_j(folder: Folder, name: str) -> float:
    file = f"{COUNTERS}/{name}"
    folder.number(file)  # says why when it cannot be read
    text = folder.text(file)
    match = CONTENT.fullmatch(text or "")
    if match is None:
        raise SensorLost(f"{file} holds no joules: {(text or '')[:40]!r}")
    return plausible_j(int(match[1]), file)

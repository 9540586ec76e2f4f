"""NVIDIA GPUs through NVML (nvidia-ml-py): the energy counter, the driver's own samples, power now and averaged.

Seen on an H200 (driver 580): the counter ticks every 100 ms and a read takes 3 to 4 ms; the buffer holds about 2.4 s
of samples 20 ms apart and agrees with the counter within 0.5 %, steady or not; the field of instantaneous power
changes every 100 ms. The share of time that is sampled is from "Part-time power measurements: nvidia-smi's lack of
attention" (Yang, Adamek, Armour, 2023), as is the calibration.

Which GPUs a process may use follows NVIDIA's CUDA programming guide (CUDA_VISIBLE_DEVICES) and MIG user guide: a list
of indices, or of UUIDs that may be shortened as long as they stay unique; what follows the first invalid entry is not
visible. A device named twice makes CUDA refuse the list, so that none is visible. The driver stamps its samples with
the wall clock, which may be stepped; here they are placed on the monotonic clock.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prony_node.contract.errors import counted
from prony_node.nvml import FIELD_AVERAGE, FIELD_INSTANT, MODULE, Nvml, NvmlError, open_nvml
from prony_node.power.sensor import Reading, Sensor, SensorLost, Unavailable

OLD_SLICE = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+")  # before driver 470


@dataclass(frozen=True)
class Gpu:
    """A GPU in the order of the PCI bus, and the names that each of its MIG slices goes by."""

    uuid: str
    slices: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Visible:
    """What a process may use: whole GPUs and those of which it has a slice, by the GPU's UUID, in CUDA's order."""

    uuids: tuple[str, ...] = ()
    sliced: frozenset[str] = frozenset()
    by_index: bool = False  # then it matters in which order CUDA counts
    note: str = ""


def visible_gpus(text: str | None, gpus: Sequence[Gpu]) -> Visible:
    """The GPUs that CUDA shows for this value of CUDA_VISIBLE_DEVICES; None means that it is not set."""
    if text is None:
        sliced = frozenset(gpu.uuid for gpu in gpus if gpu.slices)
        return Visible(tuple(dict.fromkeys(gpu.uuid for gpu in gpus)), sliced)
    chosen: list[tuple[str, str]] = []  # the GPU and which slice of it
    kind, note = "", ""
    for entry in (part.strip() for part in text.split(",")):
        entry_kind = _kind(entry)
        kind = kind or entry_kind
        found = _find(entry, kind, gpus) if entry_kind == kind else None
        if found is None:
            note = _stopped(text, entry, len(chosen))
            break
        if found in chosen:
            return Visible(note=f"CUDA_VISIBLE_DEVICES={text} names {entry} twice, so CUDA shows no device")
        chosen.append(found)
    uuids = tuple(dict.fromkeys(uuid for uuid, _ in chosen))
    return Visible(uuids, frozenset(uuid for uuid, piece in chosen if piece), kind == "index", note)


def _kind(entry: str) -> str:
    """CUDA does not mix them: a list is of what its first entry is."""
    return next((prefix for prefix in ("GPU-", "MIG-") if entry.startswith(prefix)), "index")


def _find(entry: str, kind: str, gpus: Sequence[Gpu]) -> tuple[str, str] | None:
    """The GPU, and the slice of it or an empty name; None when there is no such device or more than one."""
    if kind == "index":
        digits = re.match(r"\+?([0-9]{1,9})", entry)  # CUDA reads the digits at the front and drops the rest
        index = int(digits[1]) if digits else len(gpus)
        return _first_of(gpus[index]) if index < len(gpus) else None
    if kind == "GPU-":
        found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return _first_of(found[0]) if len(found) == 1 else None
    pieces = [(gpu.uuid, names[0]) for gpu in gpus for names in gpu.slices if any(n.startswith(entry) for n in names)]
    exact = [(gpu.uuid, names[0]) for gpu in gpus for names in gpu.slices if entry in names]
    if exact or pieces:
        found_pieces = exact or pieces
        return found_pieces[0] if len(found_pieces) == 1 else None
    old = OLD_SLICE.fullmatch(entry)
    # A GPU whose slices cannot be listed: the old form still names the GPU.
    unlisted = [gpu.uuid for gpu in gpus if not gpu.slices and old and gpu.uuid == old[1]]
    return (unlisted[0], entry) if unlisted else None


def _first_of(gpu: Gpu) -> tuple[str, str]:
    """A GPU in MIG mode that is named as a whole gives its first slice."""
    return gpu.uuid, gpu.slices[0][0] if gpu.slices else ""


def _stopped(text: str, entry: str, count: int) -> str:
    if not count:
        return f"CUDA_VISIBLE_DEVICES={text!r} shows no GPU of this node"
    return f"CUDA_VISIBLE_DEVICES={text!r} has no valid device from {entry!r} on: CUDA shows the {count} before it"


FRESH_S = 1.0  # a driver that samples has its newest reading no older than this
AHEAD_S = 0.05  # a stamp this far in the future is rounding, further is another clock
STEP_S = 0.05  # a change of the wall clock against the monotonic one that is no slewing (500 ppm at most)
RELEARN_S = 5.0  # longer than a driver's buffer (2.4 s on an H200)


def clocks() -> tuple[float, float]:
    """The wall clock and the monotonic clock at one instant."""
    before = time.monotonic()
    wall_s = time.time()
    return wall_s, (before + time.monotonic()) / 2


class DriverStamps:
    """The stamps of one sensor's buffer. What it places never runs backwards and never lies in the future.

    Normally a stamp minus the offset of the two clocks is the time. When the wall clock was stepped, old stamps and new
    ones are of different clocks: those before the step are dropped (a gap, which the sampler sees). When the newest
    stamp is nowhere near now, the stamps are of a clock of their own, and the newest one is held to be now.
    """

    def __init__(self) -> None:
        self._newest_us = 0
        self._last_s = float("-inf")
        self._offset_s: float | None = None  # wall - monotonic, at the last call
        self._anchor_s: float | None = None  # stamp - monotonic, where the stamps are of another clock
        self._age_s: float | None = None  # of the newest stamp at the last call, by the wall clock
        self._relearn_until_s = float("-inf")
        self._known: deque[int] = deque(maxlen=1024)

    def since_us(self, wall_s: float, now_s: float) -> int:
        """The stamp to ask from: the newest seen, or zero after a step back, which would hide what is new."""
        if self._offset_s is not None and wall_s - now_s < self._offset_s - STEP_S:
            self._relearn_until_s = now_s + RELEARN_S
        return 0 if now_s < self._relearn_until_s else self._newest_us

    def place(self, stamps_us: Sequence[int], wall_s: float, now_s: float) -> list[float | None]:
        """The time of each stamp, oldest first; None for one that is known already or cannot be placed."""
        times: list[float | None] = [None] * len(stamps_us)
        if stamps_us:
            base_s = self._base_s(stamps_us[-1] / 1e6, wall_s, now_s)
            start = _after_step(stamps_us)
            if start:
                self._known.clear()  # a clock set back by whole ticks gives the same stamps once more
            known = set(self._known)
            for index in range(start, len(stamps_us)):
                if base_s is None or stamps_us[index] in known:
                    continue
                at_s = min(stamps_us[index] / 1e6 - base_s, now_s)
                if at_s > self._last_s:
                    times[index] = self._last_s = at_s
            self._newest_us = stamps_us[-1]
            self._known.extend(stamp for stamp in stamps_us[start:] if stamp not in known)
        self._offset_s = wall_s - now_s
        return times

    def _base_s(self, newest_s: float, wall_s: float, now_s: float) -> float | None:
        """What to take from a stamp to have its time; None while nobody can tell."""
        offset_s, age_s, last_age_s = wall_s - now_s, wall_s - newest_s, self._age_s
        step_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        stepped = abs(step_s) > STEP_S
        if stepped and self._anchor_s is None and last_age_s is not None and abs(age_s - last_age_s - step_s) < AHEAD_S:
            self._anchor_s = self._offset_s  # the stamps did not follow the step
        self._age_s = age_s
        bases_s = [offset_s] if self._anchor_s is None else [offset_s, self._anchor_s]
        ages_s = {base_s: now_s - (newest_s - base_s) for base_s in bases_s}
        good = [base_s for base_s in bases_s if -AHEAD_S <= ages_s[base_s] <= FRESH_S]
        if good:
            best_s = min(good, key=lambda base_s: abs(ages_s[base_s]))
            self._anchor_s = None if best_s == offset_s else best_s
            return best_s
        lags = last_age_s is not None and abs(age_s - last_age_s) < AHEAD_S
        if age_s < 0.0 or stepped or lags:
            self._anchor_s = newest_s - now_s
            return self._anchor_s
        # Old, by a clock that was not touched: the driver has stopped sampling. On the first call it could be either.
        return offset_s if last_age_s is not None else None


def _after_step(stamps_us: Sequence[int]) -> int:
    """Where the last ascending part starts: stamps that fall were made before the clock was set back."""
    falls = [index for index in range(1, len(stamps_us)) if stamps_us[index] <= stamps_us[index - 1]]
    return falls[-1] if falls else 0


TRIED = (9, 0)  # the compute capability that this reader was tried on
PART_TIME = ((8, 0), (9, 0))  # A100 and H100 class: the sensor looks for 25 ms of each 100 ms
GA100 = (8, 0)
STUDY = (
    "about 5 % on several devices in 'Part-time power measurements: nvidia-smi's lack of attention' (2023); "
    "not checked by us"
)
SLICE = "the whole GPU, of which this process has one MIG slice"


@dataclass
class NvidiaDevice:
    """One GPU that this process may use."""

    uuid: str
    handle: Any
    name: str
    capability: tuple[int, int] | None
    is_sliced: bool = False
    gpus_of_node: int = 1

    @property
    def evidence(self) -> str:
        return "hardware" if self.capability == TRIED else "documented format"

    def sensor(self, name: str, kind: str, what: str, **stated: Any) -> Sensor:
        label = f"{self.name}, {what}" + (f" ({SLICE})" if self.is_sliced else "")
        defaults: dict[str, Any] = {
            "scope": "gpu", "part": self.uuid, "evidence": self.evidence, "resolution": 0.001,
            "uncertainty": 0.05, "uncertainty_source": STUDY,
        }  # fmt: skip
        return Sensor(id=f"nvidia.{name} {self.uuid}", reader="nvidia", kind=kind, label=label, **defaults | stated)


@dataclass
class NvidiaReader:
    """Every sensor of every GPU that CUDA_VISIBLE_DEVICES shows; `notes` says what was assumed."""

    nvml: Nvml
    devices: dict[str, NvidiaDevice]
    notes: tuple[str, ...] = ()
    id: str = "nvidia"
    sensors: Sequence[Sensor] = ()
    _asks: dict[str, Callable[[], float | list[Reading]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = [pair for device in self.devices.values() for pair in _sensors(self.nvml, device)]
        self.sensors = tuple(sensor for sensor, _ in found)
        self._asks = {sensor.id: ask for sensor, ask in found}

    def read(self, sensor: Sensor) -> float | list[Reading]:
        ask = self._asks.get(sensor.id)
        if ask is None:
            raise SensorLost(f"{sensor.id} is not a sensor of the reader nvidia, or it was closed")
        try:
            return ask()
        except NvmlError as error:
            raise SensorLost(str(error)) from error

    def busy(self, part: str) -> str | None:
        """Processes that NVML lists (it shows none of other containers) and utilisation, in words."""
        handle = self._handle(part)
        if handle is None:
            return None
        pids = self.nvml.pids(handle)
        percent = self.nvml.utilisation_percent(handle)
        words = []
        if pids:
            words.append(f"{counted(len(pids), 'process', 'processes')} on it (pid {', '.join(map(str, pids))})")
        if percent:
            words.append(f"{percent} % utilised")
        if words:
            return ", ".join(words)
        return None if pids is None or percent is None else ""

    def limit_w(self, part: str) -> float | None:
        """The power limit that the driver enforces now."""
        device = self.devices.get(part)  # a module has a limit of its own, which NVML does not give
        return None if device is None else self.nvml.limit_w(device.handle)

    def conditions(self, part: str) -> dict[str, Any] | None:
        """What holds the GPU's clocks back now, and how many processes compute on it; null for what NVML refuses."""
        handle = self._handle(part)
        if handle is None:
            return None
        return {"throttle": self.nvml.throttle(handle), "processes": self.nvml.computing(handle)}

    def close(self) -> None:
        self._asks.clear()
        self.nvml.close()

    def _handle(self, part: str) -> Any:
        device = self.devices.get(part.removeprefix("module of "))
        return None if device is None else device.handle


def open_reader(root: Path) -> NvidiaReader:
    """Find the GPUs and what each can be asked; `root` is not used, NVML has no file to move."""
    try:
        nvml = open_nvml()
    except NvmlError as error:
        raise Unavailable(str(error)) from error
    try:
        reader = _open(nvml)
    except BaseException as error:
        nvml.close()
        if isinstance(error, NvmlError):
            raise Unavailable(str(error)) from error
        raise
    if not reader.sensors:
        reader.close()
        names = ", ".join(device.name for device in reader.devices.values())
        raise Unavailable(f"NVML knows {names}, but gives neither energy nor power of it; a newer driver may")
    return reader


def _open(nvml: Nvml) -> NvidiaReader:
    handles, notes = nvml.handles()
    if not handles:
        raise Unavailable("NVML starts but shows no GPU that this process may open" + "".join(f" ({n})" for n in notes))
    gpus = [Gpu(uuid, nvml.slices(uuid, handle)) for uuid, handle in handles.items()]
    visible = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), gpus)
    if not visible.uuids:
        why = visible.note or "CUDA_VISIBLE_DEVICES shows none"
        raise Unavailable(f"this process may use no GPU: {why}; unset the variable to use all {len(gpus)}")
    devices = {}
    for uuid in visible.uuids:
        handle = handles[uuid]
        is_sliced = uuid in visible.sliced or nvml.is_mig(uuid)
        devices[uuid] = NvidiaDevice(uuid, handle, nvml.name(handle), nvml.capability(handle), is_sliced, len(handles))
    models = {nvml.name(handle) for handle in handles.values()}
    return NvidiaReader(nvml, devices, tuple(notes + _notes(visible, devices, models)))


def _notes(visible: Visible, devices: dict[str, NvidiaDevice], models: set[str]) -> list[str]:
    notes = [visible.note] if visible.note else []
    if visible.by_index and len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            "CUDA_VISIBLE_DEVICES counts GPUs of different models; that CUDA counts them in the order of the PCI bus "
            "is assumed: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID"
        )
    for device in devices.values():
        if device.is_sliced:
            notes.append(f"{device.uuid} is in MIG mode; a slice has no sensor of its own: what is read is {SLICE}")
    return notes


def _sensors(nvml: Nvml, device: NvidiaDevice) -> list[tuple[Sensor, Callable[[], float | list[Reading]]]]:
    """What this GPU answers when asked once; what it refuses now is not offered."""
    handle, capability = device.handle, device.capability
    part_time: dict[str, Any] = {"window_s": 0.025, "seen_share": 0.25} if capability in PART_TIME else {}
    buffer = SampleBuffer(nvml, handle)
    found: list[tuple[Sensor, Callable[[], float | list[Reading]]]] = []

    def offer(sensor: Sensor, ask: Callable[[], float | list[Reading]], trial: Callable[[], object]) -> bool:
        try:
            trial()
        except NvmlError:
            return False
        found.append((sensor, ask))
        return True

    def offer_power(name: str, kind: str, what: str, ask: Callable[[], float], **stated: Any) -> bool:
        return offer(device.sensor(name, kind, what, period_s=0.1, **stated), ask, ask)

    energy = partial(nvml.energy_j, handle)
    offer(device.sensor("energy", "counter", "energy counter", period_s=0.1), energy, energy)
    # Whether a sample of the buffer looks at all of its 20 ms is not known; it agrees with the counter, so 1.0 stays.
    offer(device.sensor("samples", "instantaneous", "driver's samples", period_s=0.02), buffer.new, buffer.ask)
    instant = offer_power(
        "power", "instantaneous", "power now", partial(nvml.field_w, handle, FIELD_INSTANT), **part_time
    )
    average = offer_power(
        "average", "average", "power over 1 s", partial(nvml.field_w, handle, FIELD_AVERAGE), window_s=1.0
    )
    usage = partial(nvml.usage_w, handle)
    # nvmlDeviceGetPowerUsage is documented as instantaneous up to GA100 and as an average over 1 s from then on.
    if not instant and capability is not None and capability <= GA100:
        offer_power("power", "instantaneous", "power usage", usage, evidence="documented format", **part_time)
    elif not average and not instant and capability is not None:
        offer_power("average", "average", "power usage over 1 s", usage, evidence="documented format", window_s=1.0)
    if "GH200" in device.name:  # elsewhere an old driver may ignore the scope and answer for the GPU alone
        _offer_module(nvml, device, offer)
    return found


def _offer_module(nvml: Nvml, device: NvidiaDevice, offer: Callable[..., bool]) -> None:
    """Grace and Hopper together. Never from the energy field (83), which ignores the scope: seen on an H200."""
    # Which socket's Grace it holds NVML does not say. Naming all of them adds none of them twice.
    graces = (f"{rail}-{socket}" for socket in range(device.gpus_of_node) for rail in ("grace", "cpu", "sysio"))
    inside = (device.uuid, "grace", *graces)
    part = f"module of {device.uuid}"
    stated = {"scope": "module", "part": part, "contains": inside, "evidence": "documented format"}
    for name, kind, number, window_s in (
        ("module", "instantaneous", FIELD_INSTANT, None),
        ("module_average", "average", FIELD_AVERAGE, 1.0),
    ):
        sensor = device.sensor(name, kind, f"module, {kind} power", period_s=0.1, window_s=window_s, **stated)
        ask = partial(nvml.field_w, device.handle, number, MODULE)
        offer(sensor, ask, ask)


class SampleBuffer:
    """The driver's buffer of power samples, read without a gap as long as it is asked every two seconds."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self.nvml, self.handle, self.stamps = nvml, handle, DriverStamps()

    def ask(self) -> list[tuple[int, float]]:
        return self.nvml.samples(self.handle, self.stamps.since_us(*clocks()))

    def new(self) -> list[Reading]:
        samples = self.ask()
        wall_s, now_s = clocks()
        times = self.stamps.place([stamp_us for stamp_us, _ in samples], wall_s, now_s)
        return [Reading(at, at, watts) for at, (_, watts) in zip(times, samples, strict=True) if at is not None]

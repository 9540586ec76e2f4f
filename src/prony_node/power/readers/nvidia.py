"""NVIDIA GPUs through NVML (nvidia-ml-py): the energy counter, the driver's own samples, power now and averaged.

Seen on an H200 (driver 580): the counter ticks every 100 ms and a read takes 3 to 4 ms; the buffer holds about 2.4 s of
samples 20 ms apart and agrees with the counter within 0.5 %, steady or not; the field of instantaneous power changes
every 100 ms. How much of the time that one looks at is from "Part-time power measurements: nvidia-smi's lack of
attention" (Yang, Adamek, Armour, 2023), as is the calibration.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prony_node.power.readers.nvml import FIELD_AVERAGE, FIELD_INSTANT, MODULE, Nvml, open_nvml
from prony_node.power.readers.stamps import DriverStamps, clocks
from prony_node.power.readers.visible import Gpu, Visible, visible_gpus
from prony_node.power.sensor import Reading, Sensor, SensorLost, Unavailable

TRIED = (9, 0)  # the compute capability that this reader was tried on
PART_TIME = ((8, 0), (9, 0))  # A100 and H100 class: the sensor looks for 25 ms of each 100 ms
GA100 = (8, 0)
STUDY = (
    "about 5 % on several devices in 'Part-time power measurements: nvidia-smi's lack of attention' (2023); "
    "not checked by us"
)
SLICE = "the whole GPU, of which this process has one MIG slice"


@dataclass
class Device:
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
    devices: dict[str, Device]
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
        return ask()

    def busy(self, part: str) -> str | None:
        """Processes that NVML lists (it shows none of other containers) and utilisation, in words."""
        handle = self._handle(part)
        if handle is None:
            return None
        pids = self.nvml.pids(handle)
        percent = self.nvml.utilisation_percent(handle)
        words = []
        if pids:
            words.append(f"{len(pids)} process{'es' if len(pids) > 1 else ''} on it (pid {', '.join(map(str, pids))})")
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
    nvml = open_nvml()
    try:
        reader = _open(nvml)
    except BaseException:
        nvml.close()
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
        devices[uuid] = Device(uuid, handle, nvml.name(handle), nvml.capability(handle), is_sliced, len(handles))
    models = {nvml.name(handle) for handle in handles.values()}
    return NvidiaReader(nvml, devices, tuple(notes + _notes(visible, devices, models)))


def _notes(visible: Visible, devices: dict[str, Device], models: set[str]) -> list[str]:
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


def _sensors(nvml: Nvml, device: Device) -> list[tuple[Sensor, Callable[[], float | list[Reading]]]]:
    """What this GPU answers when asked once; what it refuses now is not offered."""
    handle, capability = device.handle, device.capability
    part_time: dict[str, Any] = {"window_s": 0.025, "seen_share": 0.25} if capability in PART_TIME else {}
    buffer = SampleBuffer(nvml, handle)
    found: list[tuple[Sensor, Callable[[], float | list[Reading]]]] = []

    def offer(sensor: Sensor, ask: Callable[[], float | list[Reading]], trial: Callable[[], object]) -> bool:
        try:
            trial()
        except SensorLost:
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


def _offer_module(nvml: Nvml, device: Device, offer: Callable[..., bool]) -> None:
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

"""The door to torch: what `prony_node.backends.protocol.Backend` asks for, with its device, clocks and collectives."""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from prony_node.backends.protocol import RankGroup
from prony_node.backends.torch import compiling, memory
from prony_node.backends.torch.facts import device_facts
from prony_node.backends.torch.memory import TorchMemoryBudget, cap_memory
from prony_node.backends.torch.model import TorchModel, about, build_model, fit, open_data
from prony_node.backends.torch.task import Task
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.machine import Machine
from prony_node.contract.record import CompileCacheUse, Metric
from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality
from prony_node.data.source import OpenedDataSet
from prony_node.measure.loop import Block, Clock, HostClock, Stopwatch
from prony_node.parallel.place import RankPosition
from prony_node.parallel.replicas import Ranks
from prony_node.workloads import build_task
from prony_node.workloads.collective import Collective, gather, make_collective, refuse_unoffered
from prony_node.workloads.config import Workload

# Clocks of torch's devices: events that are read late, and a synchronisation per block where there are none.


class SynchronisedClock(HostClock):
    """For a device whose events cannot time (MPS): a synchronisation a block, and the record says so."""

    source = "host clock, device synchronised at the end of each block"

    def begin(self) -> None:
        torch.accelerator.synchronize()
        super().begin()

    def mark(self, steps: int) -> None:
        torch.accelerator.synchronize()
        super().mark(steps)


class EventClock:
    """Device events at the ends of blocks, read when they are long past.

    The host stays at most `ahead` blocks before the device, so that a decision to stop is acted on soon;
    it waits for that by sleeping, since a spinning host would take a core from what is measured.
    """

    source = "device events"
    monotonic_start = monotonic_end = 0.0

    def __init__(self, device: torch.device, ahead: int, nap_s: float) -> None:
        self._device = device
        self._ahead = ahead
        self._nap_s = nap_s
        self._spare: list[torch.Event] = []
        self._last: torch.Event | None = None
        self._pending: deque[tuple[torch.Event, int, list[tuple[torch.Event, torch.Event]]]] = deque()
        self._waits: list[tuple[torch.Event, torch.Event]] = []
        self._asked: torch.Event | None = None

    def _now(self) -> torch.Event:
        event = self._spare.pop() if self._spare else torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        torch.accelerator.synchronize()
        self.monotonic_start = time.monotonic()
        self._last = self._now()

    def waiting(self) -> None:
        self._asked = self._now()

    def arrived(self) -> None:
        # If the device is still busy with the step before, these two events fall together: no wait.
        assert self._asked is not None
        self._waits.append((self._asked, self._now()))

    def mark(self, steps: int) -> None:
        self._pending.append((self._now(), steps, self._waits))
        self._waits = []

    def finished(self) -> list[Block]:
        blocks = []
        while len(self._pending) > self._ahead:
            while not self._pending[0][0].query():
                time.sleep(self._nap_s)
            blocks.append(self._read())
        return blocks

    def end(self) -> list[Block]:
        torch.accelerator.synchronize()
        self.monotonic_end = time.monotonic()
        return [self._read() for _ in range(len(self._pending))]

    def _read(self) -> Block:
        event, steps, waits = self._pending.popleft()
        assert self._last is not None
        duration_s = self._last.elapsed_time(event) * 1e-3
        wait_s = sum(asked.elapsed_time(arrived) for asked, arrived in waits) * 1e-3
        for pair in waits:
            self._spare.extend(pair)
        self._spare.append(self._last)
        self._last = event
        return Block(steps, duration_s, wait_s)


QUEUE_S = 0.08  # how far the host may be ahead: enough to decide meanwhile, little to throw away


def clock_for(device: torch.device, block_s: float) -> Clock:
    """The best clock of a device, for blocks of about this length."""
    if device.type == "cpu":
        return HostClock()
    if device.type == "mps":
        return SynchronisedClock()
    return EventClock(device, ahead=max(2, round(QUEUE_S / max(block_s, 1e-6))), nap_s=QUEUE_S / 40)


# The collectives of a torch process group, and how a block of them is timed.


class HostStopwatch:
    """For operations that are done when they return."""

    def start(self) -> None:
        self._began_s = time.perf_counter()

    def stop(self) -> float:
        return time.perf_counter() - self._began_s


class EventStopwatch:
    """Device events around the operations, read once the device has done them."""

    def __init__(self, device: torch.device) -> None:
        self._first, self._last = (torch.Event(device, enable_timing=True) for _ in range(2))

    def start(self) -> None:
        self._first.record()

    def stop(self) -> float:
        self._last.record()
        torch.accelerator.synchronize()
        return self._first.elapsed_time(self._last) * 1e-3


def stopwatch_of(device: torch.device) -> Stopwatch:
    return HostStopwatch() if device.type == "cpu" else EventStopwatch(device)


class TorchCollectives:
    """One kind of operation between all ranks of the process group."""

    def __init__(self, name: str, settings: dict[str, Value], device: torch.device) -> None:
        self._name, self._settings, self._device = name, settings, device
        self.ranks, self.backend = dist.get_world_size(), str(dist.get_backend())

    def refuse_unoffered(self) -> None:
        refuse_unoffered(self._name, self._settings, self._device)

    def make(self, size: int) -> Collective:
        return make_collective(self._name, size, self._settings, self._device)

    def gather(self, values: tuple[float, ...]) -> list[tuple[float, ...]]:
        return gather(values, self._device)

    def stopwatch(self) -> Stopwatch:
        return stopwatch_of(self._device)


# Which device a trial runs on, and what its defaults follow from.


class MissingDevice(RuntimeError):
    """The trial names a device that this machine does not have."""


def choose_device(wanted: str, number: int = 0) -> torch.device:
    """The device of a setting: the best one found, or the one that was named. `number` counts on from there."""
    if wanted == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device(found.type, number) if found else torch.device("cpu")
    if number and wanted.partition(":")[0] not in ("cpu", "mps"):
        kind, _, first = wanted.partition(":")
        wanted = f"{kind}:{int(first or 0) + number}"
    device = torch.device(wanted)
    if device.type == "cpu":
        return device
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if present is None or present.type != device.type:
        has = f"only {present.type} and cpu" if present else "only cpu"
        raise MissingDevice(f"device={wanted} is not here; torch {torch.__version__} sees {has}")
    count = torch.accelerator.device_count()
    if (device.index or 0) >= count:
        raise MissingDevice(f"device={wanted} is not here; torch sees {count} device(s) of kind {device.type}")
    return torch.device(device.type, device.index or 0)


def machine_of(device: torch.device, cores: int) -> Machine:
    """What defaults depend on."""
    memory_gib = None
    if device.type in ("cuda", "xpu"):
        memory_gib = torch.get_device_module(device).get_device_properties(device).total_memory / 2**30
    return Machine(device.type, memory_gib, cores, rocm=device.type == "cuda" and torch.version.hip is not None)


def device_name(device: torch.device) -> str:
    if device.type in ("cuda", "xpu"):
        return str(torch.get_device_module(device).get_device_name(device))
    return device.type


# The door to torch: what `prony_node.backends.protocol.Backend` asks for, on one device.


class TorchBackend:
    """Torch on the device of this rank."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def kind(self) -> str:
        return self.device.type

    @property
    def name(self) -> str:
        """The device's own."""
        return device_name(self.device)

    def machine(self, cores: int) -> Machine:
        return machine_of(self.device, cores)

    def facts(self) -> DeviceFacts:
        return device_facts(str(self.device))

    def ranks(self, place: RankPosition | None) -> Ranks:
        return Ranks(place)

    def take_device(self, threads: int | None) -> None:
        """Compute here from now on, on the host with so many threads, where that is said."""
        if threads is not None:
            torch.set_num_threads(threads)
        if self.device.type != "cpu":
            torch.accelerator.set_device_index(self.device.index or 0)

    def synchronise(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def clock(self, block_s: float) -> Clock:
        return clock_for(self.device, block_s)

    def cap_memory(self, cap_gib: Value | None, share: float) -> TorchMemoryBudget:
        return cap_memory(self.device, cap_gib, share)

    def free_memory(self, cap_gib: Value | None) -> str:
        return memory.free_words(self.device, cap_gib)

    def refuse_hopeless(self, parameters: int | None, settings: dict[str, Value]) -> None:
        memory.refuse_hopeless(parameters, settings, self.device)

    def reset_peak_memory(self) -> None:
        memory.reset_peak(self.device)

    def memory_metrics(self) -> dict[str, Metric]:
        return memory.memory_metrics(self.device)

    def use_cache(self, settings: dict[str, Value], folder: Path, closing: ExitStack) -> str | None:
        return compiling.use_cache(settings, folder, closing)

    def cache_state(self, settings: dict[str, Value]) -> CompileCacheUse:
        return compiling.cache_state(settings)

    def keep_winners(self) -> None:
        compiling.keep_winners()

    def forget(self) -> None:
        """Free the last model's memory and compiled code.

        Without the reset the compiler would take the next batch size for a dynamic shape and make other, slower
        kernels than a fresh process does.
        """
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def open_data(
        self,
        workload: Workload,
        settings: dict[str, Value],
        asked: Mapping[str, Value],
        cores: int,
        note: Callable[[str], None],
    ) -> tuple[OpenedDataSet, dict[str, Value], dict[str, Any]]:
        """The data set, the settings with what follows from it, and what the record says of it."""
        opened, fitted = open_data(workload, settings, asked, cores, note)
        return opened, fitted, about(opened, fitted)

    def task(
        self, workload: Workload, settings: dict[str, Value], opened: OpenedDataSet | None
    ) -> tuple[Task, dict[str, Value]]:
        """The model and what is done with it; with the settings, since a library may fill an `auto` in."""
        own = dict(settings)
        task, own = with_learning_rate(build_task(workload, own), own)
        fit(workload, opened, task)
        if workload.known_parameters(own) is None:
            self.refuse_hopeless(memory.parameters_of(task), own)
        return task, own

    def build(
        self,
        workload: Workload,
        task: Task,
        settings: dict[str, Value],
        ranks: RankGroup,
        opened: OpenedDataSet | None,
        closing: ExitStack,
    ) -> TorchModel:
        return build_model(workload, task, settings, self.device, ranks, opened, closing)

    def collective(self, name: str, settings: dict[str, Value]) -> TorchCollectives:
        return TorchCollectives(name, settings, self.device)


def with_learning_rate(task: Task, settings: dict[str, Value]) -> tuple[Task, dict[str, Value]]:
    """The rate that was asked for; where a run trains to a quality, its own is a setting like any other."""
    if "learning_rate" in settings:
        return replace(task, learning_rate=float(settings["learning_rate"])), settings
    if learns_to_quality(settings):
        return task, {**settings, "learning_rate": f"{task.learning_rate:g}"}
    return task, settings

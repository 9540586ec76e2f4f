"""The door to torch: what `prony_node.backends.protocol.Backend` asks for, on one device."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prony_node.backends.protocol import RankGroup
from prony_node.backends.torch import compiling, memory
from prony_node.backends.torch.clock import clock_for
from prony_node.backends.torch.collective import TorchCollectives
from prony_node.backends.torch.device import device_name, machine_of
from prony_node.backends.torch.inputs import about, fit, open_data
from prony_node.backends.torch.memory import MemoryBudget, cap_memory
from prony_node.backends.torch.model import TorchModel, build_model
from prony_node.backends.torch.task import Task
from prony_node.contract.machine import Machine
from prony_node.contract.record import CompileCacheUse, Metric
from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality
from prony_node.data.source import OpenedDataSet
from prony_node.measure.clock import Clock
from prony_node.parallel.place import RankPosition
from prony_node.parallel.ranks import Ranks
from prony_node.workloads import build_task
from prony_node.workloads.config import Workload


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

    def cap_memory(self, cap_gib: Value | None, share: float) -> MemoryBudget:
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

"""Torch before a device is chosen: what it is asked on this machine. Importing this file imports no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from prony_node.backends.protocol import Ability, DeviceAbilities, FrameworkHere
from prony_node.backends.torch import out_of_memory
from prony_node.contract.errors import RequestError
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.contract.typed import JsonObject, encode
from prony_node.facts.tree import Missing
from prony_node.workloads.config import Workload

if TYPE_CHECKING:
    from prony_node.backends.torch.backend import TorchBackend

# torch.accelerator names one of them, a build may hold more.
KINDS = ("cuda", "xpu", "mps", "hpu", "npu", "mtia")


class TorchFramework:
    """Torch, as this Python has it."""

    name = "torch"

    def load(self) -> None:
        import prony_node.backends.torch.backend  # noqa: F401

    def open(self, wanted: str, number: int = 0) -> TorchBackend:
        from prony_node.backends.torch.backend import TorchBackend, choose_device

        return TorchBackend(choose_device(wanted, number))

    def take_only_what_is_needed(self) -> None:
        out_of_memory.avoid_reservations()

    def out_of_memory_in(self, error: BaseException) -> BaseException | None:
        return out_of_memory.out_of_memory_in(error)

    def find_devices(self) -> JsonObject:
        try:
            import torch
        except ImportError as error:
            return {"kind": None, "devices": [], "reason": f"torch cannot be imported: {error}"}
        from prony_node.backends.torch.backend import machine_of

        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is None:
            return {"kind": "cpu", "devices": ["cpu"], "torch": str(torch.__version__)}
        kind = str(accelerator.type)
        module = torch.get_device_module(kind)
        names = [
            str(module.get_device_name(index)) if hasattr(module, "get_device_name") else kind
            for index in range(torch.accelerator.device_count())
        ]
        memory_gib = [machine_of(torch.device(kind, index), cores=1).memory_gib for index in range(len(names))]
        return {"kind": kind, "devices": names, "memory_gib": memory_gib, "torch": str(torch.__version__)}

    def here(self) -> FrameworkHere:
        try:
            import torch  # noqa: F401
        except Exception as error:  # absent, or broken: a library it wants is not there
            absent = importlib.util.find_spec("torch") is None
            reason = "torch is not installed in this Python" if absent else f"torch cannot be imported: {error}"
            return FrameworkHere(None, reason)
        from prony_node.backends.torch.facts import distributed_backends, torch_facts

        missing = Missing()
        facts = torch_facts(missing)
        said, distributed = encode(facts), tuple(distributed_backends())
        return FrameworkHere(said, "", bool(facts.hip), distributed, tuple(missing.entries))

    def device_names(self) -> list[str]:
        import torch

        names: list[str] = []
        for kind in KINDS:
            try:
                module = torch.get_device_module(kind)
                count = int(module.device_count()) if module.is_available() else 0
            except Exception:  # a kind that this build does not have
                continue
            names += [kind] if kind == "mps" and count else [f"{kind}:{index}" for index in range(count)]
        return [*names, "cpu"]

    def device_facts(self, device: str) -> DeviceFacts:
        from prony_node.backends.torch.facts import device_facts

        return device_facts(device)

    def device_abilities(self, device: str) -> DeviceAbilities:
        from prony_node.backends.torch.facts import device_abilities

        return device_abilities(device)

    def compile_ability(self, kind: str) -> Ability:
        from prony_node.backends.torch.facts import compile_ability

        return compile_ability(kind)

    def try_workload(
        self, workload: Workload, build: Callable[[Workload, dict[str, Value]], object], where: str
    ) -> None:
        import torch

        from prony_node.backends.torch.compiling import count_flops
        from prony_node.backends.torch.task import Task

        settings = workload.effective({}, Machine("cuda" if workload.pinned else "cpu", None, 1))
        task = build(workload, settings)
        if not isinstance(task, Task):
            raise RequestError(f"{where}: build() answers a {type(task).__name__}, not a Task")
        if task.unit != workload.unit:
            raise RequestError(f"{where}: the task counts {task.unit!r} and the workload {workload.unit!r}")
        with torch.device("meta"):
            model = task.model()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if workload.parameters is not None and parameters != workload.parameters:
            stated = f"states {workload.parameters:,} parameters"
            raise RequestError(f"{where} {stated}, and its model has {parameters:,}")
        for mode in workload.modes:
            count_flops(task, training=mode == "train", recompute=False)


FRAMEWORK = TorchFramework()

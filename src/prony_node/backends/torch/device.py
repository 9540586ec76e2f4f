"""Which device a trial runs on, and what its defaults follow from."""

from __future__ import annotations

import torch

from prony_node.contract.machine import Machine


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

"""Which devices torch finds here; asked by a controller that must not import torch itself."""

from __future__ import annotations

from typing import Any


def find_devices() -> dict[str, Any]:
    """kind: cpu or the accelerator's (cuda, xpu, mps), with names and memory; null with a reason without torch."""
    try:
        import torch
    except ImportError as error:
        return {"kind": None, "devices": [], "reason": f"torch cannot be imported: {error}"}
    from prony_node.measure.device import machine_of

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

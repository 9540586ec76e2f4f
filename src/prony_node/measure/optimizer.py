"""What updates the weights, as the settings ask for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality
from prony_node.measure.protocol import Task

KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def make_optimizer(
    task: Task, settings: dict[str, Value], model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    rate: float | Tensor = task.learning_rate
    if learns_to_quality(settings) and settings["graphs"]:
        rate = torch.tensor(task.learning_rate, device=device)  # a captured step reads it from there
    options: dict[str, Any] = {"lr": rate, "weight_decay": task.weight_decay}
    options["fused"] = bool(settings["fused"]) or None  # None, not False: torch's own default beside it
    if settings["optimizer"] == "sgd":
        options["momentum"] = 0.9
    elif settings["graphs"]:
        options["capturable"] = True
    groups = [{"params": group} for group in by_mesh(model)]
    optimizer: torch.optim.Optimizer = KINDS[str(settings["optimizer"])](groups, **options)
    if settings["optimizer"] == "sgd" and settings["fused"]:
        # Torch makes these in the first step and leaves them unwritten when that step overflows, as the first
        # one in fp16 does; from zero the first update is the same.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def by_mesh(model: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters in groups that an optimizer can take at once: plain ones, and those in parts over the same devices."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())

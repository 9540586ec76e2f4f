"""What updates the weights, as the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable
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
    captured = learns_to_quality(settings) and bool(settings["graphs"])
    options: dict[str, Any] = {"weight_decay": task.weight_decay}
    options["fused"] = bool(settings["fused"]) or None  # None, not False: torch's own default beside it
    if settings["optimizer"] == "sgd":
        options["momentum"] = 0.9
    elif settings["graphs"]:
        options["capturable"] = True
    groups = in_groups(model, task.rate_share)
    for group in groups:
        rate = task.learning_rate * group["share"]
        group["lr"] = torch.tensor(rate, device=device) if captured else rate  # a captured step reads it from there
    optimizer: torch.optim.Optimizer = KINDS[str(settings["optimizer"])](groups, **options)
    if settings["optimizer"] == "sgd" and settings["fused"]:
        # Torch makes these in the first step and leaves them unwritten when that step overflows, as the first
        # one in fp16 does; from zero the first update is the same.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def in_groups(model: nn.Module, share: Callable[[str], float]) -> list[dict[str, Any]]:
    """Parameters that an optimizer can take at once: in parts over the same devices or plain, and of one rate."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault((getattr(parameter, "device_mesh", None), share(name)), []).append(parameter)
    return [{"params": parameters, "share": share} for (_, share), parameters in groups.items()]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """This learning rate from the next step on, or a group's share of it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["share"])  # a captured step reads it from there
        else:
            group["lr"] = rate * group["share"]

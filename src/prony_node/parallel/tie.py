"""The choice of how a step is tied to those of other ranks: not at all, as a replica, or as a part of one model."""

from __future__ import annotations

from typing import Any

import torch

from prony_node.contract.parallel import devices_of_model, in_lockstep
from prony_node.contract.settings import Value
from prony_node.parallel.replicas import Replicas


def replicas_of(settings: dict[str, Value], device: torch.device, split: Any = None) -> Replicas | None:
    """How a step is tied to those of other ranks; `split` is how the workload's model is split over several."""
    if devices_of_model(settings) > 1:
        from prony_node.parallel.split import Split  # torch's DTensor and pipelines take a while to import

        return Split(settings, device, split)
    return Replicas(settings, device) if in_lockstep(settings) else None

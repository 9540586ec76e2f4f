"""The devices of a run as torch's mesh: replicas, each a pipeline of devices that share every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Share:
    """What of a model is on this device."""

    stages: tuple[int, ...]  # of `count`, by their number in order
    count: int
    tensor: DeviceMesh | None  # the devices that share each of these stages, if there are others
    device: torch.device
    plain: bool  # parameters are kept as plain tensors

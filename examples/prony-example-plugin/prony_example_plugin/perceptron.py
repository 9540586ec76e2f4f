"""How the workload is built. Only the rank imports this file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import nn

from prony_node.backends.torch.task import Task
from prony_node.data.synthetic import image_sampler

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

CLASSES, SIZE = 10, 28


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    width = int(settings["hidden"])

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, width), nn.ReLU(), nn.Linear(width, CLASSES))

    return Task(
        unit="images",
        units_per_sample=1,
        model=model,
        loss=lambda network, batch: F.cross_entropy(network(batch[0]), batch[1]),
        predict=lambda network, batch: network(batch[0]),
        sample=image_sampler(classes=CLASSES, size=SIZE),
        learning_rate=1e-3,
    )

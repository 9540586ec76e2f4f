"""ResNet-50 as torchvision builds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prony_node.measure.protocol import Task
from prony_node.workloads.image.task import image_task

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    from torchvision.models import resnet50

    classes = workload.shape["classes"]
    return image_task(lambda: resnet50(weights=None, num_classes=classes), classes, settings)

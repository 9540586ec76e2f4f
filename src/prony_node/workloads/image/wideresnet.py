"""WideResNet for small images: wide basic blocks, max-pooling between the stages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from prony_node.backends.torch.task import Task
from prony_node.workloads.image.task import TINY_CLASSES, class_count, image_task, is_tiny

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

STEM = 16
STAGES = (160, 320, 640)
BLOCKS = 2
TINY_STAGES = (16, 32, 64)


class WideBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False) if inputs != outputs else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class WideResNet(nn.Module):
    def __init__(self, classes: int, channels: tuple[int, ...] = STAGES, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(STEM)
        self.relu = nn.ReLU()
        stages: list[nn.Module] = []
        inputs = STEM
        for number, outputs in enumerate(channels):
            if number:
                stages.append(nn.MaxPool2d(2))
            for _ in range(blocks):
                stages.append(WideBlock(inputs, outputs))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(x)))
        x = self.stages(x)
        return self.fc(x.mean((2, 3)))


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    if is_tiny(settings):
        classes = class_count(settings, TINY_CLASSES)
        return image_task(partial(WideResNet, classes, TINY_STAGES, 1), classes, settings, sgd_rate=0.05)
    classes = class_count(settings, workload.shape["classes"])
    return image_task(partial(WideResNet, classes), classes, settings)

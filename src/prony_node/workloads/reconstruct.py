"""A residual autoencoder in plain torch: two halvings, one bottleneck, two doublings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.task import Batch, Task
from prony_node.data.synthetic import blend_sampler
from prony_node.workloads.image import fold_batch_norms
from prony_node.workloads.reconstruct_config import BOTTLENECK, SIDE, TINY_BOTTLENECK, TINY_WIDTHS, WIDTHS

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

LEARNING_RATE = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3}


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = convolution(width, width)
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.conv(self.first(x))))


class Autoencoder(nn.Module):
    def __init__(self, channels: int, widths: tuple[int, int, int], bottleneck: int) -> None:
        super().__init__()
        first, middle, last = widths
        self.coarse = (last, SIDE // 4, SIDE // 4)
        described = last * (SIDE // 4) ** 2
        self.encoder = nn.Sequential(
            convolution(channels, first), ResidualBlock(first),
            convolution(first, middle, stride=2), ResidualBlock(middle),
            convolution(middle, last, stride=2), ResidualBlock(last),
        )  # fmt: skip
        self.narrow = nn.Linear(described, bottleneck)
        self.widen = nn.Linear(bottleneck, described)
        self.decoder = nn.Sequential(
            ResidualBlock(last), nn.Upsample(scale_factor=2), convolution(last, middle),
            ResidualBlock(middle), nn.Upsample(scale_factor=2), convolution(middle, first),
            ResidualBlock(first), nn.Conv2d(first, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        numbers = self.narrow(self.encoder(images).flatten(1))
        return self.decoder(self.widen(numbers).unflatten(1, self.coarse))


def reconstruction_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error; labels, where the data has them, are not looked at."""
    return F.mse_loss(network(batch[0]).float(), batch[0].float())


def reconstruction_scores(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    images = batch[0].float()
    return {"loss": (network(batch[0]).float() - images).square().flatten(1).mean(1)}


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    channels = workload.shape["channels"]
    tiny = settings.get("size") == "tiny"
    widths, bottleneck = (TINY_WIDTHS, TINY_BOTTLENECK) if tiny else (WIDTHS, BOTTLENECK)
    return Task(
        unit="images",
        units_per_sample=1,
        model=lambda: Autoencoder(channels, widths, bottleneck),
        loss=reconstruction_loss,
        predict=lambda network, batch: network(batch[0]),
        sample=blend_sampler(channels, SIDE),
        learning_rate=LEARNING_RATE[str(settings.get("optimizer", workload.optimizer))],
        for_inference=fold_batch_norms,
        scores=reconstruction_scores,
    )

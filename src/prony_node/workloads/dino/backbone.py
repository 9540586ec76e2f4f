"""Swin and what makes feature levels of one width of it: strides 8, 16 and 32, a fourth of 64, and maybe one of 4."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from prony_node.workloads.dino.attention import portable_kernels
from prony_node.workloads.dino.config import Size

CHANNELS_A_GROUP = 8  # of the group norms: 32 groups of 256 channels
STRIDES = (4, 8, 16, 32, 64)
STAGES = ("stage1", "stage2", "stage3", "stage4")  # of Swin, whose strides are all of these but the last
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of red, green and blue from 0 to 1


def level_shapes(height: int, width: int, levels: int) -> list[tuple[int, int]]:
    """Of the maps: patches of four pixels, whose number is halved up to four times, each time rounded up."""
    return [(-(-height // stride), -(-width // stride)) for stride in STRIDES[-levels:]]


class Backbone(nn.Module):
    """Images to four or five maps, the finest first."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1), persistent=False)
        self.swin = make_swin(size)
        self.levels = size.levels
        widths = [size.swin_width * 2**stage for stage in range(len(STAGES))][1 - size.levels :]
        self.projections = nn.ModuleList(_projection(width, size.hidden, 1) for width in widths)
        self.coarsest = _projection(widths[-1], size.hidden, 3)

    def forward(self, images: Tensor, sizes: Tensor) -> list[Tensor]:
        with portable_kernels():
            maps = self.swin(self._normalised(images, sizes)).feature_maps
        levels = [project(found) for project, found in zip(self.projections, maps, strict=True)]
        return [*levels, self.coarsest(maps[-1])]

    def _normalised(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Values from 0 to 1 to values around 0, which is also what the padding holds."""
        rows = torch.arange(images.shape[-2], device=images.device) < sizes[:, :1]
        columns = torch.arange(images.shape[-1], device=images.device) < sizes[:, 1:]
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        return (images - self.mean) / self.deviation * inside


def make_swin(size: Size) -> nn.Module:
    """As transformers builds it, with random weights; a layer norm behind each of the stages that are taken."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded to benchmark
    from transformers import SwinBackbone, SwinConfig

    config = SwinConfig(
        embed_dim=size.swin_width,
        depths=list(size.swin_depths),
        num_heads=list(size.swin_heads),
        window_size=size.swin_window,
        drop_path_rate=size.drop_path,
        out_features=list(STAGES[1 - size.levels :]),
    )
    swin: nn.Module = SwinBackbone(config)
    swin.swin.layernorm = nn.Identity()  # a norm behind the last stage that no feature map goes through
    _tell_padding(swin.swin.embeddings.patch_embeddings.projection)
    return swin


def _tell_padding(embedding: nn.Conv2d) -> None:
    """Begin this bias as torch does and not with zeros, which would make a token of the padding a vector of zeros.

    Every layer norm on the way divides the gradient of such a token by the root of its epsilon. Through all of Swin the
    biases would get gradients of 1e13 at first, and Adam would not move them for tens of thousands of steps.
    """
    bound = embedding.weight[0].numel() ** -0.5
    nn.init.uniform_(embedding.bias, -bound, bound)


def _projection(inputs: int, hidden: int, kernel: int) -> nn.Sequential:
    """To the transformer's width; with a kernel of 3 also to half the resolution."""
    conv = nn.Conv2d(inputs, hidden, kernel, stride=2 if kernel == 3 else 1, padding=kernel // 2)
    nn.init.xavier_uniform_(conv.weight)
    nn.init.zeros_(conv.bias)
    return nn.Sequential(conv, nn.GroupNorm(hidden // CHANNELS_A_GROUP, hidden))

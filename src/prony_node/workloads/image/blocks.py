"""Residual blocks that infer, with what follows each convolution inside cuDNN's kernel: bias, shortcut and ReLU.

The compiler leaves convolutions to cuDNN and makes kernels of what follows, which read and write the whole image once
more. Where cuDNN was not shown to have such kernels (another device, 32 bits, another layout) the same is done step by
step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rectified = Callable[[Tensor, Tensor, Tensor, int, int, int], Tensor]
Joined = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _rectified(image: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    if has_kernel(image):
        pairs = [(each, each) for each in (stride, padding, dilation)]
        return torch.cudnn_convolution_relu(image, weight, bias, *pairs, 1)
    return F.conv2d(image, weight, bias, stride, padding, dilation).relu_()


def _joined(image: Tensor, weight: Tensor, shortcut: Tensor, bias: Tensor) -> Tensor:
    if has_kernel(image):
        return torch.cudnn_convolution_add_relu(image, weight, shortcut, 1.0, bias, (1, 1), (0, 0), (1, 1), 1)
    return F.conv2d(image, weight, bias).add_(shortcut).relu_()


def has_kernel(image: Tensor) -> bool:
    halves = image.dtype in (torch.bfloat16, torch.float16)
    laid_out = image.is_contiguous(memory_format=torch.channels_last)
    return image.is_cuda and torch.version.hip is None and halves and laid_out


@lru_cache(maxsize=1)
def operations() -> tuple[Rectified, Joined]:
    """Made when they are first wanted: torch keeps a table of them. The compiler does not look inside."""
    rectified = torch.library.custom_op("prony::convolution_relu", _rectified, mutates_args=())
    joined = torch.library.custom_op("prony::convolution_add_relu", _joined, mutates_args=())
    rectified.register_fake(F.conv2d)
    joined.register_fake(lambda image, weight, shortcut, bias: F.conv2d(image, weight, bias))
    return rectified, joined


class FusedBlock(nn.Module):
    """In place of torchvision's bottleneck whose batch norms are folded, with its parameters.

    The bias of a shortcut's own convolution is added with that of the last one.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = block.conv1, block.conv2, block.conv3
        self.downsample = block.downsample
        if self.downsample is not None:
            self.conv3.bias = nn.Parameter(self.conv3.bias + self.downsample[0].bias, requires_grad=False)
            self.downsample[0].bias = None
        self._rectified, self._joined = operations()

    def forward(self, image: Tensor) -> Tensor:
        inside = image
        for conv in (self.conv1, self.conv2):
            shape = (conv.stride[0], conv.padding[0], conv.dilation[0])
            inside = self._rectified(inside, conv.weight, conv.bias, *shape)
        shortcut = image if self.downsample is None else self.downsample(image)
        return self._joined(inside, self.conv3.weight, shortcut, self.conv3.bias)


def fuse_blocks(network: nn.Module) -> int:
    """In place, wherever there is such a block; answers how many there were."""
    from torchvision.models.resnet import Bottleneck

    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()
             if isinstance(child, Bottleneck) and _fits(child)]  # fmt: skip
    for parent, name, child in found:
        setattr(parent, name, FusedBlock(child))
    return len(found)


def _fits(block: nn.Module) -> bool:
    """Norms are folded, and convolutions are square, of one group, the last of them of single pixels."""
    convolutions = [block.conv1, block.conv2, block.conv3]
    norms = [block.bn1, block.bn2, block.bn3]
    if block.downsample is not None:
        convolutions.append(block.downsample[0])
        norms += block.downsample[1:]
    folded = all(isinstance(norm, nn.Identity) for norm in norms)
    return folded and all(conv.groups == 1 and conv.bias is not None for conv in convolutions)

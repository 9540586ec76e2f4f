"""Prony's own implementations of layers of image models: same functions and parameters, less memory traffic.

Blocks: residual blocks for inference, with bias, shortcut and ReLU inside cuDNN's convolution kernel. The compiler
leaves convolutions to cuDNN and makes kernels of what follows, which read and write the whole image once more. Where
cuDNN has no such kernel (another device, 32 bits, another layout) the same is done step by step.

Stem: the first convolution of a ResNet in a form that suits the matrix units. It has three channels, where the units
take eight or sixteen, and a stride of two. Four neighbouring pixels of three channels become one place of twelve, and
the 7x7 weights, padded with a row and a column of zeros, become 4x4.

Norms: batch norm and ReLU in a form whose compiled kernels read less. Torch's batch norm computes mean and variance
with a division per value; the compiler keeps it. The sums of values and squares, both from one reading, need no
division. Torch's ReLU finds its gradient from its output, which must be read for that alone; here the sign comes from
what the batch norm reads anyway. The difference of two sums in fp32 loses digits where a mean is many times the
deviation: at 30 times, three of seven. In bf16 such values have lost as many before. Flax computes its batch norms so
by default.

ViT: torch's attention copies queries, keys and values apart and changes the order of dimensions and back; here they
stay where one product left them. Patches do not overlap, so the convolution that embeds them is one matrix product.
Under autocast the class token, which is fp32, makes the residual stream fp32, twice the bytes; here it has the
precision of the layers. Swin: the norm after the patches answers in fp32 under autocast, so the stream of the first
stage is fp32; here it has the precision of the other stages. Its patches are one matrix product too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

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
             if isinstance(child, Bottleneck) and _fits_fused_block(child)]  # fmt: skip
    for parent, name, child in found:
        setattr(parent, name, FusedBlock(child))
    return len(found)


def _fits_fused_block(block: nn.Module) -> bool:
    """Norms are folded, and convolutions are square, of one group, the last of them of single pixels."""
    convolutions = [block.conv1, block.conv2, block.conv3]
    norms = [block.bn1, block.bn2, block.bn3]
    if block.downsample is not None:
        convolutions.append(block.downsample[0])
        norms += block.downsample[1:]
    folded = all(isinstance(norm, nn.Identity) for norm in norms)
    return folded and all(conv.groups == 1 and conv.bias is not None for conv in convolutions)


SIDE, CHANNELS = 7, 3
WIDE = 16  # channels, the last four of them zero


class FoldedStem(nn.Module):
    """In place of the convolution, with its parameters; for images whose sides are even."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = other.weight, other.bias

    def forward(self, images: Tensor) -> Tensor:
        weight = folded(F.pad(self.weight, (1, 0, 1, 0)))
        return F.conv2d(F.pad(folded(images), (2, 1, 2, 1)), weight, self.bias)


def folded(values: Tensor) -> Tensor:
    """Count, 3, high, wide: two by two neighbours become channels, and channels sixteen."""
    count, channels, high, wide = values.shape
    apart = values.reshape(count, channels, high // 2, 2, wide // 2, 2).permute(0, 1, 3, 5, 2, 4)
    flat = apart.reshape(count, channels * 4, high // 2, wide // 2)
    return F.pad(flat, (0, 0, 0, 0, 0, WIDE - channels * 4)).contiguous(memory_format=torch.channels_last)


def fold_stem(network: nn.Module) -> int:
    """In place; answers how many such convolutions there were."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()]
    stems = [
        (parent, name, child)
        for parent, name, child in found
        if isinstance(child, nn.Conv2d) and _fits_folded_stem(child)
    ]
    for parent, name, child in stems:
        setattr(parent, name, FoldedStem(child))
    return len(stems)


def _fits_folded_stem(child: nn.Conv2d) -> bool:
    shape = (child.in_channels, child.kernel_size, child.stride, child.padding, child.dilation, child.groups)
    return shape == (CHANNELS, (SIDE, SIDE), (2, 2), (3, 3), (1, 1), 1)


OVER = (0, 2, 3)  # samples, rows and columns


class SummedNorm(nn.Module):
    """In place of torch's batch norm, with its parameters, statistics and names."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, other: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.momentum = other.weight, other.bias, other.eps, other.momentum
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(other, name))

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(images, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        values = images.to(torch.promote_types(images.dtype, torch.float32))
        mean = values.mean(OVER)
        variance = ((values * values).mean(OVER) - mean * mean).clamp_min(0)
        self._note(mean.detach(), variance.detach(), images.numel() // images.shape[1])
        scale = self.weight * torch.rsqrt(variance + self.eps)
        offset = self.bias - mean * scale
        return (values * scale[:, None, None] + offset[:, None, None]).to(images.dtype)

    def _note(self, mean: Tensor, variance: Tensor, values: int) -> None:
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        kind = self.running_mean.dtype  # another than fp32 where the whole model has another
        self.running_mean.lerp_(mean.to(kind), self.momentum)
        self.running_var.lerp_((variance * (values / max(1, values - 1))).to(kind), self.momentum)


class SignedReLU(nn.Module):
    """ReLU by the sign of what comes in; what is not a number stays so."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.where(images <= 0, 0, images)


def replace_norms(network: nn.Module) -> int:
    """In place; answers how many batch norms there were. Without one nothing is gained, so nothing is changed."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()]
    norms = [(parent, name, child) for parent, name, child in found if _fits_summed_norm(child)]
    for parent, name, child in norms:
        assert isinstance(child, nn.BatchNorm2d)
        setattr(parent, name, SummedNorm(child).train(child.training))
    for parent, name, child in found:
        if norms and type(child) is nn.ReLU:
            setattr(parent, name, SignedReLU())
    return len(norms)


def _fits_summed_norm(child: nn.Module) -> bool:
    """Torch's own, with everything that it can have."""
    plain = type(child) is nn.BatchNorm2d
    return plain and bool(child.affine and child.track_running_stats) and child.momentum is not None


class PackedAttention(nn.Module):
    """In place of torch's MultiheadAttention for samples in rows, with its parameters."""

    def __init__(self, other: nn.MultiheadAttention) -> None:
        super().__init__()
        self.in_proj_weight, self.in_proj_bias, self.out_proj = other.in_proj_weight, other.in_proj_bias, other.out_proj
        self.heads, self.dropout = other.num_heads, other.dropout

    def forward(self, x: Tensor, _keys: Tensor, _values: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        """As the encoder calls it: the three are the same, and nobody looks at the weights."""
        assert not need_weights
        batch, length, width = x.shape
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = packed.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind()
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(found.transpose(1, 2).reshape(batch, length, width)), None


class PatchProduct(nn.Module):
    """In place of a convolution whose kernel is its stride, with its parameters."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        assert other.kernel_size == other.stride
        self.weight, self.bias, self.side = other.weight, other.bias, other.kernel_size[0]

    def forward(self, images: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        rows, columns = height // self.side, width // self.side
        cut = images.view(batch, channels, rows, self.side, columns, self.side).permute(0, 2, 4, 1, 3, 5)
        answer = F.linear(cut.reshape(batch, rows * columns, -1), self.weight.flatten(1), self.bias)
        return answer.transpose(1, 2).unflatten(2, (rows, columns))


def in_autocast_precision(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """Before the first layer."""
    (x,) = given
    kind = x.device.type
    return (x.to(torch.get_autocast_dtype(kind)),) if torch.is_autocast_enabled(kind) else (x,)


def use_own_vit_parts(network: nn.Module) -> None:
    """In place; the names of parameters stay."""
    network.conv_proj = PatchProduct(network.conv_proj)
    for block in network.encoder.layers:
        block.self_attention = PackedAttention(block.self_attention)
    network.encoder.layers.register_forward_pre_hook(in_autocast_precision)


def use_own_swin_parts(network: nn.Module) -> None:
    """In place; the names of parameters stay."""
    features: Any = network.features
    features[0][0] = PatchProduct(features[0][0])
    features[1].register_forward_pre_hook(in_autocast_precision)

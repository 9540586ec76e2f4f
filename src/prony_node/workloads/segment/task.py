"""The task of every segmentation model, and Prony's own bilinear enlargement and depthwise convolution.

Enlargement: the library adds the gradient of each pixel to the four that it was made of, with atomic additions where
they meet: 64 per pixel where a 32x32 map became 256x256. Enlarging is linear along one side and then along the other,
so its gradient is a product with the same two small matrices transposed.

Depthwise convolution: a sum of shifted images, each weighted per channel, of which a compiler makes one kernel. It has
no sums over channels, so matrix units are of no use, and it is done when its input has been read once. It is one
operation in the graph of a model, with another for its gradients: otherwise the compiler would compute its input once
for each of the nine places that it is read from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.contract.kernels import uses_kernel
from prony_node.contract.settings import Value
from prony_node.data.segmentation import IGNORED, region_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.image.layers import fuse_blocks
from prony_node.workloads.image.task import fold_batch_norms
from prony_node.workloads.weights import Head, with_weights

WHOLE_ROWS = 8  # channels, that matrix units take at once


class ByProducts(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, image: Tensor, height: int, width: int, corners: bool) -> Tensor:
        context.before, context.corners = (image.shape[-2], image.shape[-1]), corners
        return F.interpolate(image, (height, width), mode="bilinear", align_corners=corners)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        sides = zip(context.before, gradient.shape[-2:], strict=True)
        rows, columns = (shares(before, after, context.corners, gradient) for before, after in sides)
        return _gathered(gradient, rows, columns), None, None, None


def shares(before: int, after: int, corners: bool, like: Tensor) -> Tensor:
    """Before, after: which share of each place of a line goes into each place of the longer one."""
    alone = torch.eye(before, device=like.device)[None]
    return F.interpolate(alone, after, mode="linear", align_corners=corners)[0].to(like.dtype)


def _gathered(gradient: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    images, channels, height, width = gradient.shape
    if channels % WHOLE_ROWS:  # few classes: their maps are the matrices
        return rows @ gradient @ columns.T
    by_place = gradient.permute(0, 2, 3, 1)
    shorter = (rows @ by_place.reshape(images, height, width * channels)).view(images, -1, width, channels)
    return (columns @ shorter).permute(0, 3, 1, 2)


def enlarged(image: Tensor, size: tuple[int, int], corners: bool = False, products: bool = False) -> Tensor:
    """At that height and width; as it is where that is its own."""
    if image.shape[-2:] == size:
        return image
    if products:
        answer: Tensor = ByProducts.apply(image, *size, corners)
        return answer
    return F.interpolate(image, size, mode="bilinear", align_corners=corners)


class Enlarging(nn.Module):
    """In place of torch's module that enlarges by a factor."""

    def __init__(self, factor: int, corners: bool) -> None:
        super().__init__()
        self.factor, self.corners = factor, corners

    def forward(self, image: Tensor) -> Tensor:
        size = (image.shape[-2] * self.factor, image.shape[-1] * self.factor)
        return enlarged(image, size, self.corners, products=True)


SCHEMA = "(Tensor image, Tensor weight, int dilation) -> Tensor"
SHAPES = 64  # of a model's convolutions, at most; beyond its own bound of eight the compiler leaves them uncompiled
GRADIENTS_SCHEMA = "(Tensor gradient, Tensor image, Tensor weight, int dilation) -> (Tensor, Tensor)"


def moved_images(image: Tensor, kernel: int, dilation: int) -> Iterator[Tensor]:
    """The image as each weight of a kernel sees it, row by row; beyond the border it is zero."""
    height, width = image.shape[-2:]
    reach = dilation * (kernel // 2)
    wider = F.pad(image, (reach, reach, reach, reach))
    for row in range(kernel):
        for column in range(kernel):
            top, left = row * dilation, column * dilation
            yield wider[..., top : top + height, left : left + width]


def weighed_sum(image: Tensor, weight: Tensor, dilation: int) -> Tensor:
    weights = weight.flatten(1).T.float()[..., None, None]  # kernel x kernel, channels, 1, 1
    moved = moved_images(image, weight.shape[-1], dilation)
    return sum(part.float() * own for part, own in zip(moved, weights, strict=True)).to(image.dtype)


def weight_gradient(gradient: Tensor, image: Tensor, weight: Tensor, dilation: int) -> Tensor:
    moved = moved_images(image, weight.shape[-1], dilation)
    sums = [(gradient.float() * part.float()).sum((0, 2, 3)) for part in moved]
    return torch.stack(sums, dim=1).view(weight.shape).to(weight.dtype)


@lru_cache(maxsize=2)
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(function, dynamic=False)
    return compiled


def _run(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """Compiled where it pays: on a device."""
    return (_compiled(function) if given[0].is_cuda else function)(*given)


def _forward(image: Tensor, weight: Tensor, dilation: int) -> Tensor:
    return _run(weighed_sum, image, weight, dilation)


def _backward(gradient: Tensor, image: Tensor, weight: Tensor, dilation: int) -> tuple[Tensor, Tensor]:
    turned = weight.flip(-1, -2)
    return _run(weighed_sum, gradient, turned, dilation), _run(weight_gradient, gradient, image, weight, dilation)


@lru_cache(maxsize=1)
def operation() -> Callable[[Tensor, Tensor, int], Tensor]:
    """Image, weight, dilation to the image's own size. Made when it is first wanted: torch keeps a table of them."""
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
    make = torch.library.custom_op
    depthwise = make("prony::depthwise", _forward, mutates_args=(), schema=SCHEMA)
    gradients = make("prony::depthwise_gradients", _backward, mutates_args=(), schema=GRADIENTS_SCHEMA)

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        image, weight, ctx.dilation = inputs
        ctx.save_for_backward(image, weight)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return (*gradients(gradient, *ctx.saved_tensors, ctx.dilation), None)

    depthwise.register_fake(lambda image, weight, dilation: torch.empty_like(image))
    gradients.register_fake(
        lambda gradient, image, weight, dilation: (torch.empty_like(gradient), torch.empty_like(weight))
    )
    depthwise.register_autograd(backward, setup_context=keep)
    found: Callable[[Tensor, Tensor, int], Tensor] = depthwise
    return found


class Depthwise(nn.Module):
    """In place of torch's convolution, with its weights."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias, self.dilation = other.weight, other.bias, other.dilation[0]
        self.operation = operation()

    def forward(self, image: Tensor) -> Tensor:
        answer = self.operation(image, self.weight.to(image.dtype), self.dilation)
        return answer if self.bias is None else answer + self.bias.to(image.dtype)[:, None, None]


def replace_depthwise(network: nn.Module) -> int:
    """In place, wherever a depthwise convolution keeps the size of its image; answers how many there were."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()
             if isinstance(child, nn.Conv2d) and fits(child)]  # fmt: skip
    for parent, name, child in found:
        setattr(parent, name, Depthwise(child))
    return len(found)


def fits(conv: nn.Conv2d) -> bool:
    kernel, dilation = conv.kernel_size[0], conv.dilation[0]
    alike = all(pair[0] == pair[1] for pair in (conv.kernel_size, conv.dilation, conv.stride, conv.padding))
    keeps = conv.stride[0] == 1 and kernel % 2 == 1 and conv.padding[0] == dilation * (kernel // 2)
    return alike and keeps and 1 < conv.groups == conv.in_channels == conv.out_channels


Logits = Callable[[nn.Module, Tensor], Tensor]  # of the images, at the resolution that the model answers in
Change = Callable[[nn.Module], None]
HELD_OUT = 4  # crops: each has a million pixels to judge by


def segment_task(
    model: Callable[[], nn.Module],
    logits: Logits,
    classes: int,
    settings: dict[str, Value],
    *,
    learning_rate: float,
    weight_decay: float,
    head: Head,
    by_products: Change,
) -> Task:
    """A model that gives every pixel a class; the setting `weights` is filled in here, for all of them."""
    height, width = int(settings["crop_height"]), int(settings["crop_width"])

    def answer(network: nn.Module, batch: Batch) -> Tensor:
        size = (batch[0].shape[-2], batch[0].shape[-1])
        return enlarged(logits(network, batch[0]), size, products=is_by_products(network))

    def own_parts(network: nn.Module) -> None:
        if uses_kernel(settings, "matmul-upsampling"):
            network.by_products = True
            by_products(network)
        if uses_kernel(settings, "compiled-depthwise"):
            replace_depthwise(network)
        if uses_kernel(settings, "fused-blocks"):
            fuse_blocks(network)

    return Task(
        unit="images",
        units_per_sample=1,
        model=with_weights(model, settings.get("weights"), head),
        loss=lambda network, batch: segmentation_loss(answer(network, batch), batch[1]),
        predict=answer,
        sample=region_sampler(classes, height, width),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        for_inference=fold_batch_norms,
        own_parts=own_parts,
        scores=lambda network, batch: segmentation_scores(answer(network, batch), batch[1]),
        held_out=None if settings.get("size") == "tiny" else HELD_OUT,
    )


def is_by_products(network: nn.Module) -> bool:
    """Whether gradients go back through enlarged maps by matrix products: a mark on the model whose parts do."""
    return getattr(network, "by_products", False) is True


def segmentation_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """The mean over pixels that are not ignored; of none at all it is 0, where torch's own mean has no value."""
    counted = (masks != IGNORED).sum().clamp(min=1)
    return F.cross_entropy(logits, masks, ignore_index=IGNORED, reduction="sum") / counted


def segmentation_scores(logits: Tensor, masks: Tensor) -> dict[str, Tensor]:
    """Of each sample: the sum of its pixels' losses, and pixels of each class that are labelled, answered and both."""
    classes = logits.shape[1]
    losses = F.cross_entropy(logits.float(), masks, ignore_index=IGNORED, reduction="none")
    known = masks != IGNORED
    pairs = masks.clamp(max=classes - 1) * classes + logits.argmax(1)
    first = torch.arange(len(masks), device=masks.device).view(-1, 1, 1) * classes**2
    counts = torch.bincount((pairs + first)[known], minlength=len(masks) * classes**2)
    table = counts.view(len(masks), classes, classes)  # sample, labelled, answered
    return {
        "loss": losses.sum((1, 2)),
        "intersection": table.diagonal(dim1=1, dim2=2),
        "labelled": table.sum(2),
        "answered": table.sum(1),
    }

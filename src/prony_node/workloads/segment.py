"""Semantic segmentation: its task, Prony's own enlargement and depthwise convolution, DeepLabV3+ and SegFormer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.settings import Value, replicas, uses_kernel
from prony_node.data.segmentation import IGNORED, region_sampler
from prony_node.workloads.image import fold_batch_norms, fuse_blocks
from prony_node.workloads.weights import Head, with_weights

if TYPE_CHECKING:
    from prony_node.workloads.config import Workload


# The task of every segmentation model, and Prony's own bilinear enlargement and depthwise convolution.
#
# Enlargement: the library adds the gradient of each pixel to the four that it was made of, with atomic additions where
# they meet: 64 per pixel where a 32x32 map became 256x256. Enlarging is linear along one side and then along the
# other, so its gradient is a product with the same two small matrices transposed.
#
# Depthwise convolution: a sum of shifted images, each weighted per channel, of which a compiler makes one kernel. It
# has no sums over channels, so matrix units are of no use, and it is done when its input has been read once. It is one
# operation in the graph of a model, with another for its gradients: otherwise the compiler would compute its input
# once for each of the nine places that it is read from.


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


# DeepLabV3+ as segmentation-models-pytorch builds it, and a tiny one of the same kind.


DEEPLAB_FULL: dict[str, Any] = {"encoder_name": "resnet101"}
# timm's own small ResNet for tests.
DEEPLAB_TINY: dict[str, Any] = {
    "encoder_name": "tu-test_resnet", "decoder_channels": 32, "decoder_atrous_rates": (2, 4, 6),
    "decoder_aspp_dropout": 0.0,
}  # fmt: skip
SGD_RATE, SGD_SAMPLES, MOST_SAMPLES = 0.01, 16, 64  # its rate is for steps of so many samples, and grows up to so many
DEEPLAB_ADAM_RATE, DEEPLAB_TINY_RATE = 1e-4, {"sgd": 0.05, "adam": 3e-3, "adamw": 3e-3}
DEEPLAB_DECAY = 5e-4
# A checkpoint of the encoder alone has no decoder.
DEEPLAB_HEAD = Head(new=("decoder.", "segmentation_head."))


def learning_rate(workload: Workload, settings: dict[str, Value]) -> float:
    optimizer = str(settings.get("optimizer", workload.optimizer))
    if settings.get("size") == "tiny":
        return DEEPLAB_TINY_RATE[optimizer]
    if optimizer != "sgd":
        return DEEPLAB_ADAM_RATE
    batch = settings.get("batch_size", "auto")
    pieces = int(settings.get("grad_accumulation", 1)) * replicas(settings)
    samples = SGD_SAMPLES if batch == "auto" else int(batch) * pieces
    return SGD_RATE * min(samples, MOST_SAMPLES) / SGD_SAMPLES


def logits(network: nn.Module, images: Tensor) -> Tensor:
    """At full resolution: the model enlarges them itself."""
    answer: Tensor = network(images)
    return answer


def enlarge_by_products(network: nn.Module) -> None:
    """Torch's modules that enlarge, and the pooled image, which is spread over all pixels."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Upsample) and child.mode == "bilinear":
                setattr(parent, name, Enlarging(int(child.scale_factor), bool(child.align_corners)))
    model: Any = network
    pooling = model.decoder.aspp[0].convs[-1]
    pooling.forward = partial(pooled, pooling)


def pooled(pooling: nn.Sequential, image: Tensor) -> Tensor:
    """One pixel for each image, the same everywhere."""
    answer = image
    for part in pooling:
        answer = part(answer)
    return answer.expand(-1, -1, *image.shape[-2:])


def build_deeplab(workload: Workload, settings: dict[str, Value]) -> Task:
    import segmentation_models_pytorch as smp

    classes, stride = workload.shape["classes"], workload.shape["stride"]
    chosen = DEEPLAB_TINY if settings.get("size") == "tiny" else DEEPLAB_FULL

    def make() -> nn.Module:
        # Weights are never downloaded to benchmark; `weights` names those that a user has.
        model: nn.Module = smp.DeepLabV3Plus(
            **chosen, encoder_weights=None, encoder_output_stride=stride, classes=classes
        )
        return model

    return segment_task(
        make, logits, classes, settings, learning_rate=learning_rate(workload, settings), weight_decay=DEEPLAB_DECAY,
        head=DEEPLAB_HEAD, by_products=enlarge_by_products,
    )  # fmt: skip


# SegFormer as transformers builds it from its configuration, and a tiny one of the same kind.


B4: dict[str, Any] = {"depths": [3, 8, 27, 3], "hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 768}
SEGFORMER_TINY: dict[str, Any] = {
    "depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 40, 64], "decoder_hidden_size": 48,
    "drop_path_rate": 0.0, "classifier_dropout_prob": 0.0,
}  # fmt: skip
# Its authors fine-tune with 6e-5; random weights, and no warm-up in a run of a minute, take a little more.
SEGFORMER_FINE_TUNED = 6e-5
SEGFORMER_LEARNING_RATE = {"sgd": 0.01, "adam": 1e-4, "adamw": 1e-4}
SEGFORMER_TINY_RATE = {"sgd": 0.05, "adam": 3e-3, "adamw": 3e-3}
SEGFORMER_DECAY = 0.01
# The published checkpoints have the names of earlier versions of transformers.
SEGFORMER_RENAMED = (
    (r"encoder\.(patch_embeddings|block|layer_norm)\.(\d+)", r"stages.\2.\1"),
    (r"\.block\.", ".blocks."),
    (r"attention\.self\.query", "attention.q_proj"),
    (r"attention\.self\.key", "attention.k_proj"),
    (r"attention\.self\.value", "attention.v_proj"),
    (r"attention\.self\.sr", "attention.sequence_reduction.sequence_reduction"),
    (r"attention\.self\.layer_norm", "attention.sequence_reduction.layer_norm"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"mlp\.dense(\d)", r"mlp.fc\1"),
    (r"layer_norm_1", "layernorm_before"),
    (r"layer_norm_2", "layernorm_after"),
    (r"decode_head\.linear_c", "decode_head.linear_projections"),
)
# A checkpoint of the encoder alone, as ImageNet trains it, has no decoder and a classifier that stays behind.
SEGFORMER_HEAD = Head(new=("decode_head.",), old=("classifier.",), renamed=SEGFORMER_RENAMED)


def quarter_logits(network: nn.Module, images: Tensor) -> Tensor:
    """At a quarter of the resolution.

    Stage by stage: the model's own forward collects what each stage answers through hooks and a context variable,
    which no compiler can follow.
    """
    model: Any = network
    found = [images]
    for stage in model.segformer.stages:
        found.append(stage(found[-1]))
    logits: Tensor = model.decode_head(found[1:])
    return logits


def decode_by_products(network: nn.Module) -> None:
    """The decoder of transformers with each level enlarged by Prony's own form."""
    model: Any = network
    model.decode_head.forward = partial(decode, model.decode_head)


def decode(head: Any, found: list[Tensor]) -> Tensor:
    size = (found[0].shape[-2], found[0].shape[-1])
    levels = []
    for project, level in zip(head.linear_projections, found, strict=True):
        tokens = project(level)
        width = tokens.shape[-1]
        levels.append(enlarged(tokens.transpose(1, 2).reshape(-1, width, *level.shape[-2:]), size, products=True))
    mixed = head.activation(head.batch_norm(head.linear_fuse(torch.cat(levels[::-1], dim=1))))
    logits: Tensor = head.classifier(head.dropout(mixed))
    return logits


def build_segformer(workload: Workload, settings: dict[str, Value]) -> Task:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded to benchmark
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    tiny, classes = settings.get("size") == "tiny", workload.shape["classes"]
    optimizer = str(settings.get("optimizer", workload.optimizer))

    config = SegformerConfig(**(SEGFORMER_TINY if tiny else B4), num_labels=classes)

    def make() -> nn.Module:
        model: nn.Module = SegformerForSemanticSegmentation(config)
        return model

    rate = (SEGFORMER_TINY_RATE if tiny else SEGFORMER_LEARNING_RATE)[optimizer]
    if "weights" in settings and optimizer != "sgd":
        rate = SEGFORMER_FINE_TUNED
    return segment_task(
        make, quarter_logits, classes, settings, learning_rate=rate, weight_decay=SEGFORMER_DECAY, head=SEGFORMER_HEAD,
        by_products=decode_by_products,
    )  # fmt: skip

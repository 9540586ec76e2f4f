"""The task of every segmentation model: cross entropy over the pixels that have a class."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.contract.settings import Value
from prony_node.data.regions import IGNORED, region_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.image.blocks import fuse_blocks
from prony_node.workloads.image.task import fold_batch_norms
from prony_node.workloads.segment.depthwise import replace_depthwise
from prony_node.workloads.segment.enlarge import enlarged
from prony_node.workloads.weights import Head, with_weights

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
        if settings.get("enlarge") == "products":
            network.by_products = True
            by_products(network)
        if settings.get("depthwise") == "compiled":
            replace_depthwise(network)
        if settings.get("blocks") == "fused":
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

"""Faster R-CNN with a ResNet-50 and a feature pyramid, as torchvision builds it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from prony_node.contract.parallel import replicas
from prony_node.contract.trial import learns_to_quality
from prony_node.data.boxes import COUNTS, SIZES, box_sampler
from prony_node.data.scenes import COCO_SCENERY, TINY_SCENERY
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.detect.batched import batched_loss
from prony_node.workloads.detect.config import TINY_CLASSES
from prony_node.workloads.detect.pooling import pooled_by_library, pooled_from_all
from prony_node.workloads.detect.suppression import kept_by_kernel, kept_by_library
from prony_node.workloads.detect.task import found_boxes, image_list, low_precision, target_list
from prony_node.workloads.image.task import fold_batch_norms
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

# For 16 images per step, torchvision's own recipe, and in proportion for fewer (Goyal et al. 2017). It begins with a
# warm-up, which a run to a quality has. Without one 0.02 gives a loss that is no number: after 5 steps of two images
# on a CPU, within 14 of 72 on an H200. 0.0025, the recipe's for two, learned there for hundreds of steps.
SGD_RATE, SGD_SAMPLES, COLD_RATE = 0.02, 16, 0.0025
DECAY = 1e-4
TINY_RATE = 0.02
ADAM_RATE = 1e-4
HELD_OUT = 8  # images: large ones, of which every one is scaled to 800 pixels
CELLS = 4  # fixed proposals of the comparison with fp32: so many rows and columns of them


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    from prony_node.workloads.detect.torchvision_parts import full_model, tiny_model

    tiny = settings.get("size") == "tiny"
    classes = int(settings.get("classes", TINY_CLASSES if tiny else workload.shape["classes"]))
    model = partial(tiny_model, classes) if tiny else partial(full_model, classes, "weights" in settings)
    return Task(
        unit="images",
        units_per_sample=1,
        model=with_weights(model, settings.get("weights")),
        loss=_loss(settings),
        predict=detections,
        sample=box_sampler(classes, TINY_SCENERY if tiny else COCO_SCENERY),
        learning_rate=_rate(settings, tiny),
        weight_decay=DECAY,
        for_inference=fold_batch_norms,
        scores=lambda network, batch: {"found": detections(network, batch)},
        varies="the sizes of images and the numbers of boxes and proposals differ from step to step",
        compared=head_answers,
        compiled_parts=lambda network: (network.backbone, network.rpn.head),
        on_host=(SIZES, COUNTS),
        held_out=None if tiny else HELD_OUT,
    )


def _loss(settings: dict[str, Value]) -> Callable[[nn.Module, Batch], Tensor]:
    if settings.get("assignment") == "library":
        return library_loss
    keep = kept_by_kernel if settings.get("suppression") == "kernel" else kept_by_library
    pool = pooled_from_all if settings.get("pooling") == "masked" else pooled_by_library
    return partial(batched_loss, keep=keep, pool=pool)


def _rate(settings: dict[str, Value], tiny: bool) -> float:
    if settings.get("optimizer", "sgd") != "sgd":
        return ADAM_RATE
    if tiny:
        return TINY_RATE
    asked = settings.get("batch_size", "auto")
    pieces = int(settings.get("grad_accumulation", 1)) * replicas(settings)
    samples = SGD_SAMPLES if asked == "auto" else int(asked) * pieces
    rate = SGD_RATE * min(samples, SGD_SAMPLES) / SGD_SAMPLES
    return rate if learns_to_quality(settings) else min(rate, COLD_RATE)


def library_loss(network: nn.Module, batch: Batch) -> Tensor:
    """The same four losses as torchvision computes them, image by image."""
    losses: dict[str, Tensor] = network(image_list(batch), target_list(batch))
    return torch.stack(list(losses.values())).sum()


def detections(network: nn.Module, batch: Batch) -> Tensor:
    """The hundred best boxes of each image, in its own pixels."""
    with low_precision(network):
        return found_boxes(network(image_list(batch)))


def head_answers(network: nn.Module, batch: Batch) -> Tensor:
    """What the heads answer before boxes are kept or dropped, a row each: objectness, its boxes, classes and theirs.

    Which box is kept may turn on the last bit of a score, so that answers cannot be compared between precisions. These
    can: they follow smoothly from the image, on every anchor and on proposals that are the same for everyone.
    """
    with low_precision(network):
        images, _ = network.transform(image_list(batch))
        features = network.backbone(images.tensors)
        objectness, offsets = network.rpn.head(list(features.values()))
        proposals = [_grid(height, width, images.tensors.device) for height, width in images.image_sizes]
        heads: Any = network.roi_heads
        pooled = heads.box_head(heads.box_roi_pool(features, proposals, images.image_sizes))
        classes, boxes = heads.box_predictor(pooled)
    every = [torch.cat([level.flatten() for level in levels]) for levels in (objectness, offsets)]
    return pad_sequence([part.float() for part in (*every, classes.flatten(), boxes.flatten())], batch_first=True)


def _grid(height: int, width: int, device: torch.device) -> Tensor:
    """Cells that tile an image."""
    rows = torch.linspace(0, height, CELLS + 1, device=device)
    columns = torch.linspace(0, width, CELLS + 1, device=device)
    top, left = torch.meshgrid(rows[:-1], columns[:-1], indexing="ij")
    bottom, right = torch.meshgrid(rows[1:], columns[1:], indexing="ij")
    return torch.stack((left, top, right, bottom), dim=-1).view(-1, 4)

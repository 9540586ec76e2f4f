"""DINO's task: the loss of a batch of images with boxes, and the detections of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from prony_node.measure.protocol import Batch
from prony_node.workloads.dino.geometry import corners
from prony_node.workloads.dino.losses import denoising_loss, matched_loss
from prony_node.workloads.dino.matching import match
from prony_node.workloads.dino.targets import Targets

if TYPE_CHECKING:
    pass

LEARNING_RATE = 1e-4  # for all of it: 1e-5 for the backbone is meant for one that is pretrained
WEIGHT_DECAY = 1e-4


def detection_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Of every decoder layer and of the encoder after matching, and of every layer's denoising."""
    targets = Targets.of(batch)
    answers = model(batch[0], batch[1], targets)
    matched, selected, noised = answers.matched, answers.selected, answers.noised
    logits = torch.cat((matched.class_logits, selected.class_logits[None]))
    boxes = torch.cat((matched.boxes, selected.boxes[None])).sigmoid()
    loss = matched_loss(logits, boxes, targets, match(logits, boxes, targets))
    if noised is not None:
        loss = loss + denoising_loss(noised.class_logits, noised.boxes.sigmoid(), targets, answers.groups)
    return loss


def detections(model: nn.Module, batch: Batch, count: int) -> Tensor:
    """Batch, count, 6: left, top, right and bottom in pixels of the image, score and label, the likeliest first."""
    images, sizes = batch[:2]
    matched = model(images, sizes).matched
    scores = matched.class_logits[-1].sigmoid()
    classes = scores.shape[-1]
    best, at = scores.flatten(1).topk(count, dim=1)
    queries = at.div(classes, rounding_mode="floor")
    boxes = corners(matched.boxes[-1].sigmoid()).gather(1, queries[..., None].expand(-1, -1, 4))
    pixels = boxes * sizes.flip(-1).repeat(1, 2)[:, None]
    return torch.cat((pixels, best[..., None], (at % classes)[..., None].float()), dim=-1)


def recompute_layers(model: nn.Module) -> None:
    """Of the backbone and the encoder, which hold nearly all activations."""
    model.backbone.swin.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.encoder.recompute = True

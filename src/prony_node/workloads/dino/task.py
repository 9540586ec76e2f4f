"""DINO's task: the loss of a batch of images with boxes, and the detections of one."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from prony_node.data.boxes import COUNTS, IMAGES, SIZES, box_sampler
from prony_node.data.scenes import COCO_SCENERY, MOST_BOXES, TINY_SCENERY
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.dino.boxes import Targets, ToHost, corners
from prony_node.workloads.dino.config import size_of
from prony_node.workloads.dino.loss import Matching, denoising_loss, matched_loss
from prony_node.workloads.dino.model import Dino
from prony_node.workloads.dino.sampling import use_kernel
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

# The paper's: 1e-4, a tenth of that for the backbone, and its code's bound of the gradients' norm.
LEARNING_RATE = {"sgd": 1e-3, "adam": 1e-4, "adamw": 1e-4}
TINY_RATE = {"sgd": 1e-2, "adam": 2e-3, "adamw": 2e-3}
WEIGHT_DECAY = 1e-4
BACKBONE_SHARE = 0.1  # of the learning rate
CLIP = 0.1
HELD_OUT = 4  # images: large ones, of which none is left out of a batch
CELLS = 4  # fixed boxes of the comparison with fp32: so many rows and columns of them


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    own = settings.get("sampling") == "kernel"
    for library in ("transformers", "scipy", *(["triton"] if own else [])):
        importlib.import_module(library)  # here, where the absence of one is said at once
    size = size_of(settings)
    tiny = settings.get("size") == "tiny"
    sample = box_sampler(size.classes, TINY_SCENERY) if tiny else (
        box_sampler(size.classes, COCO_SCENERY, scale_to=size.scale_to)
    )  # fmt: skip
    return Task(
        unit="images",
        units_per_sample=1,
        model=with_weights(partial(Dino, size), settings.get("weights")),
        loss=detection_loss,
        predict=partial(detections, count=size.answers),
        sample=sample,
        learning_rate=(TINY_RATE if tiny else LEARNING_RATE)[str(settings.get("optimizer", workload.optimizer))],
        weight_decay=WEIGHT_DECAY,
        rate_share=lambda name: BACKBONE_SHARE if name.startswith("backbone.swin.") else 1.0,
        clip=CLIP,
        recompute=recompute_layers,
        scores=lambda model, batch: {"found": detections(model, batch, min(MOST_BOXES, size.answers))},
        varies="the sizes of images and the numbers of boxes and of denoising queries differ from step to step",
        compared=smooth_answers,
        own_parts=use_kernel if own else None,
        capture_part=Dino.capture,
        held_out=None if tiny else HELD_OUT,
        scale_to=size.scale_to,
        on_host=(COUNTS,),
        synchronisations=lambda: ToHost.waits,
    )


def detection_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Of every decoder layer and of the encoder after matching, and of every layer's denoising."""
    targets = Targets.of(batch)
    answers = model(batch[IMAGES], batch[SIZES], targets)
    matched, selected, noised = answers.matched, answers.selected, answers.noised
    logits = torch.cat((matched.class_logits, selected.class_logits[None]))
    boxes = torch.cat((matched.boxes, selected.boxes[None])).sigmoid()
    matching = Matching(logits, boxes, targets)
    by_noise = 0.0 if noised is None else (
        denoising_loss(noised.class_logits, noised.boxes.sigmoid(), targets, answers.groups)
    )  # fmt: skip
    return matched_loss(logits, boxes, targets, matching.get()) + by_noise


def detections(model: nn.Module, batch: Batch, count: int) -> Tensor:
    """Batch, count, 6: left, top, right and bottom in pixels of the image, score and label, the likeliest first."""
    sizes = batch[SIZES]
    matched = model(batch[IMAGES], sizes).matched
    scores = matched.class_logits[-1].sigmoid()
    classes = scores.shape[-1]
    best, at = scores.flatten(1).topk(count, dim=1)
    queries = at.div(classes, rounding_mode="floor")
    boxes = corners(matched.boxes[-1].sigmoid()).gather(1, queries[..., None].expand(-1, -1, 4))
    pixels = boxes * sizes.flip(-1).repeat(1, 2)[:, None]
    return torch.cat((pixels, best[..., None], (at % classes)[..., None].float()), dim=-1)


def smooth_answers(model: nn.Module, batch: Batch) -> Tensor:
    """What can be compared between precisions, a row each: the encoder's tokens, classes and boxes of fixed queries.

    Which proposal becomes a query may turn on the last bit of a score. Here the queries are a grid of boxes that is the
    same for everyone, and the bias that all logits share at first is taken off, so that they differ from each other.
    """
    tokens, levels = model.encode(batch[IMAGES], batch[SIZES])
    middles = (torch.arange(CELLS, device=tokens.device) + 0.5) / CELLS
    y, x = torch.meshgrid(middles, middles, indexing="ij")
    grid = torch.stack((x, y, torch.full_like(x, 1 / CELLS), torch.full_like(x, 1 / CELLS)), dim=-1).view(1, -1, 4)
    references = grid.logit().expand(len(tokens), -1, -1)
    contents = model.selection.contents[: CELLS**2].expand(len(tokens), -1, -1)
    predicted = model.decoder(contents, references, tokens, levels)
    logits = predicted.class_logits[-1] - model.decoder.heads.classes.bias.float()
    rows = [tokens[levels.valid], logits, predicted.boxes[-1].sigmoid()]
    return pad_sequence([row.flatten().float() for row in rows], batch_first=True)


def recompute_layers(model: nn.Module) -> None:
    """Of the backbone and the encoder, which hold nearly all activations."""
    model.backbone.swin.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.encoder.recompute = True

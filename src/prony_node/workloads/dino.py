"""DINO's task: which query answers for which box, the losses of a batch, the detections, and its sampling kernel."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.settings import uses_kernel
from prony_node.data.detection import COCO_SCENERY, COUNTS, IMAGES, MOST_BOXES, SIZES, TINY_SCENERY, box_sampler
from prony_node.workloads.detect_config import size_of
from prony_node.workloads.dino_model import DeformableAttention, Dino, Targets, ToHost, corners, generalised_iou
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload


# Deformable attention's sampling by a kernel of Prony's own, in the place of transformers' plain torch form.
#
# The plain form stores what each head sees at each place, in fp32: for the 22,000 tokens of an image that is 370 MB in
# every layer, written, read, weighed and kept for the backward pass, which then adds to values out of order. Here
# nothing is stored but the answer. Sums, places and weights are in fp32, as there; values are read as they are.


BLOCK = 32  # queries of a program: with its 128 threads, each has eight channels of one


class Sampled(torch.autograd.Function):
    """Values (image, token, head, width) at places (image, query, head, level, point, 2), weighed and added up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, shapes: Tensor, starts: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        from prony_node.workloads.detect_kernels import add_samples

        given = [tensor.contiguous() for tensor in (values, shapes, starts, places, weights)]
        ctx.save_for_backward(*given)
        answers = values.new_empty(*places.shape[:3], values.shape[-1])
        _launch(add_samples, given, answers)
        return answers.flatten(2)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from prony_node.workloads.detect_kernels import add_gradients

        given = ctx.saved_tensors
        values, _, _, places, weights = given
        of_values = torch.zeros_like(values, dtype=torch.float32)
        of_places, of_weights = torch.empty_like(places), torch.empty_like(weights)
        _launch(add_gradients, given, gradient.contiguous(), of_values, of_places, of_weights)
        return of_values.to(values.dtype), None, None, of_places, of_weights


def _launch(kernel: Any, given: Any, *more: Tensor) -> None:
    values, places = given[0], given[3]
    images, tokens, heads, width = values.shape
    _, queries, _, levels, points, _ = places.shape
    grid = (-(-queries // BLOCK), images * heads)
    kernel[grid](*given, *more, queries, tokens, HEADS=heads, LEVELS=levels, POINTS=points, WIDTH=width, BLOCK=BLOCK)


class KernelSampling(nn.Module):
    """For transformers' module, which calls it with more than is needed."""

    def forward(self, value: Tensor, *geometry: Any) -> Tensor:
        shapes, _, starts, places, weights, _ = geometry
        found: Tensor = Sampled.apply(value, shapes, starts, places.float(), weights.float())
        return found


def use_kernel(model: nn.Module) -> None:
    """In place, in every layer of encoder and decoder."""
    for module in model.modules():
        if isinstance(module, DeformableAttention):
            module.module.attn = KernelSampling()


# DINO's task: which query answers for which box, the losses of a batch, and the detections.


# The losses: focal for classes, L1 and generalised IoU for boxes, at every layer, at the encoder and for denoising.
#
# All in fp32, whatever the model's precision: a focal loss near 0 is the square of a small number, and its gradient
# is what tells the few queries with an object from the many without.

ALPHA, GAMMA = 0.25, 2.0
CLASS_WEIGHT, L1_WEIGHT, IOU_WEIGHT = 1.0, 5.0, 2.0


def focal_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Of each logit: cross entropy, weighed down where the answer is nearly right already."""
    likely = logits.sigmoid()
    wrong = likely * (1 - wanted) + (1 - likely) * wanted
    weight = ALPHA * wanted + (1 - ALPHA) * (1 - wanted)
    return weight * wrong**GAMMA * F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")


def box_loss(boxes: Tensor, wanted: Tensor) -> Tensor:
    """Of each pair of boxes (centre and size), L1 and generalised IoU as they are weighed."""
    apart = 1 - generalised_iou(corners(boxes), corners(wanted))
    return L1_WEIGHT * (boxes - wanted).abs().sum(-1) + IOU_WEIGHT * apart


def matched_loss(class_logits: Tensor, boxes: Tensor, targets: Targets, matches: Matches) -> Tensor:
    """The sum over sets of predictions (layers), each divided by the number of boxes in the batch."""
    at = (matches.sets, matches.images, matches.queries)
    wanted = torch.zeros_like(class_logits)
    one = wanted.new_ones(())  # made there: a number of the host would be waited for
    wanted.index_put_((*at, targets.labels[matches.images, matches.boxes]), one)
    by_class = focal_loss(class_logits, wanted).sum()
    by_box = box_loss(boxes[at], targets.boxes[matches.images, matches.boxes]).sum()
    return (CLASS_WEIGHT * by_class + by_box) / targets.total


def denoising_loss(class_logits: Tensor, boxes: Tensor, targets: Targets, groups: int) -> Tensor:
    """The same without matching: a positive answers for its own box, a negative for none."""
    parts = (groups, 2, targets.most)
    class_logits, boxes = class_logits.unflatten(2, parts), boxes.unflatten(2, parts)
    real = targets.real[:, None].float()
    wanted = torch.zeros_like(class_logits)
    wanted[:, :, :, 0] = (targets.labels[..., None] == torch.arange(wanted.shape[-1], device=wanted.device))[:, None]
    by_class = (focal_loss(class_logits, wanted) * real[:, :, None, :, None]).sum()
    by_box = (box_loss(boxes[:, :, :, 0], targets.boxes[:, None]) * real).sum()
    return (CLASS_WEIGHT * by_class + by_box) / (targets.total * groups)


# Which query answers for which box: the cheapest assignment, found on the host by scipy.

CLASS_COST, L1_COST, IOU_COST = 2.0, 5.0, 2.0
WORST = 1e6  # in place of what is not finite, which scipy refuses: a loss that overflowed is the run's to report


@dataclass(frozen=True)
class Matches:
    """One entry a matched pair, over all sets of predictions: where the query stands, and which box it answers for."""

    sets: Tensor
    images: Tensor
    queries: Tensor
    boxes: Tensor


def match_costs(class_logits: Tensor, boxes: Tensor, targets: Targets) -> Tensor:
    """Sets, batch, queries, most: what it would cost to let a query answer for a box."""
    likely = class_logits.sigmoid()
    found = ALPHA * (1 - likely) ** GAMMA * -(likely + 1e-8).log()
    missed = (1 - ALPHA) * likely**GAMMA * -(1 - likely + 1e-8).log()
    columns = targets.labels[None, :, None].expand(*likely.shape[:3], -1)
    by_class = (found - missed).gather(-1, columns)
    by_place = (boxes[..., None, :] - targets.boxes[:, None]).abs().sum(-1)
    by_overlap = -generalised_iou(corners(boxes)[..., None, :], corners(targets.boxes)[:, None])
    return CLASS_COST * by_class + L1_COST * by_place + IOU_COST * by_overlap


class Matching:
    """Of each set of predictions and each image. All costs go to the host at once: one synchronisation.

    They are sent when it is made, and waited for when it is asked: what is queued in between runs meanwhile.
    """

    def __init__(self, class_logits: Tensor, boxes: Tensor, targets: Targets) -> None:
        with torch.no_grad():
            costs = match_costs(class_logits, boxes, targets).nan_to_num(WORST, WORST, -WORST)
        self._sent, self._counts, self._device = ToHost(costs), targets.counts, boxes.device

    def get(self) -> Matches:
        from scipy.optimize import linear_sum_assignment

        pairs: list[tuple[int, int, int, int]] = []
        for number, of_set in enumerate(self._sent.get().numpy()):
            for image, count in enumerate(self._counts):
                rows, columns = linear_sum_assignment(of_set[image, :, :count])
                pairs += [(number, image, int(row), int(column)) for row, column in zip(rows, columns, strict=True)]
        found = torch.tensor(pairs, dtype=torch.long).reshape(-1, 4).to(self._device, non_blocking=True)
        return Matches(*found.unbind(1))


# The paper's: 1e-4, a tenth of that for the backbone, and its code's bound of the gradients' norm.
LEARNING_RATE = {"sgd": 1e-3, "adam": 1e-4, "adamw": 1e-4}
TINY_RATE = {"sgd": 1e-2, "adam": 2e-3, "adamw": 2e-3}
WEIGHT_DECAY = 1e-4
BACKBONE_SHARE = 0.1  # of the learning rate
CLIP = 0.1
HELD_OUT = 4  # images: large ones, of which none is left out of a batch
CELLS = 4  # fixed boxes of the comparison with fp32: so many rows and columns of them


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    own = uses_kernel(settings, "triton-deformable-attention")
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

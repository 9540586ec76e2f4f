"""Faster R-CNN's four losses over a whole batch at once: torchvision's modules, weights and rules.

The host waits once per image, where proposals suppress each other (with suppression=library), and once per level of the
pyramid, where regions are pooled from it (with pooling=library). All else has shapes that it knows beforehand, so that
the device never runs dry between two parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.data.boxes import BOXES, COUNTS, LABELS
from prony_node.measure.protocol import Batch
from prony_node.workloads.detect.assignment import Bounds, Truths, assigned, drawn
from prony_node.workloads.detect.geometry import decoded, encoded
from prony_node.workloads.detect.pooling import Sizes, pooled_by_library
from prony_node.workloads.detect.suppression import kept_by_library
from prony_node.workloads.detect.task import image_list

BETA = 1 / 9  # where the loss of a box turns from a square into a straight line
Keep = Callable[[Tensor, Tensor, list[int], float], Tensor]  # who suppresses boxes: see suppression.py
Pool = Callable[[Any, dict[str, Tensor], Tensor, Sizes], Tensor]  # who looks at regions: see pooling.py


def batched_loss(
    network: nn.Module, batch: Batch, keep: Keep = kept_by_library, pool: Pool = pooled_by_library
) -> Tensor:
    """The sum of four: is there something, where; what is it, where exactly."""
    model: Any = network
    originals = image_list(batch)
    images, _ = model.transform(originals)
    truths = scaled_truths(batch, [image.shape[-2:] for image in originals], images.image_sizes)
    features = model.backbone(images.tensors)
    levels = list(features.values())
    anchors = model.rpn.anchor_generator(images, levels)[0]  # of one image as of another: all are padded to one size
    scores, codes = model.rpn.head(levels)
    per_level = [level[0].numel() for level in scores]
    scores = torch.cat([_by_place(level, 1) for level in scores], dim=1)[..., 0]
    codes = torch.cat([_by_place(level, 4) for level in codes], dim=1)
    first = anchor_loss(model.rpn, scores, codes, anchors, truths)
    boxes, there = proposals(model.rpn, scores.detach(), codes.detach(), anchors, per_level, images.image_sizes, keep)
    return first + region_loss(model.roi_heads, features, boxes, there, truths, images.image_sizes, pool)


def _by_place(answers: Tensor, numbers: int) -> Tensor:
    """Images, places and anchors, numbers: as anchors are ordered. In channels_last nothing has to be moved."""
    return answers.permute(0, 2, 3, 1).reshape(len(answers), -1, numbers)


def to_device(rows: list[Any], device: torch.device) -> Tensor:
    """Sent without waiting for what the device is doing."""
    return torch.tensor(rows, dtype=torch.float32).to(device, non_blocking=True)


def scaled_truths(batch: Batch, before: Sizes, after: Sizes) -> Truths:
    """The boxes of a batch, in pixels of the images as the backbone sees them."""
    counts = batch[COUNTS].tolist()
    rows = max(1, *counts)
    boxes, labels = batch[BOXES][:, :rows], batch[LABELS][:, :rows]
    factors = [[new[1] / old[1], new[0] / old[0]] * 2 for old, new in zip(before, after, strict=True)]
    real = torch.arange(rows, device=boxes.device) < to_device(counts, boxes.device)[:, None]
    return Truths(boxes.float() * to_device(factors, boxes.device)[:, None], labels, real)


def anchor_loss(rpn: Any, scores: Tensor, codes: Tensor, anchors: Tensor, truths: Truths) -> Tensor:
    """Of anchors drawn by chance: is there a box, and where of the anchor."""
    matcher, sampler = rpn.proposal_matcher, rpn.fg_bg_sampler
    bounds = Bounds(matcher.high_threshold, matcher.low_threshold, matcher.allow_low_quality_matches)
    with torch.no_grad():
        found = assigned(truths, anchors[None], bounds)
        places, is_drawn = _drawn(sampler, found.positive, found.negative)
        positive = found.positive.gather(1, places) & is_drawn
        boxes = _rows(truths.boxes, found.rows.gather(1, places))
        wanted = encoded(boxes, anchors[places], rpn.box_coder.weights)
    judged = F.binary_cross_entropy_with_logits(scores.gather(1, places).float(), positive.float(), reduction="none")
    return (_sum(judged, is_drawn) + _box_loss(_rows(codes, places), wanted, positive)) / is_drawn.sum().clamp(min=1)


def _drawn(sampler: Any, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    count = sampler.batch_size_per_image
    return drawn(positive, negative, count, int(count * sampler.positive_fraction))


def proposals(
    rpn: Any, scores: Tensor, codes: Tensor, anchors: Tensor, per_level: list[int], sizes: Sizes, keep: Keep
) -> tuple[Tensor, Tensor]:
    """Images, number, 4: the best boxes of each image that do not overlap; and which of these rows hold one."""
    before, most = rpn.pre_nms_top_n(), rpn.post_nms_top_n()
    best = _best_of_levels(scores, per_level, before)
    boxes = decoded(_rows(codes, best), anchors[best], rpn.box_coder.weights, rpn.box_coder.bbox_xform_clip)
    limits = to_device([[width, height] * 2 for height, width in sizes], boxes.device)[:, None]
    boxes = torch.minimum(boxes.clamp(min=0), limits)
    large = (boxes[..., 2:] - boxes[..., :2] >= rpn.min_size).all(-1)
    scores = scores.gather(1, best).float().masked_fill(~large, -torch.inf)
    kept = keep(boxes, scores, [min(before, count) for count in per_level], rpn.nms_thresh)
    found = scores.masked_fill(~kept, -torch.inf).topk(min(most, scores.shape[1]))
    return _rows(boxes, found.indices), found.values.isfinite()


def _best_of_levels(scores: Tensor, per_level: list[int], most: int) -> Tensor:
    found, start = [], 0
    for level in scores.split(per_level, dim=1):
        found.append(level.topk(min(most, level.shape[1]), dim=1).indices + start)
        start += level.shape[1]
    return torch.cat(found, dim=1)


def region_loss(heads: Any, features: dict[str, Tensor], boxes: Tensor, there: Tensor, truths: Truths,
                sizes: Sizes, pool: Pool) -> Tensor:  # fmt: skip
    """Of proposals drawn by chance, the true boxes among them: what is it, and where exactly."""
    matcher, sampler = heads.proposal_matcher, heads.fg_bg_sampler
    bounds = Bounds(matcher.high_threshold, matcher.low_threshold, matcher.allow_low_quality_matches)
    with torch.no_grad():
        boxes, there = torch.cat((boxes, truths.boxes), dim=1), torch.cat((there, truths.real), dim=1)
        found = assigned(truths, boxes, bounds)
        places, is_drawn = _drawn(sampler, found.positive & there, found.negative & there)
        positive = found.positive.gather(1, places) & is_drawn
        rows = found.rows.gather(1, places)
        regions = _rows(boxes, places)
        wanted = encoded(_rows(truths.boxes, rows), regions, heads.box_coder.weights)
        labels = truths.labels.gather(1, rows).masked_fill(~positive, 0).flatten()
    pooled = heads.box_head(pool(heads.box_roi_pool, features, regions, sizes))
    logits, codes = heads.box_predictor(pooled)
    judged = F.cross_entropy(logits.float(), labels, reduction="none")
    own = _rows(codes.view(len(labels), -1, 4), labels[:, None])[:, 0]  # each class has a code of its own
    by_box = _box_loss(own, wanted.flatten(0, 1), positive.flatten())
    return (_sum(judged, is_drawn.flatten()) + by_box) / is_drawn.sum().clamp(min=1)


def _rows(values: Tensor, rows: Tensor) -> Tensor:
    return values.gather(1, rows[..., None].expand(-1, -1, values.shape[-1]))


def _box_loss(codes: Tensor, wanted: Tensor, positive: Tensor) -> Tensor:
    wanted = wanted.masked_fill(~positive[..., None], 0.0)  # elsewhere it may be no number
    return _sum(F.smooth_l1_loss(codes.float(), wanted, beta=BETA, reduction="none").sum(-1), positive)


def _sum(values: Tensor, counted: Tensor) -> Tensor:
    return values.masked_fill(~counted, 0.0).sum()  # torch.where would send that 0 to the device and wait

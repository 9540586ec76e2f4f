"""Faster R-CNN with a ResNet-50 and a feature pyramid, or tiny, and its losses over a whole batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.settings import replicas, uses_kernel
from prony_node.contract.trial import learns_to_quality
from prony_node.data.detection import (
    BOXES,
    COCO_SCENERY,
    COUNTS,
    IMAGES,
    LABELS,
    MOST_BOXES,
    SIZES,
    TINY_SCENERY,
    box_sampler,
)
from prony_node.workloads.detect_config import TINY_CLASSES
from prony_node.workloads.image import fold_batch_norms
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload


# Faster R-CNN's four losses over a whole batch at once, with torchvision's modules, weights and rules.
#
# The host waits once per image, where proposals suppress each other (without triton-nms), and once per level of the
# pyramid, where regions are pooled from it (without masked-roi-align). All other shapes are known beforehand, so that
# the device never runs dry between two parts.
#
# Torchvision assigns boxes image by image and asks where something is true, so the host waits each time. Here every
# image has the same number of places, and the weight of a place is part of the answer. Torchvision sorts regions by
# level, and the host must be told once per level; to pool every region from every level, most of them from a place
# outside with nothing but zeros, costs the device little and the host no wait. Torchvision's suppression answers with
# as many rows as boxes stay; the kernel has a program for each level of each image, and answers yes or no for every
# box.


FOUND = 6  # numbers of a found box: x1, y1, x2, y2, score, label


def image_list(batch: Batch) -> list[Tensor]:
    """Each image without its padding. Its size must be known to the host, which waits for it."""
    sizes = batch[SIZES].tolist()
    return [image[:, :height, :width] for image, (height, width) in zip(batch[IMAGES], sizes, strict=True)]


def target_list(batch: Batch) -> list[dict[str, Tensor]]:
    counts = batch[COUNTS].tolist()
    return [
        {"boxes": boxes[:count], "labels": labels[:count]}
        for boxes, labels, count in zip(batch[BOXES], batch[LABELS], counts, strict=True)
    ]


def found_boxes(answers: list[dict[str, Tensor]]) -> Tensor:
    """The best boxes of each image, the best first: images x 100 x 6, rows without a box being zero."""
    device = answers[0]["boxes"].device
    found = torch.zeros(len(answers), MOST_BOXES, FOUND, device=device)
    for row, answer in zip(found, answers, strict=True):
        parts = (answer["boxes"].float(), answer["scores"][:, None].float(), answer["labels"][:, None].float())
        best = torch.cat(parts, dim=1)[:MOST_BOXES]
        row[: len(best)] = best
    return found


def low_precision(model: nn.Module) -> AbstractContextManager[Any]:
    """Around a model with 16-bit weights: torchvision's operations on boxes have no kernels of that width."""
    weight = next(model.parameters())
    if weight.dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(weight.device.type, dtype=weight.dtype, cache_enabled=False)


Weights = tuple[float, float, float, float]  # by which the four numbers of a code are multiplied


def overlaps(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union, for shapes that broadcast but for the last, which holds a box."""
    lower, upper = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = (upper - lower).clamp(min=0).prod(-1)
    return shared / (_area(one) + _area(other) - shared)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).prod(-1)


def encoded(boxes: Tensor, seen_from: Tensor, weights: Weights) -> Tensor:
    """Each box told by another: how far its centre lies off, in sides, and the logarithm of how much larger it is."""
    centre, size = _centre_size(boxes)
    own_centre, own_size = _centre_size(seen_from)
    x, y, wide, high = weights
    shift, growth = (centre - own_centre) / own_size, (size / own_size).log()
    return torch.stack((shift[..., 0] * x, shift[..., 1] * y, growth[..., 0] * wide, growth[..., 1] * high), dim=-1)


def decoded(codes: Tensor, seen_from: Tensor, weights: Weights, most_growth: float) -> Tensor:
    """The box that a code tells, in fp32 whatever the code is in."""
    codes = codes.float()
    centre, size = _centre_size(seen_from)
    x, y, wide, high = weights
    shift = torch.stack((codes[..., 0] / x, codes[..., 1] / y), dim=-1)
    growth = torch.stack((codes[..., 2] / wide, codes[..., 3] / high), dim=-1)
    centre, half = centre + shift * size, growth.clamp(max=most_growth).exp() * size / 2
    return torch.cat((centre - half, centre + half), dim=-1)


def _centre_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + size / 2, size


IMAGES_AT_ONCE = 4  # of which every box is compared with every anchor


@dataclass(frozen=True)
class Truths:
    """The boxes that are there, in as many rows for each image."""

    boxes: Tensor  # images, most, 4: in pixels of the image that the backbone sees
    labels: Tensor  # images, most
    real: Tensor  # images, most: false in a row without a box


@dataclass(frozen=True)
class BoxAssignment:
    """Of each candidate: the row of its box, and whether it is to find that one, or nothing, or is not judged."""

    rows: Tensor  # images, candidates
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Bounds:
    """Overlaps from which on a candidate is to find a box, and below which nothing."""

    positive: float
    negative: float
    best_too: bool = False  # the candidates that overlap a box most are to find something, however little that is


def assigned(truths: Truths, candidates: Tensor, bounds: Bounds) -> BoxAssignment:
    """Candidates: images (or one for all), number, 4."""
    several = candidates.expand(len(truths.boxes), -1, -1).split(IMAGES_AT_ONCE)
    split = (truths.boxes.split(IMAGES_AT_ONCE), truths.real.split(IMAGES_AT_ONCE), several)
    parts = [_assigned(*part, bounds) for part in zip(*split, strict=True)]
    return BoxAssignment(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _assigned(boxes: Tensor, real: Tensor, candidates: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor, Tensor]:
    shared = overlaps(boxes[:, :, None], candidates[:, None])
    shared = shared.masked_fill(~real[..., None], -1.0)  # images, most, candidates
    most, rows = shared.max(dim=1)
    positive = most >= bounds.positive
    if bounds.best_too:
        best = shared.amax(dim=2, keepdim=True)
        positive = positive | ((shared == best) & real[..., None]).any(dim=1)
    return rows, positive, (most < bounds.negative) & ~positive


def drawn(positive: Tensor, negative: Tensor, count: int, most_positive: int) -> tuple[Tensor, Tensor]:
    """Images, count: the places of candidates drawn by chance, and which of them are none.

    As many positives as there are, up to `most_positive`, and negatives until there are `count`.
    """
    chance = torch.rand(positive.shape, device=positive.device)
    size = positive.shape[1]
    lowest = chance.masked_fill(~positive, -1.0).topk(min(most_positive, size)).values[:, -1:]
    chosen = positive & (chance >= lowest)
    worth = torch.where(chosen, chance + 1, chance.masked_fill(~negative, -1.0))
    found = worth.topk(min(count, size))
    return found.indices, found.values >= 0


OUTSIDE = -1e4  # pixels: left of every image and above it, at every scale

Sizes = list[tuple[int, int]]  # height and width of each image


def pooled_by_library(pooler: Any, features: dict[str, Tensor], regions: Tensor, sizes: Sizes) -> Tensor:
    """Regions of all images, channels, height, width. `regions` are images, number, 4."""
    answer: Tensor = pooler(features, list(regions), sizes)
    return answer


def pooled_from_all(pooler: Any, features: dict[str, Tensor], regions: Tensor, sizes: Sizes) -> Tensor:
    """The same, by torchvision's own rule which level is a region's."""
    from torchvision.ops import roi_align

    if pooler.scales is None:
        pooler(features, [boxes[:1] for boxes in regions], sizes)  # it finds out the scales when it is first asked
    levels = torch.arange(len(pooler.scales), device=regions.device)
    is_other = pooler.map_levels(list(regions)) != levels[:, None]
    placed = regions.flatten(0, 1).expand(len(levels), -1, -1).masked_fill(is_other[..., None], OUTSIDE)
    images = torch.arange(len(regions), device=regions.device, dtype=regions.dtype)
    images = images.repeat_interleave(regions.shape[1], output_size=regions.shape[:2].numel())
    rows = torch.cat((images.expand(len(levels), -1)[..., None], placed), dim=-1)
    parts = [
        roi_align(features[name], own, pooler.output_size, scale, pooler.sampling_ratio)
        for name, own, scale in zip(pooler.featmap_names, rows, pooler.scales, strict=True)
    ]
    return reduce(torch.add, parts)  # torch.sum would leave the precision of the features


BLOCK, LATER, WARPS = 64, 256, 8  # boxes that are compared with each other, and with so many behind them at a time


def kept_by_library(boxes: Tensor, scores: Tensor, counts: list[int], bound: float) -> Tensor:
    """Images, number: whether a box stays. `counts` are of the levels; a score of minus infinity is no box."""
    from torchvision.ops import nms

    # Boxes of different levels do not suppress each other: each level is moved to a place of its own.
    farther = 2.0 * boxes.amax().clamp(min=1.0)
    apart = torch.cat([level + number * farther for number, level in enumerate(boxes.split(counts, dim=1))], dim=1)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    for row, image, order in zip(kept, apart, scores, strict=True):
        row.index_fill_(0, nms(image, order, bound), True)
    return kept & scores.isfinite()


def kept_by_kernel(boxes: Tensor, scores: Tensor, counts: list[int], bound: float) -> Tensor:
    """The same, where the boxes of a level come in the order of their scores."""
    from prony_node.workloads.detect_kernels import suppress

    most = max(counts)
    there = [F.pad(level.isfinite(), (0, most - level.shape[1])) for level in scores.split(counts, dim=1)]
    groups = [F.pad(level, (0, 0, 0, most - level.shape[1])) for level in boxes.split(counts, dim=1)]
    kept = torch.stack(there, dim=1).to(torch.int8)
    grid = (kept.shape[0] * kept.shape[1],)
    suppress[grid](torch.stack(groups, dim=1), kept, bound, COUNT=most, BLOCK=BLOCK, LATER=LATER, num_warps=WARPS)
    return torch.cat([kept[:, level, :count] for level, count in enumerate(counts)], dim=1).bool()


BETA = 1 / 9  # where the loss of a box turns from a square into a straight line
Keep = Callable[[Tensor, Tensor, list[int], float], Tensor]  # kept_by_library or kept_by_kernel
Pool = Callable[[Any, dict[str, Tensor], Tensor, Sizes], Tensor]  # pooled_by_library or pooled_from_all


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


# Faster R-CNN with a ResNet-50 and a feature pyramid, as torchvision builds it, or tiny for a CPU.
#
# Torchvision makes anchors and decodes boxes in the precision of the features. In bf16 a coordinate beyond 512 is then
# a multiple of four pixels, and most proposals score the same as hundreds of others, of which the first ones by number
# win. So anchors, boxes and their scores are kept in fp32 here in every precision. What stays the same from step to
# step (anchors of a shape, the statistics of colours) is kept on the device: to send it again would be to wait for it.


ANCHORS = (32, 64, 128, 256, 512)  # pixels, one size a level of the pyramid
TINY_ANCHORS = (16, 32, 48)
RATIOS = (0.5, 1.0, 2.0)
WIDTHS, CHANNELS = (256, 512, 1024, 2048), 256  # of ResNet-50's stages, and of every level of the pyramid
TILE = 32  # pixels: images are padded to whole tiles of this side
SHAPES_KEPT = 32  # whose anchors lie on the device, about 3 MB each
TINY_WIDTHS = (16, 32, 64)  # at a half, a quarter and an eighth of the image's size
TINY_CHANNELS, TINY_FEATURES, TINY_POOL = 32, 64, 5


def full_model(classes: int, frozen_norms: bool) -> nn.Module:
    """fasterrcnn_resnet50_fpn; with a checkpoint its batch norms are frozen, as torchvision itself has them then."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.resnet import resnet50
    from torchvision.ops import FrozenBatchNorm2d

    norm = FrozenBatchNorm2d if frozen_norms else nn.BatchNorm2d
    layers = {f"layer{number + 1}": str(number) for number in range(4)}
    backbone = tiled_backbone(resnet50(weights=None, norm_layer=norm), layers, WIDTHS, CHANNELS)
    return with_fp32_boxes(FasterRCNN(backbone, classes, rpn_anchor_generator=wide_anchors(ANCHORS)))


def tiny_model(classes: int) -> nn.Module:
    """The same parts, narrow and shallow, for images of about 96 pixels."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.ops import MultiScaleRoIAlign

    first, second, third = TINY_WIDTHS
    body = nn.Sequential()
    for name, inputs, outputs in (("stem", 3, first), ("quarter", first, second), ("eighth", second, third)):
        body.add_module(name, _halving(inputs, outputs))
    backbone = tiled_backbone(body, {"quarter": "0", "eighth": "1"}, (second, third), TINY_CHANNELS)
    pool = MultiScaleRoIAlign(["0", "1"], TINY_POOL, sampling_ratio=2, canonical_scale=32, canonical_level=3)
    model = FasterRCNN(
        backbone,
        min_size=72,
        max_size=96,
        rpn_anchor_generator=wide_anchors(TINY_ANCHORS),
        rpn_pre_nms_top_n_train=200,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_train=60,
        rpn_post_nms_top_n_test=60,
        rpn_batch_size_per_image=64,
        box_roi_pool=pool,
        box_head=TwoMLPHead(TINY_CHANNELS * TINY_POOL**2, TINY_FEATURES),
        box_predictor=FastRCNNPredictor(TINY_FEATURES, classes),
        box_batch_size_per_image=64,
    )
    return with_fp32_boxes(model)


def tiled_backbone(body: nn.Module, layers: dict[str, str], widths: tuple[int, ...], channels: int) -> nn.Module:
    """Torchvision's pyramid over a body, that a compiler can take for any number of tiles.

    From the size of an image it would have to reason about a rounded half of a rounded half five times over, and would
    compile anew for odd and even ones. From a number of tiles every level has a multiple of it.
    """
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.ops.feature_pyramid_network import ExtraFPNBlock

    class NoMore(ExtraFPNBlock):
        def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
            return results, names

    class TiledBackbone(BackboneWithFPN):
        compiled: Callable[[Tensor], dict[str, Tensor]] | None = None

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            tiles = images.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE))
            if self.compiled is None:
                levels = self.of_tiles(tiles)
            else:
                tiles = tiles.clone()  # of a view the compiler would look at what it is a view of
                for side in (0, 2, 4):
                    torch._dynamo.maybe_mark_dynamic(tiles, side)
                levels = self.compiled(tiles)
            return {**levels, "pool": F.max_pool2d(next(reversed(levels.values())), 1, 2)}

        def of_tiles(self, tiles: Tensor) -> dict[str, Tensor]:
            levels: dict[str, Tensor] = super().forward(tiles.flatten(4, 5).flatten(2, 3))
            return levels

        def compile(self, mode: str, dynamic: bool) -> None:
            self.compiled = torch.compile(self.of_tiles, mode=mode)  # what is dynamic is marked, side by side

    return TiledBackbone(body, layers, list(widths), channels, extra_blocks=NoMore())


def _halving(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def wide_anchors(sizes: tuple[int, ...]) -> Any:
    """Anchors of these sizes, one a level, in fp32 whatever the features are."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    class WideAnchors(AnchorGenerator):
        def forward(self, image_list: Any, feature_maps: list[Tensor]) -> list[Tensor]:
            device, count = feature_maps[0].device, len(image_list.image_sizes)
            shape = (device, image_list.tensors.shape[-2:], *(features.shape[-2:] for features in feature_maps))
            if shape not in kept:
                number = torch.empty((), dtype=torch.float32, device=device)
                wide = [number.expand(features.shape) for features in feature_maps]
                kept[shape] = super().forward(image_list, wide)[0]
                if len(kept) > SHAPES_KEPT:
                    del kept[next(iter(kept))]
            return [kept[shape]] * count

    kept: dict[tuple[Any, ...], Tensor] = {}

    return WideAnchors(tuple((size,) for size in sizes), (RATIOS,) * len(sizes))


def with_fp32_boxes(model: Any) -> nn.Module:
    """With boxes decoded and ranked in fp32, whatever heads answer, and colours normalised by what is on the device."""
    from torchvision.models.detection._utils import BoxCoder
    from torchvision.models.detection.rpn import RegionProposalNetwork
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    class WideCoder(BoxCoder):
        def decode_single(self, rel_codes: Tensor, boxes: Tensor) -> Tensor:
            return super().decode_single(rel_codes.float(), boxes)

    class WideRanks(RegionProposalNetwork):
        def filter_proposals(self, proposals: Tensor, objectness: Tensor, *more: Any) -> Any:
            return super().filter_proposals(proposals, objectness.float(), *more)

    class TransformOnDevice(GeneralizedRCNNTransform):
        def __init__(self, other: Any) -> None:
            super().__init__(other.min_size, other.max_size, other.image_mean, other.image_std, other.size_divisible)
            self.register_buffer("mean", torch.tensor(other.image_mean).view(3, 1, 1), persistent=False)
            self.register_buffer("deviation", torch.tensor(other.image_std).view(3, 1, 1), persistent=False)

        def normalize(self, image: Tensor) -> Tensor:
            return (image - self.mean.to(image.dtype)) / self.deviation.to(image.dtype)

    model.transform = TransformOnDevice(model.transform)
    model.rpn.__class__ = WideRanks  # all that it holds stays
    for part in (model.rpn, model.roi_heads):
        part.box_coder = WideCoder(part.box_coder.weights)
    detector: nn.Module = model
    return detector


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
    if not uses_kernel(settings, "batched-assignment"):
        return library_loss
    keep = kept_by_kernel if uses_kernel(settings, "triton-nms") else kept_by_library
    pool = pooled_from_all if uses_kernel(settings, "masked-roi-align") else pooled_by_library
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

"""DINO (Zhang et al., 2022): its boxes, and the model from its backbone to its answers, with what a loss needs."""

from __future__ import annotations

import itertools
import math
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from prony_node.backends.torch.task import Batch, Capture, Part
from prony_node.workloads.detect_config import Size

# Boxes: how they are written, how far two are apart, and which of them the images of a batch have.


EDGE = 1e-3  # a share nearer than this to 0 or 1 is taken as this far off, since its logit would be infinite


def corners(boxes: Tensor) -> Tensor:
    """Centre, width and height to left, top, right, bottom."""
    centre, size = boxes.split(2, dim=-1)
    return torch.cat((centre - size / 2, centre + size / 2), dim=-1)


def centre_size(boxes: Tensor) -> Tensor:
    """Left, top, right, bottom to centre, width and height."""
    first, last = boxes.split(2, dim=-1)
    return torch.cat(((first + last) / 2, last - first), dim=-1)


def logit(shares: Tensor) -> Tensor:
    return torch.logit(shares, eps=EDGE)


def generalised_iou(one: Tensor, other: Tensor) -> Tensor:
    """Of boxes as corners, for shapes that broadcast: IoU less the share of the hull that neither covers."""
    lower, upper = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    shared = _product((upper - lower).clamp(min=0))
    hull_lower, hull_upper = torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])
    hull = _product(hull_upper - hull_lower)
    union = _area(one) + _area(other) - shared
    least = torch.finfo(union.dtype).tiny  # two boxes without any area are as far apart as can be, not undefined
    return shared / union.clamp(min=least) - (hull - union) / hull.clamp(min=least)


def _area(boxes: Tensor) -> Tensor:
    return _product(boxes[..., 2:] - boxes[..., :2])


def _product(sides: Tensor) -> Tensor:
    """Width times height. The gradient of torch's `prod` asks the device whether a side is zero, and waits for it."""
    return sides[..., 0] * sides[..., 1]


# What is in the images: boxes and labels, and how many, which the host has to know.


class ToHost:
    """A tensor on its way to the host: sent at once, waited for when it is asked for.

    To wait is a synchronisation of the workload itself. What was queued on the device in between goes on meanwhile.
    """

    waits = 0  # of this process so far

    def __init__(self, tensor: Tensor) -> None:
        queued = tensor.device.type == "cuda"
        self._here = tensor.detach().to("cpu", non_blocking=queued)  # such a copy goes to page-locked memory
        self._sent = torch.cuda.Event() if queued else None
        if self._sent is not None:
            self._sent.record()

    def get(self) -> Tensor:
        ToHost.waits += 1
        if self._sent is not None:
            self._sent.synchronize()
        return self._here


class Targets:
    """Boxes as centre and size, shares of the image without its padding; rows beyond the counts are empty."""

    def __init__(self, sizes: Tensor, boxes: Tensor, labels: Tensor, counts: Tensor) -> None:
        self.counts: list[int] = counts.tolist()  # boxes of each image; `on_host` of the task keeps them there
        self._counts = counts.to(boxes.device, non_blocking=True)
        shares = boxes.float() / sizes.flip(-1).repeat(1, 2)[:, None]
        self._boxes, self._labels = centre_size(shares), labels

    @classmethod
    def of(cls, batch: Batch) -> Targets:
        _images, sizes, boxes, labels, counts = batch
        return cls(sizes, boxes, labels, counts)

    @property
    def most(self) -> int:
        """Boxes of the image that has most of them."""
        return max(self.counts)

    @property
    def total(self) -> int:
        """Boxes of all images together, by which losses are divided; 1 where there are none."""
        return max(1, sum(self.counts))

    @property
    def boxes(self) -> Tensor:
        """Batch, most, 4."""
        return self._boxes[:, : self.most]

    @property
    def labels(self) -> Tensor:
        """Batch, most."""
        return self._labels[:, : self.most]

    @property
    def real(self) -> Tensor:
        """Batch, most: true where there is a box."""
        return torch.arange(self.most, device=self._counts.device) < self._counts[:, None]


# DINO (Zhang et al., 2022) from its backbone to its answers, and what a loss needs of them.


# Where things are: what of each feature level is image, and sine embeddings of places and of boxes.
#
# Everything here is fp32: from 0.5 to 1 bf16 has 128 numbers, and half a feature level has more places than that.

ENCODER_TEMPERATURE = 20.0  # the paper's, appendix
BOX_TEMPERATURE = 10_000.0  # DAB-DETR's, for the boxes of queries


@dataclass(frozen=True)
class Levels:
    """The feature levels of a padded batch, as the tokens of all of them in a row."""

    shapes: list[tuple[int, int]]  # height and width of each
    extents: Tensor  # batch, levels, 2: columns and rows that hold image, the rest being padding
    valid: Tensor  # batch, tokens: true where there is image

    @cached_property
    def ratios(self) -> Tensor:
        """Batch, levels, 2: the share of each level's width and height that holds image."""
        return self.extents / self.sides

    @cached_property
    def sides(self) -> Tensor:
        """Levels, 2: width and height. Made by filling, since a copy from the host would wait for the device."""
        return _filled([[width, height] for height, width in self.shapes], self.extents.device)

    @cached_property
    def height_width(self) -> Tensor:
        """Levels, 2: the same as whole numbers, the other way round."""
        return self.sides.flip(-1).long()

    @cached_property
    def starts(self) -> Tensor:
        """Levels: the number of each one's first token."""
        counts = self.height_width.prod(-1)
        return counts.cumsum(0) - counts


def _filled(rows: list[list[int]], device: torch.device) -> Tensor:
    return torch.stack([torch.stack([torch.full((), float(value), device=device) for value in row]) for row in rows])


def find_levels(sizes: Tensor, padded: tuple[int, int], shapes: list[tuple[int, int]]) -> Levels:
    """What each level holds of images of these sizes (height, width) that were padded to one size."""
    extents, valid = [], []
    for height, width in shapes:
        # A place holds image where its first pixel does: the nearest neighbour of the pixels' own mask.
        rows = (sizes[:, 0] * height + padded[0] - 1).div(padded[0], rounding_mode="floor")
        columns = (sizes[:, 1] * width + padded[1] - 1).div(padded[1], rounding_mode="floor")
        in_rows = torch.arange(height, device=sizes.device) < rows[:, None]
        in_columns = torch.arange(width, device=sizes.device) < columns[:, None]
        valid.append((in_rows[:, :, None] & in_columns[:, None, :]).flatten(1))
        extents.append(torch.stack((columns, rows), dim=-1))
    return Levels(shapes, torch.stack(extents, dim=1).float(), torch.cat(valid, dim=1))


def centres(levels: Levels) -> Tensor:
    """Batch, tokens, 2: the middle of each token, x and y, as a share of the image without its padding."""
    found = []
    for number, (height, width) in enumerate(levels.shapes):
        device = levels.extents.device
        y = torch.arange(height, device=device, dtype=torch.float32) + 0.5
        x = torch.arange(width, device=device, dtype=torch.float32) + 0.5
        places = torch.stack((x.expand(height, width), y[:, None].expand(height, width)), dim=-1)
        found.append(places.flatten(0, 1) / levels.extents[:, None, number])
    return torch.cat(found, dim=1)


def wave(values: Tensor, width: int, temperature: float) -> Tensor:
    """Sines and cosines of a value in turn, `width` of them, at frequencies that fall geometrically."""
    pair = torch.arange(width // 2, device=values.device, dtype=torch.float32)
    angles = values.float()[..., None] * 2 * math.pi / temperature ** (2 * pair / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def place_embeddings(levels: Levels, hidden: int, temperature: float = ENCODER_TEMPERATURE) -> Tensor:
    """Batch, tokens, hidden: half for the row and half for the column, counted from 1, as shares of the image."""
    found = []
    for number, (height, width) in enumerate(levels.shapes):
        device = levels.extents.device
        columns, rows = levels.extents[:, number, :1], levels.extents[:, number, 1:]
        y = wave((torch.arange(height, device=device) + 1) / rows, hidden // 2, temperature)
        x = wave((torch.arange(width, device=device) + 1) / columns, hidden // 2, temperature)
        y, x = y[:, :, None].expand(-1, -1, width, -1), x[:, None].expand(-1, height, -1, -1)
        found.append(torch.cat((y, x), dim=-1).flatten(1, 2))
    return torch.cat(found, dim=1)


def box_embeddings(boxes: Tensor, hidden: int) -> Tensor:
    """Batch, queries, 2 x hidden: a quarter each for y, x, width and height of a box, as DAB-DETR orders them."""
    x, y, width, height = boxes.unbind(-1)
    return torch.cat([wave(value, hidden // 2, BOX_TEMPERATURE) for value in (y, x, width, height)], dim=-1)


# What reads an answer from a query: a class and a box; and the layers that begin as in DETR.

PRIOR = 0.01  # at first every class is thought this likely, or the many queries without an object drown the rest


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer whose weights begin as in DETR."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Perceptron(nn.Module):
    """Linear layers with ReLU between."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        *first, last = self.layers
        for layer in first:
            x = F.relu(layer(x))
        return last(x)


class Heads(nn.Module):
    """One logit a class, and the change of a box in logit space. All decoder layers share one of these."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.classes = linear(size.hidden, size.classes)
        nn.init.constant_(self.classes.bias, -math.log((1 - PRIOR) / PRIOR))
        self.boxes = Perceptron(size.hidden, size.hidden, size.hidden, 4)
        nn.init.zeros_(self.boxes.layers[-1].weight)  # a box starts as the one it refers to
        nn.init.zeros_(self.boxes.layers[-1].bias)

    def class_logits(self, queries: Tensor) -> Tensor:
        return self.classes(queries).float()

    def box_change(self, queries: Tensor) -> Tensor:
        """As fp32: a box is a sum of such changes, and in 16 bits it would lose more digits with each."""
        return self.boxes(queries).float()


# Multi-scale deformable attention: transformers' module in its plain torch form, with the sampling kept in fp32.


def portable_kernels() -> AbstractContextManager[Any]:
    """Around attention with a mask: cuDNN's, which Prony prefers elsewhere, is made for sequences without one."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class FullPrecision(nn.Module):
    """The sampling in fp32, whatever the precision of the layers around it.

    A place between two pixels needs more digits than 16 bits have: in its right half a level of 160 columns has 80
    of them, and bf16 has 128 numbers there. Values follow, since torch samples at the precision of the places.
    """

    def __init__(self, sampling: nn.Module) -> None:
        super().__init__()
        self.sampling = sampling

    def forward(self, value: Tensor, *geometry: Any) -> Tensor:
        shapes, shape_list, starts, places, weights, piece = geometry
        found: Tensor = self.sampling(value.float(), shapes, shape_list, starts, places.float(), weights.float(), piece)
        return found.to(value.dtype)


class DeformableAttention(nn.Module):
    """Each query looks at a few places of every level, around a point or inside a box that it refers to."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        from transformers import DeformableDetrConfig
        from transformers.models.deformable_detr.modeling_deformable_detr import (
            DeformableDetrMultiscaleDeformableAttention,
        )

        config = DeformableDetrConfig(d_model=size.hidden, num_feature_levels=size.levels)
        self.module = DeformableDetrMultiscaleDeformableAttention(config, size.heads, size.points)
        self.module.attn = FullPrecision(self.module.attn)
        self._start(size)

    def _start(self, size: Size) -> None:
        """As in Deformable DETR: each head looks in a direction of its own, its points at growing distances."""
        nn.init.zeros_(self.module.sampling_offsets.weight)
        angles = torch.arange(size.heads) * (2 * math.pi / size.heads)
        directions = torch.stack((angles.cos(), angles.sin()), dim=-1)
        directions = directions / directions.abs().amax(-1, keepdim=True)
        steps = torch.arange(1, size.points + 1)
        offsets = directions[:, None, None] * steps[None, None, :, None]
        with torch.no_grad():
            self.module.sampling_offsets.bias.copy_(offsets.expand(-1, size.levels, -1, -1).flatten())
        nn.init.zeros_(self.module.attention_weights.weight)
        nn.init.zeros_(self.module.attention_weights.bias)
        for projection in (self.module.value_proj, self.module.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, query: Tensor, tokens: Tensor, references: Tensor, levels: Levels) -> Tensor:
        """References: batch, queries, levels, 2 (points) or 4 (boxes), as shares of the padded level, in fp32."""
        found, _ = self.module(
            query,
            attention_mask=levels.valid,
            encoder_hidden_states=tokens,
            reference_points=references,
            spatial_shapes=levels.height_width,
            spatial_shapes_list=levels.shapes,
            level_start_index=levels.starts,
        )
        return found


# Swin and what makes feature levels of one width of it: strides 8, 16 and 32, a fourth of 64, and maybe one of 4.

CHANNELS_A_GROUP = 8  # of the group norms: 32 groups of 256 channels
STRIDES = (4, 8, 16, 32, 64)
STAGES = ("stage1", "stage2", "stage3", "stage4")  # of Swin, whose strides are all of these but the last
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of red, green and blue from 0 to 1


def level_shapes(height: int, width: int, levels: int) -> list[tuple[int, int]]:
    """Of the maps: patches of four pixels, whose number is halved up to four times, each time rounded up."""
    return [(-(-height // stride), -(-width // stride)) for stride in STRIDES[-levels:]]


class Backbone(nn.Module):
    """Images to four or five maps, the finest first."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION).view(3, 1, 1), persistent=False)
        self.swin = make_swin(size)
        self.levels = size.levels
        widths = [size.swin_width * 2**stage for stage in range(len(STAGES))][1 - size.levels :]
        self.projections = nn.ModuleList(_projection(width, size.hidden, 1) for width in widths)
        self.coarsest = _projection(widths[-1], size.hidden, 3)

    def forward(self, images: Tensor, sizes: Tensor) -> list[Tensor]:
        with portable_kernels():
            maps = self.swin(self._normalised(images, sizes)).feature_maps
        levels = [project(found) for project, found in zip(self.projections, maps, strict=True)]
        return [*levels, self.coarsest(maps[-1])]

    def _normalised(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Values from 0 to 1 to values around 0, which is also what the padding holds."""
        rows = torch.arange(images.shape[-2], device=images.device) < sizes[:, :1]
        columns = torch.arange(images.shape[-1], device=images.device) < sizes[:, 1:]
        inside = rows[:, None, :, None] & columns[:, None, None, :]
        return (images - self.mean) / self.deviation * inside


def make_swin(size: Size) -> nn.Module:
    """As transformers builds it, with random weights; a layer norm behind each of the stages that are taken."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded to benchmark
    from transformers import SwinBackbone, SwinConfig

    config = SwinConfig(
        embed_dim=size.swin_width,
        depths=list(size.swin_depths),
        num_heads=list(size.swin_heads),
        window_size=size.swin_window,
        drop_path_rate=size.drop_path,
        out_features=list(STAGES[1 - size.levels :]),
    )
    swin: nn.Module = SwinBackbone(config)
    swin.swin.layernorm = nn.Identity()  # a norm behind the last stage that no feature map goes through
    _tell_padding(swin.swin.embeddings.patch_embeddings.projection)
    return swin


def _tell_padding(embedding: nn.Conv2d) -> None:
    """Begin this bias as torch does and not with zeros, which would make a token of the padding a vector of zeros.

    Every layer norm on the way divides the gradient of such a token by the root of its epsilon. Through all of Swin the
    biases would get gradients of 1e13 at first, and Adam would not move them for tens of thousands of steps.
    """
    bound = embedding.weight[0].numel() ** -0.5
    nn.init.uniform_(embedding.bias, -bound, bound)


def _projection(inputs: int, hidden: int, kernel: int) -> nn.Sequential:
    """To the transformer's width; with a kernel of 3 also to half the resolution."""
    conv = nn.Conv2d(inputs, hidden, kernel, stride=2 if kernel == 3 else 1, padding=kernel // 2)
    nn.init.xavier_uniform_(conv.weight)
    nn.init.zeros_(conv.bias)
    return nn.Sequential(conv, nn.GroupNorm(hidden // CHANNELS_A_GROUP, hidden))


# The encoder: tokens of all levels attend to a few places of every level, six times over.


class FeedForward(nn.Module):
    """Two linear layers beside a shortcut, and a norm."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = linear(hidden, inner), linear(inner, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.relu(self.up(x))))


class EncoderLayer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = DeformableAttention(size)
        self.norm = nn.LayerNorm(size.hidden)
        self.feed_forward = FeedForward(size.hidden, size.feed_forward)

    def forward(self, tokens: Tensor, places: Tensor, references: Tensor, levels: Levels) -> Tensor:
        attended = self.attention(tokens + places, tokens, references, levels)
        return self.feed_forward(self.norm(tokens + attended))


class Encoder(nn.Module):
    """Four maps to tokens that have seen each other."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(size.encoder_layers))
        self.level_embedding = nn.Parameter(torch.empty(size.levels, size.hidden))
        nn.init.normal_(self.level_embedding)
        self.recompute = False

    def forward(self, maps: list[Tensor], levels: Levels) -> Tensor:
        tokens = torch.cat([found.flatten(2).transpose(1, 2) for found in maps], dim=1)
        places = place_embeddings(levels, tokens.shape[-1]).to(tokens.dtype) + self._of_level(levels)
        references = encoder_references(levels)
        for layer in self.layers:
            if self.recompute:
                tokens = checkpoint(layer, tokens, places, references, levels, use_reentrant=False)
            else:
                tokens = layer(tokens, places, references, levels)
        return tokens

    def _of_level(self, levels: Levels) -> Tensor:
        """Tokens, hidden: the same for all tokens of a level, so that the level can be told."""
        counts = [height * width for height, width in levels.shapes]
        rows = zip(self.level_embedding, counts, strict=True)
        return torch.cat([row.expand(count, -1) for row, count in rows])


def encoder_references(levels: Levels) -> Tensor:
    """Batch, tokens, levels, 2: each token's own place, on every level, as a share of the padded level."""
    return centres(levels)[:, :, None] * levels.ratios[:, None]


# Mixed query selection: a query's position is one of the encoder's best proposals, its content is learned.

FINEST = 0.05  # side of a proposal on the finest level, as a share of the image; twice that on the next, and so on
MARGIN = 0.01  # a proposal whose centre or side is nearer than this to 0 or 1 is not taken


@dataclass(frozen=True)
class Selected:
    """Of each image, the proposals that become queries."""

    boxes: Tensor  # batch, queries, 4: logits, with a gradient to the encoder
    class_logits: Tensor  # batch, queries, classes
    contents: Tensor  # batch, queries, hidden: learned, the same for every image

    @property
    def references(self) -> Tensor:
        """Where the decoder starts, in logits; what it finds wrong there is not the encoder's to mend."""
        return self.boxes.detach()


class QuerySelection(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.project = linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.heads = Heads(size)  # its own: the decoder has others
        self.contents = nn.Parameter(torch.empty(size.queries, size.hidden))
        nn.init.normal_(self.contents)

    def forward(self, tokens: Tensor, levels: Levels) -> Selected:
        anchors, usable = proposals(levels)
        tokens = self.norm(self.project(tokens * usable[..., None]))
        logits = self.heads.class_logits(tokens)
        best = best_tokens(logits, usable, len(self.contents))
        changes = self.heads.box_change(_take(tokens, best))  # of the chosen alone: the others' would not be used
        contents = self.contents.expand(len(tokens), -1, -1)
        return Selected(_take(anchors, best) + changes, _take(logits, best), contents)


def proposals(levels: Levels) -> tuple[Tensor, Tensor]:
    """A box around the middle of each token, as logits (batch, tokens, 4), and whether it may be taken."""
    middles = centres(levels)
    sides = [torch.full((height * width,), FINEST * 2.0**number, device=middles.device)
             for number, (height, width) in enumerate(levels.shapes)]  # fmt: skip
    side = torch.cat(sides)[None, :, None].expand(len(middles), -1, 2)
    boxes = torch.cat((middles, side), dim=-1)
    inside = ((boxes > MARGIN) & (boxes < 1 - MARGIN)).all(-1)  # which no token of the padding is: it lies beyond 1
    return torch.logit(boxes, eps=MARGIN), inside


def best_tokens(logits: Tensor, usable: Tensor, count: int) -> Tensor:
    """Batch, count: the tokens whose likeliest class is likeliest; those that may not be taken come last."""
    scores = logits.detach().amax(-1).masked_fill(~usable, -torch.inf)
    return scores.topk(count, dim=1).indices


def _take(values: Tensor, rows: Tensor) -> Tensor:
    return values.gather(1, rows[..., None].expand(-1, -1, values.shape[-1]))


# Contrastive denoising: real boxes with noise, for the decoder to mend (little noise) or to refuse (more).
#
# A group holds every box of an image twice: shifted by less than LAMBDA_1 half sides, the positive, and by LAMBDA_1
# to LAMBDA_2, the negative. There are as many groups as about 100 such pairs make for the image with most boxes.

LAMBDA_1, LAMBDA_2 = 0.4, 0.8  # in half sides of the box
LABEL_NOISE = 0.5  # ratio; as in the paper's code half of it is the chance that a label is drawn anew


@dataclass(frozen=True)
class Noised:
    """Queries in the order group, positive and negative, box."""

    contents: Tensor  # batch, queries, hidden: embeddings of labels
    references: Tensor  # batch, queries, 4: boxes in logits
    groups: int

    @property
    def queries(self) -> int:
        return self.contents.shape[1]


def group_count(most: int, pairs: int) -> int:
    """As many groups as hold about so many pairs, at least one."""
    return max(1, pairs // max(1, most))


def make_noised(targets: Targets, embed: nn.Embedding, pairs: int) -> Noised:
    """The denoising queries of a batch; where an image has fewer boxes than another, zeros stand in."""
    groups = group_count(targets.most, pairs)
    real = _repeated(targets.real, groups)
    labels = noised_labels(_repeated(targets.labels, groups), embed.num_embeddings)
    boxes = noised_boxes(_repeated(targets.boxes, groups))
    contents = embed(labels) * real[..., None]
    references = logit(boxes) * real[..., None]
    return Noised(contents.flatten(1, 3), references.flatten(1, 3), groups)


def _repeated(values: Tensor, groups: int) -> Tensor:
    """Batch, groups, positive and negative, boxes, and what else there is."""
    return values[:, None, None].expand(-1, groups, 2, *values.shape[1:])


def noised_labels(labels: Tensor, classes: int) -> Tensor:
    flipped = torch.rand(labels.shape, device=labels.device) < LABEL_NOISE / 2
    return torch.where(flipped, torch.randint(classes, labels.shape, device=labels.device), labels)


def noised_boxes(boxes: Tensor) -> Tensor:
    """Each side moved to either hand: batch, groups, 2, boxes, 4, the positives first."""
    amount = torch.rand(boxes.shape, device=boxes.device)
    near, far = amount[:, :, :1] * LAMBDA_1, LAMBDA_1 + amount[:, :, 1:] * (LAMBDA_2 - LAMBDA_1)
    sign = torch.randint(2, boxes.shape, device=boxes.device) * 2 - 1
    half = boxes[..., 2:].repeat(1, 1, 1, 1, 2) / 2
    moved = corners(boxes) + torch.cat((near, far), dim=2) * sign * half
    return centre_size(moved.clamp(0, 1))


def filled_up(noised: Noised, queries: int) -> Noised:
    """With zeros behind, so that batches of other boxes have as many; `hidden_from` hides them from all others."""
    more = (0, 0, 0, max(0, queries - noised.queries))
    return Noised(F.pad(noised.contents, more), F.pad(noised.references, more), noised.groups)


def hidden_from(noised: int, groups: int, queries: int, device: torch.device, filled: int = 0) -> Tensor:
    """Row may not see column: no group sees another, and the queries to be matched see none, or they could copy.

    Where the noised ones were filled up to so many, the rest are groups too, that nobody asks.
    """
    row = torch.arange(max(noised, filled) + queries, device=device)
    group = (row // max(1, noised // groups)).masked_fill(row >= max(noised, filled), -1)
    return (group[None] >= 0) & (group[None] != group[:, None])


# The decoder: boxes are refined layer by layer, and the losses of two layers see each change (look forward twice).


@dataclass(frozen=True)
class Predicted:
    """What every layer answers, the last being the model's answer."""

    class_logits: Tensor  # layers, batch, queries, classes
    boxes: Tensor  # layers, batch, queries, 4: logits

    def part(self, first: int, end: int | None = None) -> Predicted:
        """Of these queries."""
        return Predicted(self.class_logits[:, :, first:end], self.boxes[:, :, first:end])


class DecoderLayer(nn.Module):
    """Queries see each other, then the image, then themselves."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(size.hidden, size.heads, batch_first=True)
        nn.init.xavier_uniform_(self.self_attention.out_proj.weight)
        self.self_norm = nn.LayerNorm(size.hidden)
        self.cross_attention = DeformableAttention(size)
        self.cross_norm = nn.LayerNorm(size.hidden)
        self.feed_forward = FeedForward(size.hidden, size.feed_forward)

    def forward(
        self, content: Tensor, position: Tensor, tokens: Tensor, boxes: Tensor, levels: Levels, hidden: Tensor | None
    ) -> Tensor:
        placed = content + position
        with portable_kernels():
            seen, _ = self.self_attention(placed, placed, content, attn_mask=hidden, need_weights=False)
        content = self.self_norm(content + seen)
        seen = self.cross_attention(content + position, tokens, on_levels(boxes, levels), levels)
        return self.feed_forward(self.cross_norm(content + seen))


def on_levels(boxes: Tensor, levels: Levels) -> Tensor:
    """Shares of the image to shares of each padded level: batch, queries, levels, 4."""
    return boxes[:, :, None] * levels.ratios.repeat(1, 1, 2)[:, None]


class Decoder(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(size.decoder_layers))
        self.position = Perceptron(2 * size.hidden, size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.heads = Heads(size)

    def forward(
        self, content: Tensor, references: Tensor, tokens: Tensor, levels: Levels, hidden: Tensor | None = None
    ) -> Predicted:
        """References: the boxes that queries start from, in logits."""
        logits, boxes = [], []
        refined = references
        for layer in self.layers:
            references = refined.detach()
            where = references.sigmoid()
            position = self.position(box_embeddings(where, content.shape[-1]).to(content.dtype))
            content = layer(content, position, tokens, where, levels, hidden)
            answer = self.norm(content)
            change = self.heads.box_change(answer)
            logits.append(self.heads.class_logits(answer))
            boxes.append(refined + change)  # the loss of this layer sees the change of the layer before, too
            refined = references + change
        return Predicted(torch.stack(logits), torch.stack(boxes))


@dataclass(frozen=True)
class Answers:
    """Of the encoder, of the decoder's queries, and of its denoising queries where there are any."""

    selected: Selected
    matched: Predicted
    noised: Predicted | None
    groups: int


class Dino(nn.Module):
    """What depends on the values of targets lies between the parts that find proposals and the decoder, and after."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.backbone = Backbone(size)
        self.encoder = Encoder(size)
        self.selection = QuerySelection(size)
        self.decoder = Decoder(size)
        self.label_embedding = nn.Embedding(size.classes, size.hidden)
        self.captured: tuple[Part, Part] | None = None  # what finds proposals, and the decoder

    def forward(self, images: Tensor, sizes: Tensor, targets: Targets | None = None) -> Answers:
        """With targets there are denoising queries beside the others."""
        tokens, levels, selected = self.propose(images, sizes)
        content, references, hidden = selected.contents.to(tokens.dtype), selected.references, None
        noised: Noised | None = None
        first = 0
        if targets is not None and targets.most:
            noised = make_noised(targets, self.label_embedding, self.size.pairs)
            filled = filled_up(noised, 2 * self.size.pairs) if self.captured else noised  # one shape for most batches
            first = filled.queries
            content = torch.cat((filled.contents.to(tokens.dtype), content), dim=1)
            references = torch.cat((filled.references, references), dim=1)
            hidden = hidden_from(noised.queries, noised.groups, self.size.queries, images.device, first)
        predicted = self.decode(content, references, tokens, levels, hidden)
        if noised is None:
            return Answers(selected, predicted, None, 0)
        return Answers(selected, predicted.part(first), predicted.part(0, noised.queries), noised.groups)

    def encode(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels]:
        """The tokens of all levels, and which of them are image."""
        return encoded(self.backbone, self.encoder, images, sizes)

    def propose(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels, Selected]:
        """Tokens, levels, and the proposals that become queries."""
        if self.captured is None:
            tokens, levels = self.encode(images, sizes)
            return tokens, levels, self.selection(tokens, levels)
        tokens, extents, valid, *selected = self.captured[0](images, sizes)
        levels = Levels(level_shapes(images.shape[-2], images.shape[-1], self.size.levels), extents, valid)
        return tokens, levels, Selected(*selected)

    def decode(
        self, content: Tensor, references: Tensor, tokens: Tensor, levels: Levels, hidden: Tensor | None
    ) -> Predicted:
        if self.captured is None:
            predicted: Predicted = self.decoder(content, references, tokens, levels, hidden)
            return predicted
        shapes = tuple(levels.shapes)
        return Predicted(*self.captured[1](content, references, tokens, levels.extents, levels.valid, hidden, shapes))

    def capture(self, capture: Capture) -> None:
        """In training, from now on."""
        first = capture(ProposalStage(self.backbone, self.encoder, self.selection))
        self.captured = first, capture(TensorDecoder(self.decoder))


class ProposalStage(nn.Module):
    """The parts of a Dino before its decoder, which answer tensors alone."""

    def __init__(self, backbone: Backbone, encoder: Encoder, selection: QuerySelection) -> None:
        super().__init__()
        self.backbone, self.encoder, self.selection = backbone, encoder, selection

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        tokens, levels = encoded(self.backbone, self.encoder, images, sizes)
        selected = self.selection(tokens, levels)
        return tokens, levels.extents, levels.valid, selected.boxes, selected.class_logits, selected.contents


class TensorDecoder(nn.Module):
    """The decoder, given and answering tensors, and the shapes of the levels."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, content: Tensor, references: Tensor, tokens: Tensor, extents: Tensor, valid: Tensor,
                hidden: Tensor | None, shapes: tuple[tuple[int, int], ...]) -> tuple[Tensor, Tensor]:  # fmt: skip
        predicted = self.decoder(content, references, tokens, Levels(list(shapes), extents, valid), hidden)
        return predicted.class_logits, predicted.boxes


def encoded(backbone: Backbone, encoder: Encoder, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels]:
    padded = (images.shape[-2], images.shape[-1])
    levels = find_levels(sizes, padded, level_shapes(*padded, backbone.levels))
    return encoder(backbone(images, sizes), levels), levels

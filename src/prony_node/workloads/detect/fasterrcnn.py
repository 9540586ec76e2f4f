"""Faster R-CNN with a ResNet-50 and a feature pyramid, as torchvision builds it, or tiny for a CPU.

Torchvision makes anchors and decodes boxes in the precision of the features. In bf16 a coordinate beyond 512 is then a
multiple of four pixels, and most proposals score the same as hundreds of others, of which the first ones by number
win. So anchors, boxes and their scores are kept in fp32 here in every precision. What stays the same from step to step
(anchors of a shape, the statistics of colours) is kept on the device: to send it again would be to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from prony_node.contract.kernels import uses_kernel
from prony_node.contract.parallel import replicas
from prony_node.contract.trial import learns_to_quality
from prony_node.data.boxes import COCO_SCENERY, COUNTS, SIZES, TINY_SCENERY, box_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.detect.config import TINY_CLASSES
from prony_node.workloads.detect.loss import (
    batched_loss,
    found_boxes,
    image_list,
    kept_by_kernel,
    kept_by_library,
    low_precision,
    pooled_by_library,
    pooled_from_all,
    target_list,
)
from prony_node.workloads.image.task import fold_batch_norms
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload


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
    return settled(FasterRCNN(backbone, classes, rpn_anchor_generator=wide_anchors(ANCHORS)))


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
    return settled(model)


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


def settled(model: Any) -> nn.Module:
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

    class SettledTransform(GeneralizedRCNNTransform):
        def __init__(self, other: Any) -> None:
            super().__init__(other.min_size, other.max_size, other.image_mean, other.image_std, other.size_divisible)
            self.register_buffer("mean", torch.tensor(other.image_mean).view(3, 1, 1), persistent=False)
            self.register_buffer("deviation", torch.tensor(other.image_std).view(3, 1, 1), persistent=False)

        def normalize(self, image: Tensor) -> Tensor:
            return (image - self.mean.to(image.dtype)) / self.deviation.to(image.dtype)

    model.transform = SettledTransform(model.transform)
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

"""Torchvision's Faster R-CNN put together: full, or tiny for a CPU, with box arithmetic in fp32 in every precision.

Torchvision makes anchors and decodes boxes in the precision of the features. In bf16 a coordinate beyond 512 is then a
multiple of four pixels, so anchors and boxes are kept wide here; in fp32 nothing differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ANCHORS = (32, 64, 128, 256, 512)  # pixels, one size a level of the pyramid
TINY_ANCHORS = (16, 32, 48)
RATIOS = (0.5, 1.0, 2.0)
TINY_WIDTHS = (16, 32, 64)  # at a half, a quarter and an eighth of the image's size
TINY_CHANNELS, TINY_FEATURES, TINY_POOL = 32, 64, 5


def full_model(classes: int, frozen_norms: bool) -> nn.Module:
    """fasterrcnn_resnet50_fpn; with a checkpoint its batch norms are frozen, as torchvision itself has them then."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
    from torchvision.models.resnet import resnet50
    from torchvision.ops import FrozenBatchNorm2d

    norm = FrozenBatchNorm2d if frozen_norms else nn.BatchNorm2d
    backbone = _resnet_fpn_extractor(resnet50(weights=None, norm_layer=norm), trainable_layers=5)
    return with_wide_boxes(FasterRCNN(backbone, classes, rpn_anchor_generator=wide_anchors(ANCHORS)))


def tiny_model(classes: int) -> nn.Module:
    """The same parts, narrow and shallow, for images of about 96 pixels."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.ops import MultiScaleRoIAlign

    first, second, third = TINY_WIDTHS
    body = nn.Sequential()
    for name, inputs, outputs in (("stem", 3, first), ("quarter", first, second), ("eighth", second, third)):
        body.add_module(name, _halving(inputs, outputs))
    backbone = BackboneWithFPN(body, {"quarter": "0", "eighth": "1"}, [second, third], TINY_CHANNELS)
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
    return with_wide_boxes(model)


def _halving(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def wide_anchors(sizes: tuple[int, ...]) -> Any:
    """Anchors of these sizes, one a level, in fp32 whatever the features are."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    class WideAnchors(AnchorGenerator):
        def forward(self, image_list: Any, feature_maps: list[Tensor]) -> list[Tensor]:
            number = torch.empty((), dtype=torch.float32, device=feature_maps[0].device)
            return super().forward(image_list, [number.expand(features.shape) for features in feature_maps])

    return WideAnchors(tuple((size,) for size in sizes), (RATIOS,) * len(sizes))


def with_wide_boxes(model: Any) -> nn.Module:
    """Boxes decoded in fp32, whatever the heads answer."""
    from torchvision.models.detection._utils import BoxCoder

    class WideCoder(BoxCoder):
        def decode_single(self, rel_codes: Tensor, boxes: Tensor) -> Tensor:
            return super().decode_single(rel_codes.float(), boxes)

    for part in (model.rpn, model.roi_heads):
        part.box_coder = WideCoder(part.box_coder.weights)
    detector: nn.Module = model
    return detector

"""Classifiers as torchvision builds them, and a tiny model of each kind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from prony_node.contract.kernels import uses_kernel
from prony_node.measure.protocol import Task
from prony_node.workloads.image.layers import use_own_swin_parts, use_own_vit_parts
from prony_node.workloads.image.task import TINY_CLASSES, class_count, image_task, is_tiny, learning_rate

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

CONSTRUCTORS = {
    "resnet50": "resnet50",
    "resnet152": "resnet152",
    "vit-l": "vit_l_16",
    "vit-l-32": "vit_l_32",
    "vit-h": "vit_h_14",
    "swin-t": "swin_t",
    "swin-b": "swin_b",
    "efficientnet-b0": "efficientnet_b0",
    "efficientnet-b4": "efficientnet_b4",
    "mobilenetv3-small": "mobilenet_v3_small",
    "mobilenetv3-large": "mobilenet_v3_large",
}
# Those of vit-l-32 and vit-h by their kin: their own were not tried.
ADAM_RATES = {"vit-l": 3e-5, "vit-l-32": 3e-5, "vit-h": 3e-5, "swin-t": 1e-4, "swin-b": 1e-4}


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    task = library_task(workload, settings)
    if uses_kernel(settings, "low-precision-residual"):
        own_parts = use_own_swin_parts if workload.name.startswith("swin") else use_own_vit_parts
        task = replace(task, own_parts=own_parts)
    return task


def library_task(workload: Workload, settings: dict[str, Value]) -> Task:
    """With torchvision's model as it is."""
    from torchvision.models import get_model

    name, size, patch = workload.name, int(settings["image_size"]), workload.shape.get("patch", 0)
    # Adam's usual 1e-3 is for a rate that is warmed up, which a run of a minute is not.
    rates: dict[str, Any] = {}
    if name in ADAM_RATES:
        rates = {"adam_rate": ADAM_RATES[name], "adamw_decay": 0.05}
    if name == "resnet152":  # at SGD's usual rate its loss rises for the first hundreds of steps
        rates = {"sgd_rate": 0.02}
    if name.startswith("mobilenet"):  # its layers start small: at SGD's usual rate a minute's run learns little
        rates = {"sgd_rate": 4 * learning_rate(settings)}
    if is_tiny(settings):
        # Bottlenecks blow up where depthwise convolutions, which start small, have not begun to learn.
        rates = {"sgd_rate": 0.01 if name.startswith("resnet") else 0.05}
        classes = class_count(settings, TINY_CLASSES)
        return image_task(partial(tiny_model, name, size, patch, classes), classes, settings, **rates)
    classes = class_count(settings, workload.shape["classes"])
    sized = {"image_size": size} if patch else {}  # positions are learned, so their number is the model's
    model = partial(get_model, CONSTRUCTORS[name], weights=None, num_classes=classes, **sized)
    return image_task(model, classes, settings, **rates)


def tiny_model(name: str, size: int, patch: int, classes: int = TINY_CLASSES) -> nn.Module:
    """A model of the same kind that a CPU trains in seconds: torchvision's own classes, narrow and shallow."""
    family = name.partition("-")[0]
    if family == "vit":
        return _tiny_vit(size, patch, classes)
    if family == "swin":
        return _tiny_swin({"swin-t": 2, "swin-b": 4}[name], classes)
    if family == "efficientnet":
        return _tiny_efficientnet(*{"efficientnet-b0": (1.0, 1.0), "efficientnet-b4": (1.4, 1.8)}[name], classes)
    if family == "mobilenetv3":
        from torchvision.models import get_model

        tiny: nn.Module = get_model(CONSTRUCTORS[name], weights=None, num_classes=classes, width_mult=0.25,
                                    reduced_tail=True, dropout=0.0)  # fmt: skip
        return tiny
    return _tiny_resnet({"resnet50": [1, 1, 1, 1], "resnet152": [1, 2, 2, 1]}[name], classes)


def _tiny_resnet(blocks: list[int], classes: int) -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    class Narrow(Bottleneck):
        expansion = 1  # else a block's output is four times as wide, whatever its inside

    return ResNet(Narrow, blocks, num_classes=classes, width_per_group=32)


def _tiny_vit(size: int, patch: int, classes: int) -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(size, patch, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128,
                             num_classes=classes)  # fmt: skip


def _tiny_swin(blocks: int, classes: int) -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], embed_dim=32, depths=[2, blocks], num_heads=[2, 4], window_size=[4, 4],
                           stochastic_depth_prob=0.0, num_classes=classes)  # fmt: skip


def _tiny_efficientnet(width: float, depth: float, classes: int) -> nn.Module:
    from torchvision.models import EfficientNet
    from torchvision.models.efficientnet import MBConvConfig

    stages = [(1, 3, 1, 16, 8, 1), (6, 3, 2, 8, 16, 1), (6, 5, 2, 16, 32, 2)]
    scaled = [MBConvConfig(*stage, width, depth) for stage in stages]
    return EfficientNet(scaled, dropout=0.0, stochastic_depth_prob=0.0, num_classes=classes)

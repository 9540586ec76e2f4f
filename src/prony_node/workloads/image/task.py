"""The task of every image classifier: cross entropy on labelled images."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from prony_node.contract.settings import Value
from prony_node.data.synthetic import image_sampler
from prony_node.measure.protocol import Batch, Task

LEARNING_RATE = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3}
SGD_SAMPLES = 256  # its rate is for steps of so many samples


def image_task(model: Callable[[], nn.Module], classes: int, settings: dict[str, Value]) -> Task:
    return Task(
        unit="images",
        units_per_sample=1,
        model=model,
        loss=classification_loss,
        predict=lambda network, batch: network(batch[0]),
        sample=image_sampler(classes, int(settings["image_size"])),
        learning_rate=learning_rate(settings),
        weight_decay=5e-5,
        for_inference=fold_batch_norms,
    )


def learning_rate(settings: dict[str, Value]) -> float:
    """Of the optimizer; smaller steps of SGD take a proportionally smaller one, the full one blows four images up."""
    optimizer = str(settings.get("optimizer", "sgd"))
    if optimizer != "sgd" or settings.get("batch_size", "auto") == "auto":
        return LEARNING_RATE[optimizer]
    samples = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1))
    return LEARNING_RATE[optimizer] * min(1.0, samples / SGD_SAMPLES)


def classification_loss(network: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(network(images), labels)


def fold_batch_norms(network: nn.Module) -> nn.Module:
    """The same function with each batch norm folded into the convolution before it.

    In these models a batch norm stands right after its convolution in the module that holds both; the run's
    own check of outputs against the unfolded model would show it if one did not.
    """
    folded = copy.deepcopy(network).eval()
    for parent in folded.modules():
        names = dict(parent.named_children())
        for conv_name, norm_name in itertools.pairwise(names):
            conv, norm = names[conv_name], names[norm_name]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(parent, norm_name, nn.Identity())
    return folded

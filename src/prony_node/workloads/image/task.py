"""The task of every image classifier: cross entropy on labelled images."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from prony_node.contract.kernels import uses_kernel
from prony_node.contract.parallel import replicas
from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality
from prony_node.data.synthetic import image_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.image.layers import fold_stem, fuse_blocks, replace_norms
from prony_node.workloads.weights import with_weights

SGD_RATE = 0.05
SGD_SAMPLES = 256  # its rate is for steps of so many samples
DECAY = 5e-5
# To a quality, with a rate that rises and falls: as for residual networks on CIFAR (He et al. 2015, Zagoruyko 2016),
# in proportion to the step's samples (Goyal et al. 2017) up to where that rule was found to end.
RATE_TO_QUALITY = 0.1
HIGHEST_RATE = 1.6
DECAY_TO_QUALITY = 5e-4
ANSWER_SPREAD = 0.02  # of a last layer's weights, as these models spread those of every other
TINY_CLASSES = 10  # of size=tiny: few enough to be told apart after seconds on a CPU


def image_task(
    model: Callable[[], nn.Module],
    classes: int,
    settings: dict[str, Value],
    *,
    sgd_rate: float | None = None,
    adam_rate: float = 1e-3,
    adamw_decay: float = DECAY,
    for_inference: Callable[[nn.Module], nn.Module] | None = None,
) -> Task:
    """A classifier with these classes; its kernels and `weights` are filled in here, for all."""
    return Task(
        unit="images",
        units_per_sample=1,
        model=with_weights(partial(with_answers, model), settings.get("weights")),
        loss=classification_loss,
        predict=lambda network, batch: network(batch[0]),
        sample=image_sampler(classes, int(settings["image_size"])),
        learning_rate=learning_rate(settings, sgd_rate, adam_rate),
        weight_decay=adamw_decay if settings.get("optimizer") == "adamw" else _decay(settings),
        for_inference=for_inference or fold_batch_norms,
        own_parts=_own_parts(settings),
        scores=classification_scores,
        judged=answer_scores,
    )


def _own_parts(settings: dict[str, Value]) -> Callable[[nn.Module], None] | None:
    own: list[Callable[[nn.Module], object]] = []
    if uses_kernel(settings, "compiled-norms"):
        own.append(replace_norms)
    if uses_kernel(settings, "folded-stem"):
        own.append(fold_stem)
    if uses_kernel(settings, "fused-blocks"):
        own.append(fuse_blocks)

    def replace_all(network: nn.Module) -> None:
        for replace in own:
            replace(network)

    return replace_all if own else None


def with_answers(model: Callable[[], nn.Module]) -> nn.Module:
    """The model with a last layer that answers something: torchvision's ViT starts at zero, which equals any zero."""
    network = model()
    weights = [layer.weight for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    if weights and not weights[-1].is_meta and not weights[-1].any():
        nn.init.trunc_normal_(weights[-1], std=ANSWER_SPREAD)
    return network


def class_count(settings: dict[str, Value], own: int) -> int:
    """The model's own number of classes, or the one that was asked for or that a data set has."""
    return int(settings.get("classes", own))


def _decay(settings: dict[str, Value]) -> float:
    return DECAY_TO_QUALITY if learns_to_quality(settings) else DECAY


def is_tiny(settings: dict[str, Value]) -> bool:
    return settings.get("size") == "tiny"


def learning_rate(settings: dict[str, Value], sgd_rate: float | None = None, adam_rate: float = 1e-3) -> float:
    """Of the optimizer; smaller steps of SGD take a proportionally smaller one, the full one blows four images up."""
    if settings.get("optimizer", "sgd") != "sgd":
        return adam_rate
    if learns_to_quality(settings):
        return min(HIGHEST_RATE, RATE_TO_QUALITY * _step_samples(settings) / SGD_SAMPLES)
    if sgd_rate is not None:
        return sgd_rate
    return SGD_RATE * min(1.0, _step_samples(settings) / SGD_SAMPLES)


def _step_samples(settings: dict[str, Value]) -> int:
    if settings.get("batch_size", "auto") == "auto":
        return SGD_SAMPLES
    return int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1)) * replicas(settings)


def classification_loss(network: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(network(images), labels)


def classification_scores(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return answer_scores(network(batch[0]), batch)


def answer_scores(answer: Tensor, batch: Batch) -> dict[str, Tensor]:
    wide, labels = answer.float(), batch[1]
    right = (wide.argmax(dim=-1) == labels).float()
    return {"accuracy": right, "loss": F.cross_entropy(wide, labels, reduction="none")}


def fold_batch_norms(network: nn.Module) -> nn.Module:
    """The same function with each batch norm folded into the convolution before it.

    In these models a batch norm stands right after its convolution in the module that holds both; the run's
    own check of outputs against the unfolded model would show it if one did not. A kind of batch norm of its own
    (timm's hold their activation) is left alone.
    """
    folded = copy.deepcopy(network).eval()
    for parent in folded.modules():
        names = dict(parent.named_children())
        for conv_name, norm_name in itertools.pairwise(names):
            conv, norm = names[conv_name], names[norm_name]
            follows = type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d
            if follows and conv.out_channels == norm.num_features:
                setattr(parent, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(parent, norm_name, nn.Identity())
    return folded

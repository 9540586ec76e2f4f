"""Any classifier of timm or torchvision by its own name: `timm/NAME`, `torchvision/NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.errors import RequestError, unknown
from prony_node.workloads.image import class_count, fold_batch_norms, image_task

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

CLASSES, SIZE = 1000, 224  # where the library says nothing
AUXILIARY = 0.3  # weight of GoogLeNet's auxiliary classifiers in its loss (Szegedy et al. 2014)
RATE = 3e-4  # of Adam, for convolutions and attention alike without a warm-up


@dataclass(frozen=True)
class LibraryModel:
    """A model as its library knows it."""

    model: Callable[..., nn.Module]  # takes the option for another size
    classes: int
    size: int
    size_option: str = ""  # of a model that is built for one size


def check(workload: Workload) -> None:
    """Refuse a name that the library does not have, with the nearest that it has."""
    find(workload)


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    found = find(workload)
    if settings["image_size"] == "auto":
        settings["image_size"] = found.size
    size = int(settings["image_size"])
    other_size = {found.size_option: size} if found.size_option and size != found.size else {}
    classes = class_count(settings, found.classes)
    other_classes = {"num_classes": classes} if classes != found.classes else {}
    model = partial(found.model, **other_size, **other_classes)
    _try(model, workload.name, size)
    folded = partial(fold_if_same, size=size)
    task = image_task(model, classes, settings, adam_rate=RATE, adamw_decay=0.05, for_inference=folded)
    return replace(task, loss=classification_loss)


def find(workload: Workload) -> LibraryModel:
    library, _, name = workload.name.partition("/")
    return {"timm": _timm, "torchvision": _torchvision}[library](name)


def _timm(name: str) -> LibraryModel:
    import timm

    model, dot, tag = name.partition(".")
    if model not in (names := timm.list_models()):
        raise unknown("timm model", name, names)
    tags = {full.partition(".")[2] for full in timm.list_pretrained(f"{model}.*")}
    if dot and tag not in tags:
        raise unknown(f"tag of timm's {model}", tag, tags)
    config = timm.get_pretrained_cfg(name)
    classes = (config.num_classes if config else 0) or CLASSES  # 0: published without a classifier
    return LibraryModel(
        partial(timm.create_model, name, pretrained=False, num_classes=classes),
        classes,
        config.input_size[-1] if config else SIZE,
        "img_size" if config and config.fixed_input_size else "",
    )


def _torchvision(name: str) -> LibraryModel:
    from torchvision import models

    if name not in (names := models.list_models(module=models)):
        raise unknown("torchvision model", name, names)
    sizes = [known.transforms.keywords.get("crop_size", SIZE) for known in models.get_model_weights(name)]
    return LibraryModel(
        partial(models.get_model, name, weights=None, num_classes=CLASSES),
        CLASSES,
        min(sizes, default=SIZE),  # the larger ones are for weights that were tuned further
        "image_size" if name.startswith("vit_") else "",
    )


def _try(model: Callable[[], nn.Module], name: str, size: int) -> None:
    """One image through it on the meta device: another size than a model was made for is found out at once."""
    try:
        with torch.device("meta"):
            network = model().eval()
        with torch.no_grad():
            answer = network(torch.empty(1, 3, size, size, device="meta"))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise RequestError(f"{name} cannot be tried without weights at image_size={size}: {said}") from error
    if not isinstance(answer, Tensor) or answer.dim() != 2:
        raise RequestError(f"{name} is not a classifier: it does not answer one row of classes per image")


def classification_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy; a model with auxiliary classifiers answers with theirs too while it trains."""
    images, labels = batch
    answer = network(images)
    if isinstance(answer, Tensor):
        return F.cross_entropy(answer, labels)
    main, *others = answer
    loss = F.cross_entropy(main, labels)
    for other in others:
        loss = loss + AUXILIARY * F.cross_entropy(other, labels)
    return loss


def fold_if_same(network: nn.Module, size: int) -> nn.Module:
    """Batch norms folded into convolutions where that is the same function, else the model as it is.

    Of a model that Prony does not know, the order of modules says only probably what follows on what.
    """
    parameter = next(network.parameters())
    images = torch.randn(2, 3, size, size, device=parameter.device, dtype=parameter.dtype)
    try:
        folded = fold_batch_norms(network)
        with torch.no_grad():
            expected, answered = network(images), folded(images)
    except (AttributeError, RuntimeError, TypeError):
        return network
    return folded if torch.allclose(expected, answered, rtol=1e-2, atol=1e-3) else network

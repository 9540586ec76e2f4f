"""DeepLabV3+ as segmentation-models-pytorch builds it, and a tiny one of the same kind."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from prony_node.backends.torch.task import Task
from prony_node.contract.parallel import replicas
from prony_node.workloads.segment.task import Enlarging, segment_task
from prony_node.workloads.weights import Head

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

FULL: dict[str, Any] = {"encoder_name": "resnet101"}
# timm's own small ResNet for tests.
TINY: dict[str, Any] = {
    "encoder_name": "tu-test_resnet", "decoder_channels": 32, "decoder_atrous_rates": (2, 4, 6),
    "decoder_aspp_dropout": 0.0,
}  # fmt: skip
SGD_RATE, SGD_SAMPLES, MOST_SAMPLES = 0.01, 16, 64  # its rate is for steps of so many samples, and grows up to so many
ADAM_RATE, TINY_RATE = 1e-4, {"sgd": 0.05, "adam": 3e-3, "adamw": 3e-3}
DECAY = 5e-4
# A checkpoint of the encoder alone has no decoder.
HEAD = Head(new=("decoder.", "segmentation_head."))


def learning_rate(workload: Workload, settings: dict[str, Value]) -> float:
    optimizer = str(settings.get("optimizer", workload.optimizer))
    if settings.get("size") == "tiny":
        return TINY_RATE[optimizer]
    if optimizer != "sgd":
        return ADAM_RATE
    batch = settings.get("batch_size", "auto")
    pieces = int(settings.get("grad_accumulation", 1)) * replicas(settings)
    samples = SGD_SAMPLES if batch == "auto" else int(batch) * pieces
    return SGD_RATE * min(samples, MOST_SAMPLES) / SGD_SAMPLES


def logits(network: nn.Module, images: Tensor) -> Tensor:
    """At full resolution: the model enlarges them itself."""
    answer: Tensor = network(images)
    return answer


def enlarge_by_products(network: nn.Module) -> None:
    """Torch's modules that enlarge, and the pooled image, which is spread over all pixels."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Upsample) and child.mode == "bilinear":
                setattr(parent, name, Enlarging(int(child.scale_factor), bool(child.align_corners)))
    model: Any = network
    pooling = model.decoder.aspp[0].convs[-1]
    pooling.forward = partial(pooled, pooling)


def pooled(pooling: nn.Sequential, image: Tensor) -> Tensor:
    """One pixel for each image, the same everywhere."""
    answer = image
    for part in pooling:
        answer = part(answer)
    return answer.expand(-1, -1, *image.shape[-2:])


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    import segmentation_models_pytorch as smp

    classes, stride = workload.shape["classes"], workload.shape["stride"]
    chosen = TINY if settings.get("size") == "tiny" else FULL

    def make() -> nn.Module:
        # Weights are never downloaded to benchmark; `weights` names those that a user has.
        model: nn.Module = smp.DeepLabV3Plus(
            **chosen, encoder_weights=None, encoder_output_stride=stride, classes=classes
        )
        return model

    return segment_task(
        make, logits, classes, settings, learning_rate=learning_rate(workload, settings), weight_decay=DECAY,
        head=HEAD, by_products=enlarge_by_products,
    )  # fmt: skip

"""What published studies ran: preset=published. A study's settings as far as it states them, torch-free.

Where several ran a workload, this is the one that states most of what one device needs; of its own rows, one on a
single device where it has one. What it does not state is as in preset=plain: as torch has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value


@dataclass(frozen=True)
class Published:
    """One row of a study."""

    study: str
    place: str  # where in the study, and on what
    data: str  # the data set that it read; give yours as data=PATH
    stated: Mapping[str, Value] = field(default_factory=dict)
    assumed: Mapping[str, Value] = field(default_factory=dict)  # not stated, and other than in preset=plain

    @property
    def settings(self) -> dict[str, Value]:
        return {**self.stated, **self.assumed}

    @property
    def named(self) -> str:
        return f"{self.study}, {self.place}"


CARAML = "CARAML (SC24)"
GH200_GUIDE = "the GH200 tuning guide of Olivia"
HURT = "Hurt et al. (National Research Platform)"
NASARI = "Nasari et al. (PEARC 2022)"
LAMBDA = "Lambda GPU benchmark v2"


def _hurt(place: str, data: str, image_size: int | None = None, batch_size: int | None = None) -> Published:
    """It states neither batch nor precision; the number of parameters says which model and image size it had."""
    stated: dict[str, Value] = {} if image_size is None else {"image_size": image_size}
    assumed: dict[str, Value] = {} if batch_size is None else {"batch_size": batch_size}
    return Published(HURT, f"{place}, one A100 or GH200", data, stated, assumed)


def _megatron(place: str, micro_batch: int, precision: str) -> Published:
    """A GPT of the suite's; its optimizer is Apex's FusedAdam, which Megatron-LM takes for `adam`."""
    return Published(CARAML, f"{place}, Megatron-LM", "OSCAR", {
        "batch_size": micro_batch, "precision": precision, "recompute": "selective", "kernels": "flash-attention",
        "optimizer": "adam", "fused": True, "learning_rate": "1e-4",
    })  # fmt: skip


PUBLISHED: dict[str, Published] = {
    "resnet50": Published(
        CARAML, "chart resnet_1, one GH200, TensorFlow", "ImageNet", {"batch_size": 2048, "precision": "fp16"}
    ),
    "resnet152": _hurt("table I", "CIFAR-100 and Food-101"),
    "vit-l-32": _hurt("table I", "CIFAR-100 and Food-101"),
    # The batch is Prony's: 64 images of this size in fp32 do not fit an H200, 16 take 63 GiB.
    "vit-h": _hurt("table I", "CIFAR-100 and Food-101", image_size=518, batch_size=16),
    "swin-t": _hurt("table I", "CIFAR-100 and Food-101"),
    "swin-b": _hurt("table I", "CIFAR-100 and Food-101"),
    "efficientnet-b0": Published(NASARI, "section 3.2, two A100", "not stated"),
    "efficientnet-b4": Published(NASARI, "table 2, sixteen GC200", "not stated"),
    "mobilenetv3-small": Published(NASARI, "table 2, four GC200", "not stated"),
    "mobilenetv3-large": Published(NASARI, "table 2, sixteen GC200", "not stated"),
    "wideresnet": Published(
        GH200_GUIDE, "test 4, one GH200", "CIFAR-100",
        {"batch_size": 32, "precision": "bf16", "workers": 32, "prefetch": 4}, {"cache": "off"},
    ),  # it reads through loader workers, so the set is not held on the device
    "segformer-b4": _hurt("table II", "Cityscapes"),
    "deeplabv3plus-r101": _hurt("table II", "Cityscapes"),
    "gpt-117m": Published(
        CARAML, "NLP table, a pipeline over four GC200", "synthetic",
        {"batch_size": 1, "grad_accumulation": 64, "recompute": True, "optimizer": "adamw", "learning_rate": "1.5e-4"},
    ),
    "gpt-800m": _megatron("chart LLM_tflops, one GH200", 4, "fp16"),
    "gpt-13b": _megatron("llm_benchmark_nvidia_amd.yaml of the suite", 2, "fp16"),
    "gpt-175b": _megatron("llm_benchmark_nvidia_amd.yaml of the suite", 2, "bf16"),
    "bert-base-squad": Published(LAMBDA, "one H200", "SQuAD", {"precision": "fp16"}),
    "compression-autoencoder": Published(NASARI, "table 4, one A100, TensorFlow", "MNIST", {"batch_size": 10}),
    "fasterrcnn-r50-fpn": _hurt("table II", "COCO"),
    "dino-swin-l": _hurt("table II", "COCO"),
}  # fmt: skip


def published(workload: str, mode: str) -> Published:
    """The study behind preset=published, or which workloads have one."""
    if workload not in PUBLISHED:
        raise RequestError(
            f"preset=published is what a study ran, and Prony knows of none that ran {workload}; "
            f"there is one for {', '.join(PUBLISHED)}"
        )
    found = PUBLISHED[workload]
    if mode != "train":
        raise RequestError(
            f"preset=published is what a study ran, and {found.study} trained {workload}; there is no mode={mode} of it"
        )
    return found

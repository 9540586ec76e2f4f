"""Image classification: what each model is, torch-free.

Batch sizes and memory are estimates for bf16 from the activations that the backward pass keeps, with a third added:
on an H200 resnet50 at 512 took 22 GiB where 21 were estimated. `batch_size=auto` finds what a device really takes.
"""

from __future__ import annotations

import re
from functools import partial

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Setting, Value
from prony_node.workloads.config import (
    ATTENTIONS,
    COMPILED_NORMS,
    CUDNN_BY_DEFAULT,
    FOLDED_STEM,
    FUSED_BLOCKS,
    LOW_PRECISION_RESIDUAL,
    WEIGHTS,
    Kernel,
    Workload,
)

IMAGE_SIZE = Setting("image_size", "count", "height and width of an image, in pixels", least=32)
LIBRARY_IMAGE_SIZE = Setting(
    "image_size", "count", "height and width of an image, in pixels; auto: what the library says", ("auto",), least=32
)
CLASSES = Setting("classes", "count", "classes of the model (default: its own, or the data set's)", least=2)
SCORES = ("accuracy", "loss")
IMAGENET_IMAGES = 1_281_167
DOCUMENTED = "torchvision's documentation of the model"
TORCHVISION = "prony_node.workloads.image:build_torchvision"


def _classifier(name: str, help: str, parameters: int, source: str, batch: tuple[int, int, int], memory_gib: float,
                multiply_adds: float, flops_source: str, patch: int = 0, optimizer: str = "sgd",
                tiny_size: int = 32, kernels: tuple[Kernel, ...] = (COMPILED_NORMS,)) -> Workload:  # fmt: skip
    """A model of torchvision on ImageNet's images; `batch`: train and infer on a CPU, both on an accelerator."""
    train_cpu, infer_cpu, accelerator = batch
    sizes = {"train/cpu": train_cpu, "infer/cpu": infer_cpu}
    shape = {"classes": 1000} | ({"patch": patch} if patch else {})
    tiny: dict[str, Value] = {"image_size": tiny_size}
    return Workload(
        name=name,
        help=f"{help} on 224x224 images, 1000 classes (torchvision)",
        module=TORCHVISION,
        unit="images",
        parameters=parameters,
        source=source,
        batch=sizes | {"train/accelerator": accelerator, "infer/accelerator": accelerator},
        memory_gib={"train": memory_gib, "infer": memory_gib / 4},
        optimizer=optimizer,
        memory_format="channels_last" if optimizer == "sgd" else "contiguous",  # only convolutions gain by it
        epoch_samples=IMAGENET_IMAGES,
        settings=(IMAGE_SIZE, CLASSES, WEIGHTS),
        fixed={"image_size": 224},
        kernels=kernels,
        shape=shape,
        library="torchvision",
        flops=2 * multiply_adds,
        flops_source=flops_source,
        tiny=tiny,
        reads="images",
        generated="imagenet",
        scores=SCORES,
    )


RESNET = "He et al., Deep Residual Learning (2015)"
VIT = "Dosovitskiy et al., An Image is Worth 16x16 Words (2020)"
DEIT3 = "Touvron et al., DeiT III (2022), table of models"
SWIN = "Liu et al., Swin Transformer (2021)"
EFFICIENTNET = "Tan and Le, EfficientNet (2019)"
MOBILENET = "Howard et al., Searching for MobileNetV3 (2019)"
B4_AT_380 = 4.394e9  # multiply-adds
SWIN_KERNELS = (LOW_PRECISION_RESIDUAL.by_default("cuda-training"),)

IMAGE_WORKLOADS = (
    _classifier("resnet50", "ResNet-50", 25_557_032, f"{RESNET}; torchvision.models.resnet50",
                (4, 4, 512), 60.0, 4.089e9, DOCUMENTED,
                kernels=(COMPILED_NORMS, FOLDED_STEM.by_default("cuda"), FUSED_BLOCKS.by_default("cuda"))),
    _classifier("resnet152", "ResNet-152", 60_192_808, f"{RESNET}; torchvision.models.resnet152",
                (2, 4, 256), 32.0, 11.3e9, f"{RESNET}, table 1",
                kernels=(COMPILED_NORMS, FOLDED_STEM, FUSED_BLOCKS)),
    _classifier("vit-l", "ViT-L, patches of 16,", 304_326_632, f"{VIT}; torchvision.models.vit_l_16",
                (1, 1, 128), 40.0, 61.6e9, DEIT3, patch=16, optimizer="adamw",
                kernels=(LOW_PRECISION_RESIDUAL.by_default("cuda"), *CUDNN_BY_DEFAULT)),
    _classifier("vit-l-32", "ViT-L, patches of 32,", 306_535_400, f"{VIT}; torchvision.models.vit_l_32",
                (1, 2, 512), 40.0, 15.378e9, DOCUMENTED, patch=32, optimizer="adamw", tiny_size=64,
                kernels=(LOW_PRECISION_RESIDUAL, *ATTENTIONS)),
    _classifier("vit-h", "ViT-H, patches of 14,", 632_045_800, f"{VIT}; torchvision.models.vit_h_14",
                (1, 1, 64), 50.0, 167.4e9, DEIT3, patch=14, optimizer="adamw", tiny_size=42,
                kernels=(LOW_PRECISION_RESIDUAL, *CUDNN_BY_DEFAULT)),
    _classifier("swin-t", "Swin-T", 28_288_354, f"{SWIN}; torchvision.models.swin_t",
                (2, 4, 512), 34.0, 4.5e9, f"{SWIN}, table 1", optimizer="adamw", kernels=SWIN_KERNELS),
    _classifier("swin-b", "Swin-B", 87_768_224, f"{SWIN}; torchvision.models.swin_b",
                (1, 2, 256), 38.0, 15.4e9, f"{SWIN}, table 1", optimizer="adamw", kernels=SWIN_KERNELS),
    _classifier("efficientnet-b0", "EfficientNet-B0", 5_288_548, f"{EFFICIENTNET}; torchvision.models.efficientnet_b0",
                (4, 8, 512), 28.0, 0.39e9, f"{EFFICIENTNET}, table 2",
                kernels=(COMPILED_NORMS.by_default("cuda"),)),
    _classifier("efficientnet-b4", "EfficientNet-B4", 19_341_616,
                f"{EFFICIENTNET}, which trains it at 380x380; torchvision.models.efficientnet_b4",
                (2, 4, 256), 36.0, B4_AT_380 * (224 / 380) ** 2,
                f"{DOCUMENTED} at 380x380 (4.394 G multiply-adds), scaled by the area to 224x224"),
    _classifier("mobilenetv3-small", "MobileNetV3-Small", 2_542_856,
                f"{MOBILENET}; torchvision.models.mobilenet_v3_small",
                (8, 16, 1024), 12.0, 56e6, f"{MOBILENET}, table 3"),
    _classifier("mobilenetv3-large", "MobileNetV3-Large", 5_483_032,
                f"{MOBILENET}; torchvision.models.mobilenet_v3_large",
                (4, 8, 1024), 28.0, 219e6, f"{MOBILENET}, table 3"),
    Workload(
        name="wideresnet",
        help="WideResNet on 32x32 images, 100 classes: stages of 160, 320 and 640 channels",
        module="prony_node.workloads.image:build_wideresnet",
        unit="images",
        parameters=17_174_324,
        source="Zagoruyko and Komodakis, Wide Residual Networks (2016); the variant of the GH200 tuning guide",
        batch={"train/cpu": 4, "infer/cpu": 8, "train/accelerator": 1024, "infer/accelerator": 1024},
        memory_gib={"train": 16.0, "infer": 4.0},
        memory_format="channels_last",
        epoch_samples=50_000,
        settings=(IMAGE_SIZE, CLASSES, WEIGHTS),
        fixed={"image_size": 32},
        kernels=(COMPILED_NORMS,),
        shape={"classes": 100},
        flops=4_824_462_336,
        flops_source="counted by hand from its convolutions and last layer; its sources give no figure",
        tiny={"image_size": 32},
        reads="images",
        scores=SCORES,
    ),
)  # fmt: skip


def library_workload(library: str, model: str) -> Workload:
    """Any classifier of a model library by its name; only the node can tell whether there is one of that name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", model):
        raise RequestError(f"{library}/{model} is not a name of {library}: give one such as {library}/resnet18")
    return Workload(
        name=f"{library}/{model}",
        help=f"the image classifier {model} of {library}",
        module="prony_node.workloads.image_libraries",
        unit="images",
        parameters=None,
        source=f"{library}, where it is installed",
        batch={"train/cpu": 2, "infer/cpu": 2, "train/accelerator": 64, "infer/accelerator": 64},
        memory_gib={"train": 20.0, "infer": 5.0},
        optimizer="adamw",  # trains convolutions and attention alike
        memory_format="channels_last",
        epoch_samples=IMAGENET_IMAGES,
        settings=(LIBRARY_IMAGE_SIZE, CLASSES, WEIGHTS),
        fixed={"image_size": "auto"},
        library=library,
        asks_node=True,
        reads="images",
        generated="imagenet",
        scores=SCORES,
    )


IMAGE_LIBRARIES = {library: partial(library_workload, library) for library in ("timm", "torchvision")}

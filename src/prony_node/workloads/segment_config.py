"""Semantic segmentation: what each model is, torch-free, with the parameters and FLOPs that are stated of it.

Memory is an estimate for bf16, from the activations that the backward pass keeps, with a third added. On an H200 the
compiled steps had 36.7 GiB at most in training segformer-b4 and 33.1 GiB in training deeplabv3plus-r101.
"""

from __future__ import annotations

from prony_node.contract.settings import Setting
from prony_node.workloads.config import COMPILED_DEPTHWISE, FUSED_BLOCKS, MATMUL_UPSAMPLING, WEIGHTS, Workload

CROP_HEIGHT = Setting("crop_height", "count", "height of the training crop, in pixels", least=32)
CROP_WIDTH = Setting("crop_width", "count", "width of the training crop, in pixels", least=32)
SETTINGS = (CROP_HEIGHT, CROP_WIDTH, WEIGHTS)
SCORES = ("miou", "loss")
CLASSES = 19  # of Cityscapes
CITYSCAPES_IMAGES = 2975
TINY = {"crop_height": 64, "crop_width": 64}

# Multiply-adds of SegFormer-B4, Xie et al. (2021), table 1: of a 512x512 image with 150 classes, and of a 1024x2048
# one with 19. All of it grows with the area but for attention, which grows with its square.
MEBIPIXELS = (0.25, 2.0)
MULTIPLY_ADDS = (95.7e9, 1240.6e9)
CLASSIFIED = 768 / 16  # multiply-adds a pixel and class: the last layer, at a quarter of the resolution


def segformer_multiply_adds(height: int, width: int) -> float:
    """For a crop of another size, from the two that the paper states."""
    small, large = MEBIPIXELS
    at_small, at_large = MULTIPLY_ADDS[0] - (150 - CLASSES) * CLASSIFIED * small * 2**20, MULTIPLY_ADDS[1]
    square = (at_large / large - at_small / small) / (large - small)
    linear = at_small / small - square * small
    area = height * width / 2**20
    return linear * area + square * area**2


RESNET101 = ((3, 64), (4, 128), (23, 256), (3, 512))  # blocks of a stage, and the width of their 3x3 convolutions
POOLED, SKIPPED = 256, 48  # channels of the pyramid and decoder, and of what passes it by


def deeplab_layers() -> list[tuple[int, int, int]]:
    """Every convolution but the one of a single pixel: weights, their outputs, and pixels of the image to one of it."""
    layers = [(3 * 64 * 49, 64, 4)]
    inputs, before = 64, 16
    for stage, (blocks, width) in enumerate(RESNET101):
        after = 64 if stage else 16  # an output stride of 8: the last two stages are dilated
        for block in range(blocks):
            layers += [(inputs * width, width, before), (9 * width**2, width, after), (4 * width**2, 4 * width, after)]
            if block == 0:
                layers.append((inputs * 4 * width, 4 * width, after))
            inputs, before = 4 * width, after
    layers.append((inputs * POOLED, POOLED, 64))
    for _ in range(3):  # a separable convolution has a batch norm after its second half alone
        layers += [(9 * inputs, 0, 64), (inputs * POOLED, POOLED, 64)]
    layers += [(5 * POOLED**2, POOLED, 64), (9 * POOLED, 0, 64), (POOLED**2, POOLED, 64)]
    layers.append((256 * SKIPPED, SKIPPED, 16))
    joined = POOLED + SKIPPED
    return [*layers, (9 * joined, 0, 16), (joined * POOLED, POOLED, 16)]


def deeplab_parameters() -> int:
    layers = deeplab_layers()
    pooled = 2048 * POOLED + 2 * POOLED  # the image as one pixel
    return sum(weights + 2 * norms for weights, norms, _ in layers) + pooled + POOLED * CLASSES + CLASSES


def deeplab_multiply_adds(height: int, width: int) -> float:
    pixels = height * width
    convolutions = sum(weights * pixels / each for weights, _, each in deeplab_layers())
    return convolutions + 2048 * POOLED + POOLED * CLASSES * pixels / 16


SEGMENT_WORKLOADS = (
    Workload(
        name="segformer-b4",
        help="SegFormer-B4 on 1024x1024 crops, 19 classes (transformers)",
        module="prony_node.workloads.segment:build_segformer",
        unit="images",
        parameters=64_007_635,
        source="Xie et al., SegFormer (2021), 64.1 M in table 1; transformers.SegformerForSemanticSegmentation",
        # 8 is the batch of its authors' training on Cityscapes.
        batch={"train/cpu": 1, "infer/cpu": 1, "train/accelerator": 8, "infer/accelerator": 8},
        memory_gib={"train": 40.0, "infer": 12.0},
        optimizer="adamw",
        memory_format="channels_last",
        epoch_samples=CITYSCAPES_IMAGES,
        settings=SETTINGS,
        fixed={"crop_height": 1024, "crop_width": 1024},
        kernels=(MATMUL_UPSAMPLING.by_default("any"), COMPILED_DEPTHWISE),
        shape={"classes": CLASSES},
        library="transformers",
        flops=2 * segformer_multiply_adds(1024, 1024),
        flops_source="Xie et al., SegFormer (2021), table 1: 95.7 G multiply-adds at 512x512 and 1240.6 G at "
        "1024x2048, of which one part grows with the area and one with its square",
        tiny=TINY,
        reads="masks",
        generated="cityscapes",
        scores=SCORES,
    ),
    Workload(
        name="deeplabv3plus-r101",
        help="DeepLabV3+ with ResNet-101 on 512x1024 crops, output stride 8, 19 classes (segmentation-models-pytorch)",
        module="prony_node.workloads.segment:build_deeplab",
        unit="images",
        parameters=deeplab_parameters(),
        source="Chen et al., Encoder-Decoder with Atrous Separable Convolution (2018); smp.DeepLabV3Plus",
        # 16 is the batch of its authors.
        batch={"train/cpu": 2, "infer/cpu": 1, "train/accelerator": 16, "infer/accelerator": 16},
        memory_gib={"train": 44.0, "infer": 11.0},
        memory_format="channels_last",
        epoch_samples=CITYSCAPES_IMAGES,
        settings=SETTINGS,
        fixed={"crop_height": 512, "crop_width": 1024},
        kernels=(MATMUL_UPSAMPLING.by_default("any"), COMPILED_DEPTHWISE.by_default("cuda"), FUSED_BLOCKS),
        shape={"classes": CLASSES, "stride": 8},
        library="segmentation_models_pytorch",
        flops=2 * deeplab_multiply_adds(512, 1024),
        flops_source="counted by hand, convolution by convolution; the literature's figures are of other decoders",
        tiny=TINY,
        least_batch=2,
        reads="masks",
        generated="cityscapes",
        scores=SCORES,
    ),
)

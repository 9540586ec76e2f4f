"""Detectors, torch-free: what each is, with every number of DINO and where it stands in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prony_node.contract.settings import Setting, Value
from prony_node.workloads.config import (
    BATCHED_ASSIGNMENT,
    MASKED_ROI_ALIGN,
    TRITON_DEFORMABLE_ATTENTION,
    TRITON_NMS,
    WEIGHTS,
    Workload,
)
from prony_node.workloads.image_config import CLASSES

COCO_CLASSES = 91  # as torchvision counts: COCO's categories have numbers up to 90, and 0 is the background
COCO_IMAGES = 118_287  # of train2017
TINY_CLASSES = 4
FEW = 4  # images of a detector: the host launches a step of one or two more slowly than an H200 computes it

DETECT_WORKLOADS = (
    Workload(
        name="fasterrcnn-r50-fpn",
        help="Faster R-CNN, ResNet-50 with a feature pyramid, on COCO images scaled to 800 by at most 1333 pixels",
        module="prony_node.workloads.detect",
        unit="images",
        parameters=41_808_406,
        source="Ren et al., Faster R-CNN (2015), Lin et al., Feature Pyramid Networks (2017); "
        "torchvision.models.detection.fasterrcnn_resnet50_fpn",
        batch={"train/cpu": 1, "infer/cpu": 1, "train/accelerator": 2, "infer/accelerator": 2},
        memory_gib={"train": 8.0, "infer": 2.0},
        memory_format="channels_last",
        epoch_samples=COCO_IMAGES,
        settings=(CLASSES, WEIGHTS),
        fixed={"graphs": False},
        kernels=(
            BATCHED_ASSIGNMENT.by_default("any"),
            TRITON_NMS.by_default("cuda"),
            MASKED_ROI_ALIGN.by_default("few"),
        ),
        few=FEW,
        fixed_when_few={"compile": "reduce-overhead"},
        shape={"classes": COCO_CLASSES},
        library="torchvision",
        tiny={},
        reads="boxes",
        generated="coco",
        scores=("map",),
        varies=True,
        compiled_parts="backbone and the head of its proposals",
    ),
)


# What `dino-swin-l` is, torch-free: every number of the model, and where it stands in the paper.


SCALES = Setting(
    "scales", "choice", "feature levels: 4 (strides 8 to 64), or 5 (also stride 4, four times the tokens)",
    ("4", "5"),
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Every number of the model."""

    swin_width: int  # channels at stride 4; twice as many at each stage after
    swin_depths: tuple[int, int, int, int]
    swin_heads: tuple[int, int, int, int]
    swin_window: int
    drop_path: float
    hidden: int
    heads: int
    feed_forward: int
    encoder_layers: int
    decoder_layers: int
    queries: int
    classes: int
    pairs: int  # of denoising queries in all groups together, about: one near the box and one farther off
    answers: int  # that inference gives for an image
    scale_to: tuple[int, int]  # pixels of an image's shorter side, and the most that the longer one may have
    levels: int = 4
    points: int = 4  # of each head on each level


# Zhang et al., DINO (2022), appendix, and Swin-L as pretrained at 384x384 (windows of 12). The number of classes is
# that of the paper's code: COCO's categories go by their own numbers, 1 to 90, of which 80 are in use.
FULL = Size(
    swin_width=192, swin_depths=(2, 2, 18, 2), swin_heads=(6, 12, 24, 48), swin_window=12, drop_path=0.2,
    hidden=256, heads=8, feed_forward=2048, encoder_layers=6, decoder_layers=6, queries=900,
    classes=COCO_CLASSES, pairs=100, answers=300, scale_to=(800, 1333),
)  # fmt: skip
TINY = Size(
    swin_width=16, swin_depths=(1, 1, 2, 1), swin_heads=(1, 2, 4, 8), swin_window=4, drop_path=0.0,
    hidden=64, heads=4, feed_forward=128, encoder_layers=2, decoder_layers=2, queries=40,
    classes=TINY_CLASSES, pairs=20, answers=20, scale_to=(72, 96),
)  # fmt: skip


def size_of(settings: Mapping[str, Value]) -> Size:
    """The model's numbers at the size that was asked for, and with the classes of a data set."""
    size = TINY if settings.get("size") == "tiny" else FULL
    return replace(
        size, classes=int(settings.get("classes", size.classes)), levels=int(settings.get("scales", size.levels))
    )


DINO_WORKLOADS = (
    Workload(
        name="dino-swin-l",
        help="DINO with Swin-L, four or five scales, 900 queries, on COCO images scaled to 800 by at most 1333 pixels",
        module="prony_node.workloads.dino",
        unit="images",
        parameters=217_229_810,
        source="Zhang et al., DINO: DETR with Improved DeNoising Anchor Boxes (2022), which says 218 M parameters; "
        "Swin-L and deformable attention of transformers, the rest Prony's own (docs/background/dino.md)",
        batch={"train/cpu": 1, "infer/cpu": 1, "train/accelerator": 2, "infer/accelerator": 8},
        # Estimated: 21 GiB are kept for the backward pass, counted on tensors without memory, and weights take 4.
        memory_gib={"train": 32.0, "infer": 20.0},
        optimizer="adamw",
        epoch_samples=COCO_IMAGES,
        settings=(CLASSES, WEIGHTS, SCALES),
        fixed={"compile": "off", "graphs": False, "scales": "4"},
        kernels=(TRITON_DEFORMABLE_ATTENTION.by_default("cuda"),),
        few=FEW,
        fixed_when_few={"graphs": True},
        few_gib=23.0,  # of 45 that two images took on an H200, the same again as without graphs
        shape={"classes": COCO_CLASSES},
        can_recompute=True,
        library="transformers",
        tiny={},
        reads="boxes",
        generated="coco",
        scores=("map",),
        varies=True,
        captured_part="layers",
    ),
)

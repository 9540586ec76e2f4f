"""Detectors: what each is, torch-free."""

from __future__ import annotations

from prony_node.workloads.config import WEIGHTS, Workload
from prony_node.workloads.image.config import CLASSES
from prony_node.workloads.kernels import BATCHED_ASSIGNMENT, MASKED_ROI_ALIGN, TRITON_NMS

COCO_CLASSES = 91  # as torchvision counts: COCO's categories have numbers up to 90, and 0 is the background
COCO_IMAGES = 118_287  # of train2017
TINY_CLASSES = 4
FEW = 4  # images of a detector: the host launches a step of one or two more slowly than an H200 computes it

DETECT_WORKLOADS = (
    Workload(
        name="fasterrcnn-r50-fpn",
        help="Faster R-CNN, ResNet-50 with a feature pyramid, on COCO's images scaled to 800 by at most 1333 pixels",
        module="prony_node.workloads.detect.fasterrcnn",
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

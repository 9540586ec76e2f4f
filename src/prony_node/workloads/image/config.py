"""Image classification: what each model is, torch-free."""

from __future__ import annotations

from prony_node.contract.settings import Setting
from prony_node.workloads.config import Workload

IMAGE_SIZE = Setting("image_size", "count", "height and width of an image, in pixels", least=32)

IMAGE_WORKLOADS = (
    Workload(
        name="resnet50",
        help="ResNet-50 on 224x224 images, 1000 classes (torchvision)",
        module="prony_node.workloads.image.resnet50",
        unit="images",
        parameters=25_557_032,
        source="He et al., Deep Residual Learning (2015); torchvision.models.resnet50",
        batch={"train/cpu": 4, "infer/cpu": 4, "train/accelerator": 512, "infer/accelerator": 512},
        memory_gib={"train": 60.0, "infer": 12.0},
        memory_format="channels_last",
        epoch_samples=1_281_167,
        settings=(IMAGE_SIZE,),
        fixed={"image_size": 224},
        shape={"classes": 1000},
        library="torchvision",
    ),
    Workload(
        name="wideresnet",
        help="WideResNet on 32x32 images, 100 classes: stages of 160, 320 and 640 channels",
        module="prony_node.workloads.image.wideresnet",
        unit="images",
        parameters=17_174_324,
        source="Zagoruyko and Komodakis, Wide Residual Networks (2016); the variant of the GH200 tuning guide",
        batch={"train/cpu": 4, "infer/cpu": 8, "train/accelerator": 1024, "infer/accelerator": 1024},
        memory_gib={"train": 16.0, "infer": 4.0},
        memory_format="channels_last",
        epoch_samples=50_000,
        settings=(IMAGE_SIZE,),
        fixed={"image_size": 32},
        shape={"classes": 100},
    ),
)

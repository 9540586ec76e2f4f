"""What the workload is. The controller imports this file, so it imports no torch."""

from __future__ import annotations

from prony_node.contract.settings import Setting
from prony_node.workloads.config import Workload

PERCEPTRON = Workload(
    name="example-perceptron",
    help="perceptron on 28x28 colour images, 10 classes",
    module="prony_example_plugin.perceptron",
    unit="images",
    parameters=None,
    source="the example of a plug-in",
    batch={"train/cpu": 64, "infer/cpu": 64, "train/accelerator": 4096, "infer/accelerator": 4096},
    memory_gib={"train": 1.0, "infer": 1.0},
    optimizer="adam",
    settings=(Setting("hidden", "count", "width of the hidden layer"),),
    fixed={"hidden": 256},
)

"""The kernel that suppresses overlapping boxes keeps those that torchvision keeps.

Triton's interpreter runs it on a CPU; it is chosen when Triton is imported, so the comparison has a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload
from prony_node.workloads.detect import kept_by_library

SRC = Path(__file__).parents[4] / "src"
COMPARE = """
import warnings
import torch
from prony_node.workloads import detect

warnings.simplefilter("ignore")  # the interpreter divides rows that are none
detect.BLOCK, detect.LATER = 16, 32  # boxes are no whole number of either
seen = 0
for counts, spread, bound in (([1], 50, 0.7), ([37, 5], 50, 0.5), ([90, 64, 3], 60, 0.7), ([150], 12, 0.3)):
    source = torch.Generator().manual_seed(sum(counts))
    corner = torch.rand(2, sum(counts), 2, generator=source) * spread
    boxes = torch.cat((corner, corner + 0.5 + torch.rand(2, sum(counts), 2, generator=source) * 20), dim=-1)
    scores = torch.rand(2, sum(counts), generator=source)
    scores = torch.cat([level.sort(dim=1, descending=True).values for level in scores.split(counts, dim=1)], dim=1)
    scores = scores.masked_fill(torch.rand(scores.shape, generator=source) < 0.1, -torch.inf)  # no boxes, in between
    kept = detect.kept_by_kernel(boxes, scores, counts, bound)
    assert torch.equal(kept, detect.kept_by_library(boxes, scores, counts, bound)), counts
    seen += int((scores.isfinite() & ~kept).sum())
print("alike", seen > 100)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_keeps_what_torchvision_keeps() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True)
    assert done.stdout == "alike True\n", done.stderr


def test_boxes_of_different_levels_do_not_suppress_each_other() -> None:
    box = torch.tensor([10.0, 10.0, 40.0, 40.0])
    boxes, scores = box.expand(1, 4, 4), torch.tensor([[0.9, 0.8, 0.7, -torch.inf]])
    assert kept_by_library(boxes, scores, [2, 2], 0.7).tolist() == [[True, False, True, False]]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"device": "cpu"}, "is for device=cuda or xpu, not cpu"),
        (
            {"kernels": "triton-nms"},
            "triton-nms is a part of batched-assignment; give kernels=batched-assignment,triton-nms",
        ),
    ],
)
def test_where_there_is_no_such_kernel_it_is_refused(asked: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        find_workload("fasterrcnn-r50-fpn").parse({"kernels": "batched-assignment,triton-nms", **asked})

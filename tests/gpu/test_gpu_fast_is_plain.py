"""Correctness is not traded: all of preset=fast on a device, compiled and captured, has the losses of preset=plain.

Both in bf16, at tiny size. `pytest --gpu tests/gpu/test_gpu_fast_is_plain.py --keep-losses FOLDER`
keeps the losses of each workload there, a JSON file each.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from loss_curve import TRAINED, compared, torchs_own_chance
from prony_node.contract.settings import Value

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TRAINED)
def test_fast_has_the_losses_of_plain(device: torch.device, name: str, request: pytest.FixtureRequest) -> None:
    with torchs_own_chance():
        row = compared(name, device)
    folder = request.config.getoption("--keep-losses")
    if folder:  # a file a workload, so that several processes may share them out
        Path(folder).mkdir(parents=True, exist_ok=True)
        document = {"device": torch.cuda.get_device_name(), **row}
        (Path(folder) / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    assert row["distance"] < row["allowed"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("vit-h", {"kernels": "cudnn-attention,low-precision-residual"}),
        ("resnet50", {"kernels": "compiled-norms"}),
        ("resnet50", {"kernels": "compiled-norms,folded-stem"}),
        ("wideresnet", {"kernels": "compiled-norms"}),
        ("efficientnet-b0", {"kernels": "compiled-norms"}),
        (
            "fasterrcnn-r50-fpn",
            {"kernels": "batched-assignment,masked-roi-align,triton-nms", "compile": "reduce-overhead"},
        ),
    ],
)
def test_forms_that_are_not_the_default_have_them_too(device: torch.device, name: str, given: dict[str, Value]) -> None:
    with torchs_own_chance():
        row = compared(name, device, **given)
    assert row["distance"] < row["allowed"]

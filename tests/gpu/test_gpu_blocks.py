"""cuDNN adds and rectifies inside its convolutions what is added and rectified after them, in every block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.step import Step
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.image import FusedBlock, fold_batch_norms, has_kernel

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tries", [False, True])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_a_block_answers_as_the_librarys(
    device: torch.device, dtype: torch.dtype, tries: bool, stride: int, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", tries)
    torch.manual_seed(0)
    shortcut = nn.Sequential(nn.Conv2d(64, 256, 1, stride, bias=False), nn.BatchNorm2d(256)) if stride > 1 else None
    inputs = 64 if shortcut else 256
    block = Bottleneck(inputs, 64, stride, shortcut, dilation=dilation)
    for norm in block.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.bias)
    folded = fold_batch_norms(block).requires_grad_(False)
    images = torch.randn(4, inputs, 28, 28)
    expected = folded(images)
    fused = FusedBlock(folded).to(device, dtype, memory_format=torch.channels_last)
    placed = images.to(device, dtype, memory_format=torch.channels_last)
    assert has_kernel(placed)
    answer = fused(placed)
    assert answer.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(answer.float().cpu(), expected, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("how", [{}, {"compile": "off"}, {"compile": "off", "graphs": False}, {"precision": "fp32"}])
def test_a_step_answers_as_with_the_librarys_blocks(device: torch.device, how: dict[str, Value]) -> None:
    answers: list[Tensor] = []
    for kernels in ("folded-stem", "folded-stem,fused-blocks"):
        workload = find_workload("resnet50")
        given = {"mode": "infer", "size": "tiny", "batch_size": 8, "kernels": kernels, **how}
        settings = workload.effective(given, machine_of(device, 4))
        step = Step(build_task(workload, settings), settings, device)
        step.finish_model()
        batch = step.place(step.task.sample(torch.Generator(device).manual_seed(1), 8))
        step.prepare(batch)
        step(batch)
        assert step.output is not None
        answers.append(step.output.float())
    assert float((answers[0] - answers[1]).norm() / answers[0].norm()) < 0.02

"""A residual block whose convolutions add and rectify answers as the library's does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from prony_node.backends.torch.step import Step
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value, uses_kernel
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.image import FusedBlock, fold_batch_norms, fuse_blocks


def fused(settings: dict[str, Value]) -> bool:
    return uses_kernel(settings, "fused-blocks")


CPU, CUDA = Machine("cpu", None, 2), Machine("cuda", 141.0, 8)


def with_biases(network: nn.Module) -> nn.Module:
    """Norms that have seen something, so that a convolution that they are folded into has a bias other than zero."""
    torch.manual_seed(0)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.bias, std=0.1)
    return network.requires_grad_(False)


def count(network: nn.Module) -> int:
    return sum(isinstance(module, FusedBlock) for module in network.modules())


def test_blocks_with_and_without_a_convolution_in_their_shortcut_answer_the_same() -> None:
    from torchvision.models import resnet50

    plain = fold_batch_norms(with_biases(resnet50(num_classes=10))).double()
    fused = copy.deepcopy(plain)
    assert fuse_blocks(fused) == count(fused) == 16
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(fused(images), plain(images))
    assert fused.layer1[0].downsample[0].bias is None  # added with that of the last convolution
    others = {name for name in plain.state_dict() if "downsample.0.bias" not in name}
    assert set(fused.state_dict()) == others


def test_the_dilated_blocks_of_a_segmentation_model_are_such() -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    plain = fold_batch_norms(with_biases(smp.DeepLabV3Plus("resnet101", encoder_weights=None, encoder_output_stride=8)))
    fused = copy.deepcopy(plain)
    assert fuse_blocks(fused) == 33
    images = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(fused(images), plain(images), rtol=1e-3, atol=1e-3)


def test_a_block_that_is_not_that_one_stays() -> None:
    from torchvision.models import resnet18, resnet50, resnext50_32x4d

    assert fuse_blocks(fold_batch_norms(resnet18())) == 0  # blocks of two convolutions
    assert fuse_blocks(fold_batch_norms(resnext50_32x4d())) == 0  # of groups
    assert fuse_blocks(resnet50()) == 0  # norms not folded


@pytest.mark.parametrize("name", ["resnet50", "resnet152"])
def test_a_workload_answers_as_without(name: str) -> None:
    found: list[Tensor] = []
    for kernels in ("library", "fused-blocks"):
        step = ready(name, {"kernels": kernels})
        assert (count(step.model) > 0) == (kernels == "fused-blocks")
        assert step.output is not None
        found.append(step.output)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def ready(name: str, given: dict[str, Value]) -> Step:
    workload = find_workload(name)
    words = {"size": "tiny", "mode": "infer", "device": "cpu", **given}
    settings = workload.effective(workload.parse({name: str(value) for name, value in words.items()}), CPU)
    step = Step(build_task(workload, settings), settings, torch.device("cpu"))
    step.finish_model()
    step.prepare(step.place(step.task.sample(torch.Generator().manual_seed(1), 2)))
    return step


def test_it_goes_with_the_folded_stem() -> None:
    one, other = (
        ready("resnet50", {"kernels": kernels}).output for kernels in ("fused-blocks", "folded-stem,fused-blocks")
    )
    assert one is not None
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "fused-blocks has no meaning with mode=train; use mode=infer"),
        ({"mode": "infer", "preset": "plain"}, "batch norms folded, which preset=plain keeps"),
    ],
)
def test_where_there_is_nothing_to_fuse_it_is_refused(given: dict[str, str], said: str) -> None:
    workload = find_workload("resnet50")
    with pytest.raises(RequestError, match=said):
        workload.effective(workload.parse({"kernels": "fused-blocks", **given}), CUDA)


def test_it_is_the_default_where_it_was_shown_to_pay() -> None:
    """In inference on CUDA, in 16 bits, channels last."""
    resnet, infer = find_workload("resnet50"), {"mode": "infer"}
    assert fused(resnet.effective(infer, CUDA))
    assert fused(resnet.effective({**infer, "compile": "off"}, CUDA))
    for name, value in {"precision": "fp32", "preset": "plain", "memory_format": "contiguous"}.items():
        assert not fused(resnet.effective(resnet.parse({**infer, name: value}), CUDA)), name
    for machine in (CPU, Machine("cuda", 192.0, 8, rocm=True)):
        assert not fused(resnet.effective(infer, machine))
    assert not fused(resnet.effective({}, CUDA))
    for name in ("resnet152", "deeplabv3plus-r101"):  # not timed
        assert not fused(find_workload(name).effective(infer, CUDA))

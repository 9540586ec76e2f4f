"""Batch norms and ReLUs in the compiler's form: the library's function, gradients, statistics and learning."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from prony_node.backends.torch.step import Step
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.image import SignedReLU, SummedNorm, replace_norms

CPU = torch.device("cpu")
MEANS = (0.0, 3.0, -30.0)


def pair() -> tuple[nn.Sequential, nn.Sequential]:
    theirs = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(inplace=True))
    nn.init.normal_(theirs[0].weight)
    nn.init.normal_(theirs[0].bias)
    ours = copy.deepcopy(theirs)
    assert replace_norms(ours) == 1
    assert isinstance(ours[0], SummedNorm)
    assert isinstance(ours[1], SignedReLU)
    return theirs, ours


def answer(network: nn.Module, images: Tensor, pull: Tensor) -> tuple[Tensor, Tensor]:
    images = images.clone().requires_grad_()
    found = network(images * 1)  # a ReLU in place must not write into a leaf
    found.backward(pull)
    assert images.grad is not None
    return found.detach(), images.grad


@pytest.mark.parametrize("mean", MEANS)
def test_function_gradients_and_statistics_are_torch_s(mean: float) -> None:
    torch.manual_seed(0)
    theirs, ours = pair()
    for _ in range(3):
        images = torch.randn(8, 6, 9, 7) * torch.linspace(0.1, 3, 6)[:, None, None] + mean / 10 * torch.arange(
            6.0
        ).view(6, 1, 1)
        pull = torch.randn(8, 6, 9, 7)
        (expected, pulled), (found, also) = (answer(network, images, pull) for network in (theirs, ours))
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(also, pulled, atol=2e-3, rtol=2e-3)
    for (name, one), (other_name, other) in zip(theirs.state_dict().items(), ours.state_dict().items(), strict=True):
        assert name == other_name
        torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-3)
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, atol=2e-2, rtol=2e-3)
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), atol=1e-3, rtol=1e-3)


def test_what_is_not_a_number_is_not_hidden() -> None:
    found = SignedReLU()(torch.tensor([float("nan"), -1.0, 0.0, 2.0]))
    assert found[0].isnan()
    assert found[1:].tolist() == [0.0, 0.0, 2.0]


def test_a_constant_image_has_no_variance_below_zero() -> None:
    _, ours = pair()
    assert ours(torch.full((4, 6, 5, 5), 1234.567)).isfinite().all()
    assert (ours[0].running_var >= 0).all()


def test_without_a_batch_norm_nothing_is_changed() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    assert replace_norms(network) == 0
    assert type(network[1]) is nn.ReLU


def losses(kernels: str, workload: str, precision: str = "fp32") -> list[float]:
    chosen = find_workload(workload)
    given = {"device": "cpu", "size": "tiny", "kernels": kernels, "precision": precision}
    settings = chosen.effective(chosen.parse(given), Machine("cpu", None, 2))
    step = Step(build_task(chosen, settings), settings, CPU)
    step.finish_model()
    draw = torch.Generator().manual_seed(1)
    step.prepare(step.place(step.task.sample(draw, 8)))
    found = []
    for _ in range(20):
        step(step.place(step.task.sample(draw, 8)))
        assert step.output is not None
        found.append(float(step.output))
    return found


@pytest.mark.parametrize("workload", ["wideresnet", "efficientnet-b0", "mobilenetv3-small"])
def test_twenty_steps_lose_as_with_the_library_s(workload: str) -> None:
    assert losses("compiled-norms", workload) == pytest.approx(losses("library", workload), rel=0.02, abs=0.02)


@pytest.mark.parametrize("workload", ["resnet50", "efficientnet-b4", "mobilenetv3-large"])
def test_in_fp64_nothing_is_left_of_the_difference(workload: str) -> None:
    """So it is one of rounding: sums in fp32 would end 5 % apart in resnet50."""
    assert losses("compiled-norms", workload, "fp64") == pytest.approx(losses("library", workload, "fp64"), rel=1e-8)


def test_the_gradients_of_a_residual_network_are_the_library_s() -> None:
    """Not its losses: the tiny one turns a change of a millionth into one of a quarter within twenty steps."""
    chosen = find_workload("resnet50")
    task = build_task(chosen, {**chosen.fixed, "size": "tiny", "image_size": 64})
    batch = task.sample(torch.Generator().manual_seed(1), 16)
    torch.manual_seed(0)
    theirs = task.model()
    ours = copy.deepcopy(theirs)
    assert replace_norms(ours) > 10
    for network in (theirs, ours):
        task.loss(network, batch).backward()
    for (name, one), other in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (other.grad - one.grad).norm() <= 1e-3 * one.grad.norm() + 1e-6, name


def test_a_model_that_is_bf16_throughout_takes_them_too() -> None:
    assert losses("compiled-norms", "wideresnet", "bf16-pure")[-1] < 3.0


def test_they_are_for_training() -> None:
    with pytest.raises(RequestError, match="compiled-norms has no meaning with mode=infer"):
        find_workload("resnet50").parse({"kernels": "compiled-norms", "mode": "infer"})

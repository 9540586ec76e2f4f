"""The folded first convolution of a ResNet is that convolution."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prony_node.backends.torch.step import Step
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import uses_kernel
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.image import FoldedStem, SummedNorm, fold_stem


@pytest.mark.parametrize(("size", "bias"), [((16, 16), False), ((32, 20), True)])
def test_it_answers_and_learns_as_the_convolution_does(size: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=bias).double()
    images = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    found = []
    for layer in (plain, FoldedStem(plain)):
        answer = layer(images)
        found.append((answer, *torch.autograd.grad(answer.square().sum(), (plain.weight, images))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_it_takes_the_place_of_that_one_alone() -> None:
    from torchvision.models import resnet50

    network = resnet50()
    names = set(network.state_dict())
    assert fold_stem(network) == 1
    assert isinstance(network.conv1, FoldedStem)
    assert set(network.state_dict()) == names
    assert fold_stem(nn.Sequential(nn.Conv2d(3, 8, 7, padding=3), nn.Conv2d(3, 8, 3, stride=2))) == 0


def test_it_goes_with_other_forms() -> None:
    """Norms from the compiler at the same time, in training; in inference they are folded into it."""
    resnet = find_workload("resnet50")
    for mode, kernels in (("train", "compiled-norms,folded-stem"), ("infer", "folded-stem")):
        settings = resnet.effective(
            resnet.parse({"size": "tiny", "mode": mode, "kernels": kernels, "device": "cpu"}),
            Machine("cpu", None, 2),
        )
        step = Step(build_task(resnet, settings), settings, torch.device("cpu"))
        step.finish_model()
        kinds = [type(module) for module in step.model.modules()]
        assert kinds.count(FoldedStem) == 1
        assert (SummedNorm in kinds) == (mode == "train")
        step.prepare(step.place(step.task.sample(torch.Generator().manual_seed(1), 4)))
        assert step.output is not None
        assert step.output.isfinite().all()


def test_an_odd_side_is_refused() -> None:
    with pytest.raises(RequestError, match="folded-stem takes pixels two by two"):
        find_workload("resnet50").parse({"kernels": "folded-stem", "image_size": "225"})


def test_it_is_the_default_where_it_was_shown_to_pay() -> None:
    """Compiled, of resnet50 on CUDA."""
    resnet, cuda = find_workload("resnet50"), Machine("cuda", 141.0, 8)
    for mode in ("train", "infer"):
        assert uses_kernel(resnet.effective({"mode": mode}, cuda), "folded-stem")
    for given in ("compile=off", "preset=plain", "image_size=225", "memory_format=contiguous"):
        name, _, value = given.partition("=")
        assert not uses_kernel(resnet.effective(resnet.parse({name: value}), cuda), "folded-stem"), given
    assert resnet.effective({}, Machine("cpu", None, 2))["kernels"] == "library"
    assert find_workload("resnet152").effective({}, cuda)["kernels"] == "library"

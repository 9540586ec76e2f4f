"""Prony's own forms of what segmentation models enlarge and convolve: the same function and gradients as torch's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.step import Step
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.config import Workload
from prony_node.workloads.segment import Depthwise, enlarged, replace_depthwise
from prony_node.workloads.segment_config import SEGMENT_WORKLOADS

MODELS = pytest.mark.parametrize("workload", SEGMENT_WORKLOADS, ids=lambda workload: workload.name)
CPU = torch.device("cpu")


def gradient_of(image: Tensor, answer: Tensor, by: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(answer, image, by)
    return found


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize(
    ("channels", "before", "after"),
    [(8, (3, 5), (12, 20)), (5, (4, 2), (8, 4)), (16, (1, 1), (6, 7)), (3, (5, 4), (7, 9))],
)
def test_gradients_by_products_are_those_of_torch(
    channels: int, before: tuple[int, int], after: tuple[int, int], corners: bool
) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, channels, *before, dtype=torch.float64, requires_grad=True)
    by = torch.randn(2, channels, *after, dtype=torch.float64)
    ours, theirs = (enlarged(image, after, corners, products=products) for products in (True, False))
    assert torch.equal(ours, theirs)
    # The matrices are made in fp32.
    torch.testing.assert_close(gradient_of(image, ours, by), gradient_of(image, theirs, by), rtol=1e-5, atol=1e-5)


def test_gradients_of_maps_in_channels_last_stay_so() -> None:
    image = torch.randn(2, 8, 4, 4, requires_grad=True)
    by = torch.randn(2, 8, 16, 16).to(memory_format=torch.channels_last)
    found = gradient_of(image, enlarged(image, (16, 16), products=True), by)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("kernel", "dilation", "bias"), [(3, 1, True), (3, 3, False), (5, 2, True), (3, 12, False)])
def test_a_depthwise_convolution_is_torch_s(kernel: int, dilation: int, bias: bool) -> None:
    torch.manual_seed(0)
    reach = dilation * (kernel // 2)
    conv = nn.Conv2d(6, 6, kernel, padding=reach, dilation=dilation, groups=6, bias=bias)
    own = Depthwise(conv)
    image = torch.randn(2, 6, 9, 7, requires_grad=True)
    by = torch.randn(2, 6, 9, 7)
    wanted = [image, conv.weight, *([conv.bias] if bias else [])]
    torch.testing.assert_close(own(image), conv(image))
    for ours, theirs in zip(torch.autograd.grad(own(image), wanted, by), torch.autograd.grad(conv(image), wanted, by),
                            strict=True):  # fmt: skip
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_only_depthwise_convolutions_that_keep_a_size_are_replaced() -> None:
    kept = [nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, stride=2, groups=4),
            nn.Conv2d(4, 8, 3, padding=1, groups=4), nn.Conv2d(4, 4, 3, groups=4)]  # fmt: skip
    network = nn.Sequential(*kept, nn.Sequential(nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4)))
    names = list(network.state_dict())
    assert replace_depthwise(network) == 1
    assert list(network)[:4] == kept
    assert list(network.state_dict()) == names  # a checkpoint has the same names


OWN = "compiled-depthwise,matmul-upsampling"


def settings_of(workload: Workload, **given: Value) -> dict[str, Value]:
    asked = workload.parse({"size": "tiny", "batch_size": 2, **given})
    return workload.effective(asked, Machine("cpu", None, 1))


@MODELS
def test_a_model_with_own_parts_answers_and_learns_as_the_library_s(workload: Workload) -> None:
    """One training step each, from the same weights: the loss, and the weights after it."""
    ends, losses = [], []
    for kernels in ("library", OWN):
        settings = settings_of(workload, optimizer="sgd", kernels=kernels)
        step = Step(build_task(workload, settings), settings, CPU)
        step.finish_model()
        parts = [module for module in step.model.modules() if isinstance(module, Depthwise)]
        assert bool(parts) == (kernels == OWN)
        batch = step.place(step.task.sample(torch.Generator().manual_seed(1), 2))
        losses.append(step.held_out_loss(batch))
        step.prepare(batch)
        ends.append(torch.cat([value.flatten().float() for value in step.model.state_dict().values()]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert (ends[1] - ends[0]).norm() < 1e-3 * ends[0].norm()


@MODELS
def test_work_is_counted_on_the_library_s_parts(workload: Workload) -> None:
    own, library = (
        count_flops(build_task(workload, settings_of(workload, kernels=kernels)), training=True, recompute=False)
        for kernels in (OWN, "library")
    )
    assert own == library


def test_segformer_s_stages_give_what_its_own_forward_gives() -> None:
    workload = find_workload("segformer-b4")
    settings = settings_of(workload)
    task = build_task(workload, settings)
    torch.manual_seed(0)
    model = task.model().eval()
    images = task.sample(torch.Generator().manual_seed(1), 2)[0]
    own = copy.deepcopy(model)
    assert task.own_parts is not None
    task.own_parts(own)
    with torch.no_grad():
        expected = F.interpolate(model(pixel_values=images).logits, images.shape[-2:], mode="bilinear")
        torch.testing.assert_close(task.predict(model, (images,)), expected)
        torch.testing.assert_close(task.predict(own, (images,)), expected)

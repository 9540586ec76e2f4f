"""Prony's own parts of library models give what the library's give, and save what they are there to save."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.task import Task
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value, uses_kernel
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.image import PackedAttention, PatchProduct

OWN_PARTS = "low-precision-residual"
OWN = pytest.mark.parametrize("name", ["vit-l", "vit-l-32", "vit-h", "swin-t", "swin-b"])


def task_of(name: str, **given: Value) -> Task:
    workload = find_workload(name)
    asked = {"size": "tiny", "device": "cpu", "kernels": OWN_PARTS} | given
    settings = workload.effective(workload.parse(asked), Machine("cpu", None, 2))
    return build_task(workload, settings)


def both_forms(task: Task) -> tuple[nn.Module, nn.Module]:
    """The library's model without its dropout, and the same with Prony's parts."""
    torch.manual_seed(0)
    library = task.model()
    for module in library.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    own = copy.deepcopy(library)
    assert task.own_parts is not None
    task.own_parts(own)
    return library, own


@OWN
@pytest.mark.parametrize(("kind", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_loss_and_gradients_are_the_library_s(name: str, kind: torch.dtype, bound: float) -> None:
    task = task_of(name)
    forms = both_forms(task)
    batch = task.sample(torch.Generator().manual_seed(1), 4)
    losses = []
    for model in forms:
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
            loss = task.loss(model, batch)
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=bound)
    expected, found = (dict(model.named_parameters()) for model in forms)
    assert list(expected) == list(found)
    whole = [torch.cat([p.grad.flatten() for p in named.values() if p.grad is not None]) for named in (expected, found)]
    assert (whole[1] - whole[0]).norm() <= 3 * bound * whole[0].norm()


def test_the_stream_of_the_layers_is_of_the_precision_that_was_asked_for() -> None:
    task = task_of("vit-l")
    seen = []
    for model in both_forms(task):
        hook = model.get_submodule("encoder.layers").register_forward_hook(lambda *of: seen.append(of[2]))
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            task.predict(model, task.sample(torch.Generator().manual_seed(1), 2))
        hook.remove()
    assert [answer.dtype for answer in seen] == [torch.float32, torch.bfloat16]


def test_swin_s_first_stage_takes_what_the_norm_before_it_gives_in_that_precision() -> None:
    """On a GPU that norm answers in fp32."""
    found = []
    for model in both_forms(task_of("swin-t")):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            found.append(model.get_submodule("features.1")(torch.randn(1, 8, 8, 32)).dtype)
    assert found == [torch.float32, torch.bfloat16]


def test_who_does_not_ask_has_the_library_s_own() -> None:
    for name in ("vit-l", "vit-h", "swin-t", "swin-b"):
        for preset in ("fast", "plain"):
            settings = find_workload(name).effective({"preset": preset}, Machine("cuda", 141.0, 16))
            assert uses_kernel(settings, OWN_PARTS) == (name != "vit-h" and preset == "fast")
        infers = find_workload(name).effective({"mode": "infer"}, Machine("cuda", 141.0, 16))
        assert uses_kernel(infers, OWN_PARTS) == (name == "vit-l")  # Swin's was not timed there
        assert task_of(name, kernels="library").own_parts is None
        assert task_of(name).own_parts is not None


def test_vit_has_no_other_attention_left_and_counts_as_before() -> None:
    task = task_of("vit-l")
    _, own = both_forms(task)
    kinds = [type(module) for module in own.modules()]
    assert nn.MultiheadAttention not in kinds
    assert nn.Conv2d not in kinds
    assert kinds.count(PackedAttention) == 2
    plain = task_of("vit-l", kernels="library")
    assert count_flops(task, training=True, recompute=False) == count_flops(plain, training=True, recompute=False)


def test_patches_lie_where_the_convolution_puts_them() -> None:
    """A layout of images that lies otherwise in memory must not turn them round."""
    convolution = nn.Conv2d(3, 5, kernel_size=4, stride=4)
    images = torch.randn(2, 3, 8, 12)
    for layout in (torch.contiguous_format, torch.channels_last):
        given = images.to(memory_format=layout)
        torch.testing.assert_close(PatchProduct(convolution)(given), convolution(images))


def test_attention_leaves_out_as_much_as_it_is_told_to() -> None:
    torch.manual_seed(0)
    library = nn.MultiheadAttention(32, 4, dropout=0.5, batch_first=True)
    own, x = PackedAttention(library), torch.randn(2, 6, 32)
    first, second = own(x, x, x)[0], own(x, x, x)[0]
    assert not torch.equal(first, second)
    torch.testing.assert_close(own.eval()(x, x, x)[0], library.eval()(x, x, x, need_weights=False)[0])

"""precision=fp8: its products are those of operands rounded to eight bits, and a model learns with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.step import Step
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads import build_task, find_workload, language
from prony_node.workloads.language import ScaledLinear, in_eight_bits

CPU = torch.device("cpu")


def rounded(tensor: Tensor, kind: torch.dtype) -> Tensor:
    """Written apart from the code under test: to the format and back, so that the largest value is its largest."""
    scale = float(tensor.abs().max()) / torch.finfo(kind).max
    return (tensor.double() / scale).float().to(kind).double() * scale


def operands() -> tuple[Tensor, Tensor, Tensor]:
    """Activations with an outlier, small weights, gradients far below what eight bits hold without a scale."""
    source = torch.Generator().manual_seed(0)
    rows, weight, gradient = (torch.randn(shape, generator=source) for shape in ((48, 64), (32, 64), (48, 32)))
    rows[3, 5] = 40.0
    return rows, 0.02 * weight, 1e-7 * gradient


def worked_through(layer: nn.Module, rows: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    given = rows.clone().view(3, 16, 64).requires_grad_()
    answer = layer(given)
    answer.backward(gradient.view(3, 16, 32).to(answer.dtype))
    assert given.grad is not None
    return answer.detach().view(48, 32), given.grad.view(48, 64), next(layer.parameters()).grad


def scaled_linear(weight: Tensor) -> ScaledLinear:
    linear = nn.Linear(64, 32, bias=False)
    linear.weight.data.copy_(weight)
    return ScaledLinear(linear)


def test_its_three_products_are_those_of_rounded_operands() -> None:
    rows, weight, gradient = operands()
    answer, by_rows, by_weight = worked_through(scaled_linear(weight), rows, gradient)
    small_rows, small_weight = rounded(rows, torch.float8_e4m3fn), rounded(weight, torch.float8_e4m3fn)
    small_gradient = rounded(gradient.bfloat16().float(), torch.float8_e5m2)
    expected = (small_rows @ small_weight.T, small_gradient @ small_weight, small_gradient.T @ small_rows)
    digits = {torch.bfloat16: 2**-8, torch.float32: 1e-5}
    found = ((answer, torch.bfloat16), (by_rows, torch.bfloat16), (by_weight, torch.float32))
    for (tensor, kind), exact in zip(found, expected, strict=True):
        assert (tensor.double() - exact).abs().max() <= digits[kind] * exact.abs().max()
    assert answer.dtype == torch.bfloat16
    assert by_weight.dtype == torch.float32


def test_rounding_to_eight_bits_costs_what_it_should() -> None:
    """A scale that were wrong by little would pass as rounding: three bits of mantissa are 1/16 at most, two 1/8."""
    rows, _, gradient = operands()
    for tensor, kind, most in ((rows, language.VALUES, 1 / 16), (gradient, language.GRADIENTS, 1 / 8)):
        small, factor = in_eight_bits(tensor, kind)
        error = (small.float() * factor - tensor).abs()
        normal = tensor.abs() > tensor.abs().max() / 1000
        assert 0.5 * most < (error / tensor.abs())[normal].max() <= most
        assert small.float().abs().max() == torch.finfo(kind).max


def test_a_tensor_of_zeros_stays_one() -> None:
    small, factor = in_eight_bits(torch.zeros(4, 16), language.VALUES)
    assert not small.float().any()
    assert torch.isfinite(factor)


def test_the_compiler_traces_it_whole() -> None:
    """As one graph, forward and backward: a break would ask the host in the middle of a captured step."""
    rows, weight, gradient = operands()
    eager = worked_through(scaled_linear(weight), rows, gradient)
    layer = scaled_linear(weight)
    layer.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(worked_through(layer, rows, gradient), eager)


def losses(precision: str, steps: int) -> list[float]:
    workload = find_workload("gpt-117m")
    given = {"size": "tiny", "precision": precision, "device": "cpu", "batch_size": 4, "sequence": 8}
    requested = workload.parse(given)
    settings = workload.effective(requested, Machine("cpu", None, 2))
    task = build_task(workload, settings)
    step = Step(task, settings, CPU)
    step.finish_model()
    assert isinstance(step.model.layers[1].down, ScaledLinear) == (precision == "fp8")
    samples, found = torch.Generator().manual_seed(1), []
    step.prepare(task.sample(samples, 4))
    for _ in range(steps):
        step(task.sample(samples, 4))
        assert step.output is not None
        found.append(float(step.output))
    return found


def test_it_learns_as_fp32_does() -> None:
    """Twenty steps, each loss within three thousandths: what eight bits round off averages out in a sum."""
    plain, small = losses("fp32", 20), losses("fp8", 20)
    assert plain[-1] < plain[0] - 0.05
    assert small == pytest.approx(plain, rel=0.003)
    assert small != plain


def test_weights_keep_their_names_and_work_is_counted_as_before() -> None:
    workload = find_workload("gpt-117m")
    counted = []
    for precision in ("fp32", "fp8"):
        settings = workload.effective({"size": "tiny", "precision": precision}, Machine("cpu", None, 2))
        task = build_task(workload, settings)
        counted.append(count_flops(task, training=True, recompute=False))
    model = task.model()
    before = set(model.state_dict())
    assert task.own_parts is not None
    task.own_parts(model)
    assert set(model.state_dict()) == before
    assert counted[0] == counted[1]


def test_what_it_is_not_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="offered for the gpt models alone; resnet50 has precision=bf16"):
        find_workload("resnet50").parse({"precision": "fp8"})
    gpt = find_workload("gpt-117m")
    with pytest.raises(RequestError, match="mode=train alone"):
        gpt.parse({"precision": "fp8", "mode": "infer"})
    given = {"precision": "fp8", "batch_size": 1, "sequence": 24, "size": "tiny"}
    with pytest.raises(RequestError, match=r"a multiple of 16.*24 is none"):
        build_task(gpt, gpt.effective(given, Machine("cpu", None, 2)))

    def without(*_: object, **__: object) -> None:
        raise RuntimeError("_scaled_mm is only supported on devices of compute capability 8.9 and above\nat ...")

    monkeypatch.setattr(torch, "_scaled_mm", without)
    with pytest.raises(RequestError, match=r"no scaled matrix product for device=cpu .*8.9 and above.; use") as caught:
        language.refuse_where_missing(CPU, None)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this torch has no error of its own for it")
def test_a_device_that_fails_is_not_told_as_one_without_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch, "_scaled_mm", broken)
    with pytest.raises(torch.AcceleratorError, match="unspecified launch failure"):
        language.refuse_where_missing(CPU, None)

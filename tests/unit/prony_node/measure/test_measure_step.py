"""What one step does: precision, optimizer, accumulation, and that training trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from prony_node.backends.torch.step import FIRST_STEPS, Step
from prony_node.backends.torch.task import Batch, Task
from prony_node.backends.torch.training import parameter_norms
from prony_node.workloads import image
from prony_node.workloads.image import fold_batch_norms, learning_rate

Make = Callable[..., tuple[Step, Task]]
BatchOf = Callable[..., Batch]


def parameters(step: Step) -> torch.Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in step.model.parameters()])


def test_two_micro_batches_of_four_are_one_batch_of_eight(make_step: Make, batch_of: BatchOf) -> None:
    ends = []
    for accumulation in (1, 2):
        step, task = make_step(
            "gpt-tiny", optimizer="sgd", grad_accumulation=accumulation, batch_size=8 // accumulation
        )
        step.prepare(batch_of(step, task, 8))
        step(batch_of(step, task, 8, 1))
        ends.append(parameters(step))
    step, _ = make_step("gpt-tiny", optimizer="sgd")
    assert (ends[0] - parameters(step)).abs().max() > 1e-4  # else the two would agree for having done nothing
    torch.testing.assert_close(ends[0], ends[1], atol=1e-5, rtol=0)


def test_preparing_takes_as_many_steps_as_it_says(make_step: Make, batch_of: BatchOf) -> None:
    step, task = make_step("gpt-tiny")
    batch = batch_of(step, task, 2)
    step.prepare(batch)
    assert {int(state["step"]) for state in step.optimizer.state.values()} == {FIRST_STEPS}
    step(batch)
    assert {int(state["step"]) for state in step.optimizer.state.values()} == {FIRST_STEPS + 1}


@pytest.mark.parametrize(("optimizer", "fused"), [("sgd", True), ("sgd", False), ("adamw", True)])
def test_a_restart_leaves_no_trace_of_the_first_steps(
    make_step: Make, batch_of: BatchOf, optimizer: str, fused: bool
) -> None:
    step, task = make_step("wideresnet", size="tiny", optimizer=optimizer, fused=fused)
    first = parameters(step).clone()
    step.keep_start()
    step.prepare(batch_of(step, task, 4))
    assert not torch.equal(parameters(step), first)
    ends = []
    for _ in range(2):
        step.restart()
        assert torch.equal(parameters(step), first)
        assert int(dict(step.model.named_buffers())["bn.num_batches_tracked"]) == 0
        for seed in (1, 2):
            step(batch_of(step, task, 4, seed))
        ends.append(parameters(step).clone())
    torch.testing.assert_close(ends[0], ends[1], atol=0, rtol=0)


def test_a_rate_of_nothing_teaches_nothing_and_another_rate_more(make_step: Make, batch_of: BatchOf) -> None:
    step, task = make_step("gpt-tiny", optimizer="sgd")
    step.prepare(batch_of(step, task, 2))
    moved = []
    for factor in (0.0, 0.5, 1.0):
        before = parameters(step).clone()
        step.set_rate(factor)
        step(batch_of(step, task, 2, 1))
        moved.append(float((parameters(step) - before).norm()))
    assert moved[0] == 0.0
    assert 0 < moved[1] < moved[2]


@pytest.mark.parametrize(
    ("precision", "weights", "states"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.float32, torch.bfloat16),
        ("bf16-pure", torch.bfloat16, torch.bfloat16),
        ("fp16", torch.float32, torch.float16),
    ],
)
def test_a_precision_is_that_of_weights_and_of_products(
    make_step: Make, batch_of: BatchOf, precision: str, weights: torch.dtype, states: torch.dtype
) -> None:
    step, task = make_step("gpt-tiny", precision=precision)
    products: set[torch.dtype] = set()
    step.model.layers[0].up.register_forward_hook(lambda module, inputs, output: products.add(output.dtype))
    before = parameters(step)
    step.prepare(batch_of(step, task, 2))
    assert {parameter.dtype for parameter in step.model.parameters()} == {weights}
    assert {state["exp_avg"].dtype for state in step.optimizer.state.values()} == {weights}
    assert products == {states}
    assert step.output is not None
    assert torch.isfinite(step.output)
    assert not step.output.requires_grad  # a graph kept alive would be memory that no step needs
    assert (parameters(step) != before).float().mean() > 0.5
    assert all(parameter.grad is None for parameter in step.model.parameters())


@pytest.mark.parametrize("fused", [True, False])
def test_the_loss_scaler_skips_a_step_that_overflowed(make_step: Make, batch_of: BatchOf, fused: bool) -> None:
    step, task = make_step("gpt-tiny", precision="fp16", fused=fused, optimizer="sgd")
    batch = batch_of(step, task, 2)
    step.prepare(batch)
    assert step.scaler.is_enabled()
    scale = step.scaler.get_scale()
    before = parameters(step)
    step.scaler.update(1e38)  # so large that a gradient must overflow
    step(batch)
    assert torch.equal(parameters(step), before)
    assert step.scaler.get_scale() < 1e38
    step.scaler.update(scale)
    step(batch)
    assert not torch.equal(parameters(step), before)
    assert torch.isfinite(parameters(step)).all()


def test_a_first_step_that_overflows_leaves_no_garbage_behind(
    make_step: Make, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch makes the momentum in the first step, and did not write it when that step was skipped."""
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=2.0**120))
    step, task = make_step("gpt-tiny", precision="fp16", optimizer="sgd", fused=True)
    before = parameters(step)
    step.prepare(batch_of(step, task, 2))
    assert torch.equal(parameters(step), before)
    momenta = [state["momentum_buffer"] for state in step.optimizer.state.values()]
    assert len(momenta) == 26
    assert all(not momentum.any() for momentum in momenta)


def test_a_scaled_step_is_the_unscaled_one(make_step: Make, batch_of: BatchOf) -> None:
    """With the scale taken out again, fp16 walks where fp32 walks."""
    ends = []
    for precision in ("fp32", "fp16"):
        step, task = make_step("gpt-tiny", precision=precision, optimizer="sgd", fused=True)
        start = parameters(step)
        step.prepare(batch_of(step, task, 4))
        ends.append(parameters(step) - start)
    assert (ends[0] - ends[1]).norm() < 0.05 * ends[0].norm()


@pytest.mark.parametrize("name", ["wideresnet", "resnet50"])
def test_folded_batch_norms_answer_as_the_model_does(make_step: Make, batch_of: BatchOf, name: str) -> None:
    plain, task = make_step(name, mode="infer", preset="plain")
    batch = batch_of(plain, task, 2)
    with torch.no_grad():
        for module in plain.model.modules():  # as trained ones are: not those of a new model
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(generator=torch.Generator().manual_seed(1))
                module.running_var.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(2))
                module.weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(3))
        folded = fold_batch_norms(plain.model)
        assert not [module for module in folded.modules() if isinstance(module, nn.BatchNorm2d)]
        expected, answer = task.predict(plain.model, batch), task.predict(folded, batch)
    assert (expected - answer).norm() < 1e-4 * expected.norm()
    fast, _ = make_step(name, mode="infer")
    assert not [module for module in fast.model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [module for module in plain.model.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_inference_runs_in_the_precision_of_its_weights(make_step: Make, batch_of: BatchOf, precision: str) -> None:
    step, task = make_step("gpt-tiny", mode="infer", precision=precision)
    step.prepare(batch_of(step, task, 2))
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {parameter.dtype for parameter in step.model.parameters()} == {kind}
    assert step.output is not None
    assert step.output.dtype == kind
    assert step.output.shape == (2, 1024)
    assert not any(parameter.requires_grad for parameter in step.model.parameters())


@pytest.mark.parametrize(("name", "kind"), [("sgd", "SGD"), ("adam", "Adam"), ("adamw", "AdamW")])
@pytest.mark.parametrize("fused", [True, False])
def test_the_optimizer_is_the_one_asked_for(
    make_step: Make, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, fused: bool
) -> None:
    calls: list[str] = []
    for kernel in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_"):
        real = getattr(torch, kernel)

        def spy(*args: Any, _real: Any = real, _kernel: str = kernel, **options: Any) -> Any:
            calls.append(_kernel)
            return _real(*args, **options)

        monkeypatch.setattr(torch, kernel, spy)
    step, task = make_step("gpt-tiny", optimizer=name, fused=fused)
    step.prepare(batch_of(step, task, 2))
    assert type(step.optimizer).__name__ == kind
    assert set(calls) == ({f"_fused_{name}_"} if fused else set())
    assert [group["lr"] for group in step.optimizer.param_groups] == [task.learning_rate]
    assert step.optimizer.defaults["weight_decay"] == task.weight_decay


def test_a_part_of_a_model_learns_at_a_share_of_the_rate(make_step: Make, batch_of: BatchOf) -> None:
    step, task = make_step("gpt-tiny", optimizer="sgd")
    step.task = replace(task, rate_share=lambda name: 0.0 if "norm" in name else 1.0)
    before = {name: one.detach().clone() for name, one in step.model.named_parameters()}
    step.prepare(batch_of(step, task, 2))
    step.set_rate(0.5)
    assert sorted(group["lr"] for group in step.optimizer.param_groups) == [0.0, 0.5 * task.learning_rate]
    still = {name for name, one in step.model.named_parameters() if torch.equal(one, before[name])}
    assert still == {name for name in before if "norm" in name} != set()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_are_clipped_to_the_norm_that_a_task_allows(
    make_step: Make, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    norms: list[float] = []
    step, task = make_step("gpt-tiny", optimizer="sgd", precision=precision)
    step.task = replace(task, clip=0.01)
    real = torch.optim.SGD.step

    def spy(optimizer: torch.optim.SGD, *given: Any, **more: Any) -> Any:
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        return real(optimizer, *given, **more)

    monkeypatch.setattr(torch.optim.SGD, "step", spy)
    step.prepare(batch_of(step, task, 2))
    assert norms
    assert norms == pytest.approx([0.01] * len(norms), rel=0.01)


def train(step: Step, task: Task, batch_of: BatchOf, samples: int, steps: int) -> tuple[float, float, float]:
    """The held-out loss before and after, and the share of parameters that moved."""
    held_out = batch_of(step, task, 32, 99)
    before = step.held_out_loss(held_out)
    norms = parameter_norms(step.model)
    step.prepare(batch_of(step, task, samples))
    for number in range(steps):
        step(batch_of(step, task, samples, 1 + number))
    moved = (parameter_norms(step.model) != norms).float().mean()
    return before, step.held_out_loss(held_out), float(moved)


@pytest.mark.parametrize(
    ("optimizer", "precision"), [("adamw", "fp32"), ("adam", "fp32"), ("sgd", "fp32"), ("sgd", "bf16-pure")]
)
def test_a_decoder_learns(make_step: Make, batch_of: BatchOf, optimizer: str, precision: str) -> None:
    step, task = make_step("gpt-tiny", batch_size=4, optimizer=optimizer, precision=precision)
    before, after, moved = train(step, task, batch_of, 4, 16)
    assert after < before - 0.1
    assert moved == 1.0 if precision == "fp32" else moved > 0.5  # in bf16 small updates of the norms are lost


def test_an_image_classifier_learns(make_step: Make, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch) -> None:
    thin = partial(image.WideResNet, channels=(8, 16, 32))  # the same network, thin enough for a test
    monkeypatch.setattr(image, "WideResNet", thin)
    step, task = make_step("wideresnet", batch_size=64, image_size=16)
    before, after, moved = train(step, task, batch_of, 64, 12)
    assert after < before - 0.1
    assert moved == 1.0
    assert sum(parameter.numel() for parameter in step.model.parameters()) < 100_000, "the network is not thin"


def test_a_small_step_takes_a_small_rate() -> None:
    """The full rate blew up a batch of four, the default on a CPU."""
    rates = [learning_rate({"batch_size": batch, "grad_accumulation": 2}) for batch in (2, 64, 128, 1024, "auto")]
    assert rates == [0.05 / 64, 0.025, 0.05, 0.05, 0.05]
    assert learning_rate({"optimizer": "adamw", "batch_size": 2}) == 1e-3


def test_a_seed_gives_the_same_run_and_another_another(make_step: Make, batch_of: BatchOf) -> None:
    ends = []
    for seed in (0, 0, 1):
        step, task = make_step("gpt-tiny", seed=seed)
        step.prepare(batch_of(step, task, 2))
        ends.append(parameters(step))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_recomputation_changes_no_gradient(make_step: Make, batch_of: BatchOf) -> None:
    ends = []
    for recompute in (False, True):
        step, task = make_step("gpt-tiny", recompute=recompute, optimizer="sgd")
        assert step.model.recompute is recompute
        step.prepare(batch_of(step, task, 2))
        ends.append(parameters(step))
    torch.testing.assert_close(ends[0], ends[1], atol=1e-6, rtol=0)


def test_a_batch_is_placed_in_its_layout_and_precision(make_step: Make) -> None:
    images, labels = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
    step, _ = make_step("wideresnet", precision="bf16-pure")
    placed = step.place((images, labels))
    assert placed[0].is_contiguous(memory_format=torch.channels_last)
    assert (placed[0].dtype, placed[1].dtype) == (torch.bfloat16, torch.long)
    assert step.model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    step, _ = make_step("wideresnet", memory_format="contiguous")
    placed = step.place((images, labels))
    assert placed[0] is images  # nothing is copied that fits already
    assert placed[1] is labels


def test_one_small_change_in_a_large_parameter_shows() -> None:
    model = nn.Linear(1000, 1000)
    before = parameter_norms(model)
    with torch.no_grad():
        model.weight[3, 5] += 1e-6
    assert (parameter_norms(model) != before).tolist() == [True, False]

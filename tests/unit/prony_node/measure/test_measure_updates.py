"""If these fail, a run that stops training, or whose scaler skips steps, passes for one that trains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from prony_node.backends.torch.training import (
    MOST_PROBES,
    LossWatch,
    Probes,
    UpdateCount,
    parameter_norms,
    train_further,
)
from prony_node.measure.checks import StillTraining, losses_check, still_training_check, updates_check


class Bench:
    """A model with an optimizer; `step` trains it, unless `skips` says otherwise."""

    def __init__(self, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum, weight_decay=weight_decay)
        self.updates = UpdateCount()
        self.updates.follow(self.optimizer, torch.device("cpu"), scaled=True)
        self.begun = parameter_norms(self.model)
        self.skips = False

    def loss(self) -> Tensor:
        return self.model(torch.randn(16, 8)).square().mean()

    def step(self) -> None:
        loss = self.loss()
        if self.skips:
            loss = loss.detach() + 0 * self.model[2].bias.sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def judged(bench: Bench, window: Callable[[Probes], None]) -> str:
    probes = Probes(bench.model)
    probes.take(0)
    window(probes)
    found = train_further(bench.step, bench.model, bench.optimizer, bench.begun, probes)
    return still_training_check(found, 0, "fp32").level


def test_training_throughout_passes() -> None:
    bench = Bench()

    def window(probes: Probes) -> None:
        for steps in range(1, 20):
            bench.step()
            probes.take(steps)

    assert judged(bench, window) == "pass"
    assert bench.updates.made >= 20


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_skip_to_the_end_fails(weight_decay: float) -> None:
    bench = Bench(weight_decay=weight_decay)

    def window(probes: Probes) -> None:
        for steps in range(1, 400):
            bench.skips = steps > 40
            bench.step()
            probes.take(steps)

    assert judged(bench, window) == "fail"


def test_a_skip_inside_the_window_fails() -> None:
    bench = Bench(momentum=0.0)

    def window(probes: Probes) -> None:
        for steps in range(1, 60):
            bench.skips = 20 < steps < 40
            bench.step()
            if steps % 5 == 0:
                probes.take(steps)
        bench.skips = False

    assert judged(bench, window) == "fail"


def test_a_long_window_is_thinned_out_and_still_seen() -> None:
    bench = Bench()

    def window(probes: Probes) -> None:
        for steps in range(1, 3 * MOST_PROBES):
            bench.step()
            probes.take(steps)
        assert MOST_PROBES / 2 <= len(probes.at) <= MOST_PROBES
        assert probes.at == sorted(set(probes.at))

    assert judged(bench, window) == "pass"


def test_a_frozen_tensor_is_not_asked_to_move() -> None:
    bench = Bench()
    bench.model[0].weight.requires_grad_(False)
    assert judged(bench, lambda probes: bench.step()) == "pass"


def test_weights_in_any_layout_are_followed() -> None:
    model = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    probes = Probes(model)
    before = probes.now()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    after = probes.now()
    assert before is not None
    assert after is not None
    assert torch.allclose(after, before + 1)


@pytest.mark.parametrize("fused", [True, False])
def test_what_a_scaler_skips_is_counted(fused: bool) -> None:
    """A fused optimizer is called and leaves the weights alone; another one is not called at all."""
    bench = Bench()
    optimizer = torch.optim.SGD(bench.model.parameters(), 0.01, fused=fused)
    updates = UpdateCount()
    updates.follow(optimizer, torch.device("cpu"), scaled=True)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, float("inf"), float("inf"), 1.0):
        scaler.scale(bench.loss() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    assert (updates.made, updates.skipped()) == ((4, 2) if fused else (2, 0))


def test_levels_of_the_count() -> None:
    assert updates_check(1000, 1000, 0).level == "pass"
    assert updates_check(1000, 1000, 1).level == "pass"
    assert updates_check(1000, 1000, 50).level == "warn"
    assert updates_check(1000, 960, 0).level == "fail"


@pytest.mark.parametrize(
    ("found", "precision", "level"),
    [
        (StillTraining(1, 90, 90, None), "bf16", "pass"),
        (StillTraining(8, 90, 40, None), "bf16", "fail"),  # captured: what stands still is not updated
        (StillTraining(8, 90, 89, None), "bf16", "warn"),
        (StillTraining(8, 90, 40, None), "bf16-pure", "pass"),  # its spacing swallows small updates
        (StillTraining(8, 90, 0, None), "bf16-pure", "fail"),
        (StillTraining(8, 90, 80, 0), "fp32", "pass"),  # gradients are there, and too small to show
        (StillTraining(8, 90, 90, 60), "fp32", "fail"),  # weight decay alone
        (StillTraining(1, 90, 90, 0, stalled=1, parts=20), "fp32", "fail"),
    ],
)
def test_levels_of_what_stood_still(found: StillTraining, precision: str, level: str) -> None:
    assert still_training_check(found, 0, precision).level == level


@pytest.mark.parametrize("skips", [False, True])
def test_weights_of_16_bits_may_stand_still_now_and_then(skips: bool) -> None:
    """Each of them moves in one step of ten, which is no stall; that none moves is one."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(16, 16) for _ in range(100)).to(torch.bfloat16)
    probes = Probes(model)

    def some_move(share: float) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += (torch.rand(parameter.shape) < share).to(torch.bfloat16)

    for steps in range(20):
        some_move(0.0 if skips and 5 < steps < 10 else 0.1)
        probes.take(steps + 1)
    before = probes.now()
    for _ in range(8):
        some_move(0.1)
    assert probes.stalled(before, probes.now(), 8) == ((4 if skips else 0), 19)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_one_loss_that_is_not_finite_is_remembered(value: float, kind: torch.dtype) -> None:
    watch = LossWatch()
    watch.see(torch.tensor(value))  # before anything is followed, as in an inference
    watch.follow(torch.device("cpu"))
    for loss in (1.0, value, -3.0):
        watch.see(torch.tensor([loss], dtype=kind, requires_grad=True))
    assert not watch.all_finite()
    watch.begin()
    watch.see(torch.tensor(1e30))
    assert watch.all_finite()


def test_the_check_names_the_ranks() -> None:
    assert losses_check([True, True]).level == "pass"
    assert losses_check([False]).level == "fail"
    assert losses_check([True, False]).message.endswith("on rank 1")

"""Correctness is not traded: what preset=fast does differently on a CPU leaves the losses of training as they are.

Compiling takes too long here, and graphs need a device: tests/gpu/test_gpu_fast_is_plain.py has both.
"""

from __future__ import annotations

import pytest
import torch

from loss_curve import ROUNDING, TRAINED, allowed, compared, distance, losses, make_step
from prony_node.backends.torch import step as step_module
from prony_node.backends.torch.step import Step
from prony_node.contract.settings import Value

CPU = torch.device("cpu")
FAST: dict[str, Value] = {"preset": "fast", "compile": "off"}
STEPS = 8  # in fp64 a difference shows in the first ones, in bf16 it takes more of them
# In fp64 training makes too little of a rounding for it to be seen; deeplabv3plus-r101 enlarges by matrices of fp32.
SAME = 1e-7
# The library's suppression of boxes has no fp64: in fp32, on a rate that makes less of a rounding.
IN_FP32 = {"fasterrcnn-r50-fpn": (0.1, 1e-3)}
# One of each family: the same forms of the same layers, and bf16 is slow on a CPU.
IN_BF16 = ("resnet50", "wideresnet", "swin-t", "gpt-tiny", "bert-base-squad", "compression-autoencoder", "segformer-b4",
           "fasterrcnn-r50-fpn")  # fmt: skip
MODELS = [name for name in TRAINED if name not in ("gpt-117m", "gpt-800m", "gpt-13b", "gpt-175b")]  # tiny: one model


@pytest.fixture
def fp64(monkeypatch: pytest.MonkeyPatch) -> None:
    """precision=fp32 with everything twice as wide: a difference that is left is one of mathematics."""
    monkeypatch.setitem(step_module.PURE, "fp32", torch.float64)
    monkeypatch.setitem(step_module.INFERENCE, "fp32", torch.float64)


@pytest.mark.parametrize("name", MODELS)
def test_fast_has_the_losses_of_plain(name: str, request: pytest.FixtureRequest) -> None:
    rate, bound = IN_FP32.get(name, (1.0, SAME))
    if name not in IN_FP32:
        request.getfixturevalue("fp64")
    plain = losses(make_step(name, CPU, rate, preset="plain", precision="fp32"), STEPS)
    fast = losses(make_step(name, CPU, rate, precision="fp32", **FAST), STEPS)
    assert distance(fast, plain) < bound
    assert len(set(plain)) > 1


@pytest.mark.parametrize("name", IN_BF16)
def test_in_bf16_they_are_as_near_as_a_rounding_lets_them(name: str) -> None:
    row = compared(name, CPU, compile="off")
    assert row["distance"] < row["allowed"]


@pytest.mark.usefixtures("fp64")
def test_a_slightly_different_training_would_be_noticed() -> None:
    plain = losses(make_step("wideresnet", CPU, preset="plain", precision="fp32"), STEPS)
    faster = losses(make_step("wideresnet", CPU, rate=1.01, precision="fp32", **FAST), STEPS)
    assert distance(faster, plain) > 100 * SAME


def test_another_training_in_bf16_would_be_noticed() -> None:
    plain = losses(make_step("gpt-tiny", CPU, preset="plain", precision="bf16"))
    nudged = losses(make_step("gpt-tiny", CPU, nudge=ROUNDING, preset="plain", precision="bf16"))
    faster = losses(make_step("gpt-tiny", CPU, rate=1.5, precision="bf16", **FAST))
    assert distance(faster, plain) > allowed(nudged, plain)


@pytest.mark.parametrize("name", MODELS)
def test_fast_answers_as_plain_does(name: str, request: pytest.FixtureRequest) -> None:
    """Its batch norms are folded, and they have something to fold: fresh ones leave everything as it is."""
    if name not in IN_FP32:
        request.getfixturevalue("fp64")
    plain, fast = (answer(name, **given) for given in ({"preset": "plain"}, FAST))
    assert plain.norm() > 0
    assert (fast - plain).norm() < 1e-5 * plain.norm()  # norms are folded in fp32


def answer(name: str, **given: Value) -> torch.Tensor:
    step = make_step(name, CPU, mode="infer", precision="fp32", before=shaken, **given)
    batch = step.place(step.task.sample(torch.Generator().manual_seed(1), 2))
    with torch.no_grad():
        return (step.task.compared or step.task.predict)(step.model, batch)


def shaken(step: Step) -> None:
    generator = torch.Generator().manual_seed(5)
    for module in step.model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            for values in (module.running_mean, module.running_var):
                values += 0.3 * torch.rand(values.shape, generator=generator)

"""The losses of a workload's steps under a preset, so that one preset can be held to another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.step import Step
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.workloads import WORKLOADS, build_task, find_workload

STEPS = 20
TRAINED = [name for name, workload in WORKLOADS.items() if "train" in workload.modes]
FEWER = {"dino-swin-l": 2, "segformer-b4": 2, "deeplabv3plus-r101": 4, "fasterrcnn-r50-fpn": 2, "efficientnet-b4": 4}
EVERY_CANDIDATE = 100_000  # more than a tiny detector has
ROUNDING = 2.0**-9  # of bf16, relative
TIMES = 3.0  # two trainings that differ by a rounding are not equally far apart each time
FLOOR = 1e-3  # of the first loss: below, two curves are one in bf16


def make_step(
    name: str,
    device: torch.device,
    rate: float = 1.0,
    nudge: float = 0.0,
    before: Callable[[Step], None] = lambda step: None,
    **given: Value,
) -> Step:
    """A finished step of the tiny model on a share of its learning rate; `nudge` moves its weights by such a share."""
    workload = find_workload(name)
    machine = Machine("cpu", None, 2) if device.type == "cpu" else machine_of(device, 4)
    few: dict[str, Value] = {"batch_size": FEWER[name]} if name in FEWER and device.type == "cpu" else {}
    settings = workload.effective(workload.parse({"size": "tiny", "device": device.type, **few, **given}), machine)
    task = build_task(workload, settings)
    step = Step(replace(task, learning_rate=rate * task.learning_rate), settings, device)
    judge_every_candidate(step.model)
    before(step)
    step.finish_model()
    if nudge:
        generator = torch.Generator(device).manual_seed(99)
        with torch.no_grad():
            for weights in step.model.parameters():
                weights.mul_(1 + nudge * torch.randn(weights.shape, generator=generator, device=device))
    return step


def judge_every_candidate(model: Any) -> None:
    """A detector draws by chance which candidates it learns from, and each form of it in an order of its own."""
    for part in (getattr(model, "rpn", None), getattr(model, "roi_heads", None)):
        if part is not None:
            part.fg_bg_sampler.batch_size_per_image = EVERY_CANDIDATE


def losses(step: Step, steps: int = STEPS) -> list[float]:
    """Of this many steps after the first ones, each on a batch of its own, the same for every step of a workload."""
    samples = int(step.settings["batch_size"])
    drawn = [step.task.sample(torch.Generator().manual_seed(seed), samples) for seed in range(steps + 1)]
    batches = [step.place(batch) for batch in drawn]
    torch.manual_seed(7)  # whatever a model drops by chance, both drop
    found = []
    with step.kernels():
        step.prepare(batches[0])
        for batch in batches[1:]:
            step(batch)
            assert step.output is not None
            found.append(step.output.double().clone())
    return [float(loss) for loss in found]


def distance(some: list[float], others: list[float]) -> float:
    """How far apart two losses of the same step are on average, as a share of the first loss."""
    apart = sum(abs(one - other) for one, other in zip(some, others, strict=True)) / len(others)
    return apart / abs(others[0])


def allowed(nudged: list[float], plain: list[float]) -> float:
    """What a precision is worth: how far apart two trainings end that differ by one rounding of the weights.

    Batch norms over eight values and boxes that are kept or dropped make much of a rounding, attention makes little.
    """
    return FLOOR + TIMES * distance(nudged, plain)


@contextlib.contextmanager
def torchs_own_chance() -> Iterator[None]:
    """Compiled code draws random numbers of its own; with torch's, both presets drop the same."""
    from torch._inductor import config

    before, config.fallback_random = config.fallback_random, True
    torch.compiler.reset()
    try:
        yield
    finally:
        config.fallback_random = before


def compared(name: str, device: torch.device, **given: Value) -> dict[str, Any]:
    """All of preset=fast beside preset=plain in bf16: how far apart, how far they may be, and the losses themselves."""
    plain = losses(make_step(name, device, preset="plain", precision="bf16"))
    nudged = losses(make_step(name, device, nudge=ROUNDING, preset="plain", precision="bf16"))
    step = make_step(name, device, preset="fast", precision="bf16", **given)
    fast = losses(step)
    return {
        "workload": name,
        "distance": distance(fast, plain),
        "allowed": allowed(nudged, plain),
        "torch": torch.__version__,
        "settings": step.settings,
        "plain": plain,
        "fast": fast,
        "plain, weights moved by a rounding": nudged,
    }

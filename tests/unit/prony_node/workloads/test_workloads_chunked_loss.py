"""A loss whose logits come in parts is the loss that has them all, and never has them all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prony_node.backends.torch.compiling import count_flops
from prony_node.contract.machine import Machine
from prony_node.workloads import build_task, find_workload
from prony_node.workloads import language as chunks
from prony_node.workloads.language import widened

WORDS = 48


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    monkeypatch.setattr(chunks, "TOKENS", 5)  # the last part is smaller


def whole_loss(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(widened(F.linear(states, weight).flatten(0, 1)), targets.flatten())


def worked_through(loss_of: Callable[..., Tensor], kind: torch.dtype) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(0)
    held = torch.float64 if kind == torch.float64 else torch.float32  # what autocast lowers is held in fp32
    states = torch.randn(3, 7, 16, generator=source, dtype=held, requires_grad=True)
    weight = torch.randn(WORDS, 16, generator=source, dtype=held, requires_grad=True)
    targets = torch.randint(WORDS, (3, 7), generator=source)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        loss = loss_of(states, weight, targets)
    (3 * loss).backward()  # as a scaler of losses does
    assert states.grad is not None
    assert weight.grad is not None
    return loss.detach(), states.grad, weight.grad


@pytest.mark.parametrize(("kind", "bound"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("compiled", [False, True])
def test_loss_and_gradients_are_those_of_all_logits(
    kind: torch.dtype, bound: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Callable[..., Tensor] = chunks.chunked_loss
    if compiled:
        monkeypatch.setattr(chunks, "compiled_part", lambda: chunks.one_part)
        own = torch.compile(own, backend="aot_eager", fullgraph=True)
    for found, expected in zip(worked_through(own, kind), worked_through(whole_loss, kind), strict=True):
        assert found.dtype == expected.dtype
        assert (found - expected).norm() <= bound * expected.norm()


class Largest(TorchDispatchMode):
    """The most rows of logits that any operation answered with."""

    rows = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        if isinstance(answer, Tensor) and answer.dim() == 2 and answer.shape[1] == WORDS:
            self.rows = max(self.rows, len(answer))
        return answer


def test_logits_never_exist_whole() -> None:
    with Largest() as largest:
        worked_through(chunks.chunked_loss, torch.float32)
    assert largest.rows == 16  # the weight's transpose has a row for each of its columns; no part has more than 5
    with Largest() as largest:
        worked_through(whole_loss, torch.float32)
    assert largest.rows == 21


def most_held(work: Callable[[], object]) -> int:
    """Bytes that were allocated beyond what there was, at most."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        held += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, held)
    return most


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler here")
def test_compiled_logits_never_exist_whole_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that sees the loop unrolls it, and does all products before it adds them up."""
    monkeypatch.setattr(chunks, "TOKENS", 64)
    states = torch.randn(1, 2048, 32, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(2000, 32, requires_grad=True)
    targets = torch.randint(2000, (1, 2048))
    own = torch.compile(chunks.chunked_loss, dynamic=False)

    def work() -> None:
        states.grad = weight.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            loss = own(states, weight, targets)
        loss.backward()

    work()  # the first compiles
    assert most_held(work) < 2 * targets.numel() * len(weight) / 2  # of their bytes in bf16


def test_a_gpt_takes_it_where_logits_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = find_workload("gpt-117m")
    task = build_task(workload, workload.effective({"size": "tiny"}, Machine("cpu", None, 2)))
    torch.manual_seed(0)
    model, batch = task.model(), task.sample(torch.Generator().manual_seed(1), 2)
    found, counted = [], []
    for limit in (0, 2**32):
        monkeypatch.setattr(chunks, "LARGE_BYTES", limit)
        loss = task.loss(model, batch)
        assert ("Chunked" in str(loss.grad_fn)) == (limit == 0)
        found.append(loss.item())
        counted.append(count_flops(task, training=True, recompute=False))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert counted[0] == counted[1]

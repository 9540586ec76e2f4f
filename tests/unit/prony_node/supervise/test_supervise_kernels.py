"""Attention kernels are timed where that is asked for, on the shapes of the run's own batch."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from prony_node.measure.attention import AttentionObserver, AttentionShape, Choice
from prony_node.supervise import prepare


def run_of(attention: str | None = "measured") -> Any:
    """What of a run is read: a batch of 32 samples, held-out ones of 4."""
    return SimpleNamespace(
        device=torch.device("cuda"),
        settings={"batch_size": 32} | ({"attention": attention} if attention else {}),
        held_out=(torch.zeros(4, 1),),
        step=SimpleNamespace(attention=Choice(), compute_dtype=torch.bfloat16, training=True),
        found={},
    )


@pytest.mark.parametrize("attention", ["cudnn", "library", None])
def test_nothing_is_noted_where_nothing_would_be_timed(attention: str | None) -> None:
    run = run_of(attention)
    assert isinstance(prepare.noting(run), nullcontext)
    prepare.choose_attention(run, None)
    assert run.found == {}


def test_a_model_without_attention_has_nothing_to_choose() -> None:
    run = run_of()
    with prepare.noting(run) as seen:
        torch.zeros(2) + 1
    prepare.choose_attention(run, seen)
    assert run.found == {}


def test_the_shapes_of_the_step_are_timed_and_their_order_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[AttentionShape, str]] = []

    def time_on(device: object, dtype: torch.dtype, clock: object, *, training: bool) -> Any:
        assert (dtype, training) == (torch.bfloat16, True)

        def time_kind(kind: AttentionShape, name: str) -> float:
            asked.append((kind, name))
            return {"cudnn": 2.0, "flash": 1.0, "efficient": 3.0}[name]

        return time_kind

    monkeypatch.setattr(prepare, "time_on", time_on)
    run = run_of()
    with prepare.noting(run) as seen, torch.no_grad():
        F.scaled_dot_product_attention(*[torch.zeros(4, 2, 8, 16)] * 3)
    assert isinstance(seen, AttentionObserver)
    prepare.choose_attention(run, seen)
    assert {kind.query for kind, _ in asked} == {(32, 2, 8, 16)}
    assert run.step.attention.order == ("flash", "cudnn", "efficient")
    assert run.found["attention"]["order"] == ["flash", "cudnn", "efficient"]

"""The attention kernel is the fastest on what the model asks for, and the usual one where that is unsure."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from prony_node.contract.errors import RequestError
from prony_node.measure.attention import (
    ORDER,
    AttentionObserver,
    AttentionShape,
    Choice,
    asked_in,
    choose,
    order_of,
    time_on,
)
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")
LONG = AttentionShape((2, 4, 128, 16), (2, 4, 128, 16), (2, 4, 128, 16), None, True)
SHORT = AttentionShape((2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 16), None, False)


def timed(seconds: dict[str, float | None]) -> Choice:
    return choose(Counter({LONG: 2}), lambda kind, name: seconds[name])


def test_the_fastest_comes_first() -> None:
    found = timed({"cudnn": 3.0, "flash": 1.0, "efficient": 2.0})
    assert found.order == ("flash", "efficient", "cudnn")
    assert found.document()["timed"][0]["milliseconds"] == {"cudnn": 3000.0, "flash": 1000.0, "efficient": 2000.0}
    assert found.document()["timed"][0]["calls"] == 2


def test_a_lead_that_may_be_chance_changes_nothing() -> None:
    assert timed({"cudnn": 1.0, "flash": 0.99, "efficient": 0.985}).order == ORDER


def test_a_kernel_that_cannot_do_it_is_passed_over() -> None:
    assert timed({"cudnn": None, "flash": 2.0, "efficient": 1.0}).document()["timed"][0]["milliseconds"].keys() == {
        "flash", "efficient"
    }  # fmt: skip
    assert timed({"cudnn": None, "flash": None, "efficient": None}) == Choice()
    assert choose(Counter(), lambda kind, name: 1.0) == Choice()


def test_what_is_asked_most_counts_most() -> None:
    """The long one is slower with cuDNN by more than the short ones are faster, until there are many of these."""
    table = {
        LONG: {"cudnn": 2.0, "flash": 1.0, "efficient": 9.0},
        SHORT: {"cudnn": 0.1, "flash": 0.2, "efficient": 9.0},
    }
    few = choose(Counter({LONG: 1, SHORT: 2}), lambda kind, name: table[kind][name])
    many = choose(Counter({LONG: 1, SHORT: 20}), lambda kind, name: table[kind][name])
    assert (few.order[0], many.order[0]) == ("flash", "cudnn")


def test_a_kind_that_one_kernel_cannot_do_is_done_by_another() -> None:
    table = {
        LONG: {"cudnn": None, "flash": 5.0, "efficient": 6.0},
        SHORT: {"cudnn": 1.0, "flash": 2.0, "efficient": 3.0},
    }
    assert choose(Counter({LONG: 1, SHORT: 1}), lambda kind, name: table[kind][name]).order[0] == "cudnn"


def test_every_call_is_noted_with_its_shape() -> None:
    query, key = torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 128, 16)
    with AttentionObserver() as noting, torch.no_grad():
        for _ in range(3):
            F.scaled_dot_product_attention(query, key, key)
        F.scaled_dot_product_attention(key, key, key, is_causal=True)
        nn.MultiheadAttention(64, 4, batch_first=True)(
            torch.zeros(2, 8, 64), *[torch.zeros(2, 8, 64)] * 2, need_weights=False
        )
    assert noting.kinds == {
        AttentionShape((2, 4, 8, 16), (2, 4, 128, 16), (2, 4, 128, 16), None, False): 3,
        LONG: 1,
        SHORT: 1,
    }


def test_the_batch_is_that_of_the_step() -> None:
    assert LONG.with_batch(8).query == (16, 4, 128, 16)
    masked = AttentionShape((2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 16), (2, 1, 8, 8), False)
    assert masked.with_batch(0.5).mask == (1, 1, 8, 8)
    assert AttentionShape((6, 4, 8, 16), (6, 4, 8, 16), (6, 4, 8, 16), (1, 4, 8, 8), False).with_batch(2).mask == (
        1,
        4,
        8,
        8,
    )


def test_a_decoder_asks_once_a_layer() -> None:
    workload = find_workload("gpt-tiny")
    settings = {**workload.fixed, "mode": "infer", "batch_size": 2}
    task = build_task(workload, settings)
    with AttentionObserver() as noting, torch.no_grad():
        task.predict(task.model(), task.sample(torch.Generator().manual_seed(0), 2))
    (kind,) = noting.kinds
    assert kind.causal
    assert kind.query[0] == 2
    assert noting.kinds[kind] > 1


@pytest.mark.parametrize("training", [True, False])
def test_a_kernel_is_timed_forward_and_backward(training: bool) -> None:
    calls: list[bool] = []

    def clock(work: object) -> float:
        assert callable(work)
        calls.append(bool(work().requires_grad))
        return 1.0

    assert time_on(CPU, torch.float32, clock, training=training)(SHORT, "flash") == 1.0
    assert calls == [training]
    assert time_on(CPU, torch.float32, clock, training=training)(SHORT, "cudnn") in (None, 1.0)


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({"preset": "fast"}, ORDER),  # a model that has no such setting
        ({"preset": "plain"}, ()),
        ({"preset": "plain", "attention": "flash"}, ("flash", "cudnn", "efficient")),
        ({"preset": "fast", "attention": "cudnn"}, ORDER),
        ({"preset": "fast", "attention": "measured"}, ORDER),
        ({"preset": "fast", "attention": "library"}, ()),
        ({"preset": "fast", "attention": "math"}, ("math",)),
    ],
)
def test_the_order_follows_from_the_settings(settings: dict[str, str], order: tuple[str, ...]) -> None:
    assert order_of(settings) == order


def test_the_first_that_can_answers() -> None:
    """On a CPU torch has two: flash and the plain form."""

    def answered(order: tuple[str, ...], **options: bool) -> set[str]:
        with asked_in(order, **options), torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as seen:
            F.scaled_dot_product_attention(*[torch.zeros(SHORT.query)] * 3)
        return {name for name in ("flash", "math") for event in seen.key_averages() if name in event.key}

    assert answered(("flash",)) == answered(ORDER) == {"flash"}
    assert answered(("math",)) == {"math"}
    with pytest.raises(RuntimeError, match=r"No viable backend|No available kernel"):
        answered(("cudnn",), only=True)


def test_the_compilers_cache_tells_orders_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run that asks for one kernel would be given the code that another run compiled with another."""
    from torch._dynamo.utils import counters

    def compile_in(order: tuple[str, ...]) -> str:
        torch._dynamo.reset()
        counters.clear()
        with asked_in(order), torch.no_grad():
            torch.compile(lambda one: F.scaled_dot_product_attention(one, one, one))(torch.zeros(SHORT.query))
        found = counters["aot_autograd"]
        return "hit" if found["autograd_cache_hit"] else "miss" if found["autograd_cache_miss"] else "none"

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert [compile_in(order) for order in (("flash",), ORDER, ("flash",))] == ["miss", "miss", "hit"]


@pytest.mark.parametrize(
    ("workload", "given", "said"),
    [
        ("gpt-117m", {"attention": "flash", "device": "cpu"}, "attention=flash is one of CUDA's kernels"),
        ("gpt-117m", {"attention": "measured", "tp": 2, "devices": 2}, "with tp and pp name a kernel"),
        ("vit-l", {"attention": "fast"}, "attention is library | cudnn | flash"),
        ("resnet50", {"attention": "flash"}, "'attention'"),
    ],
)
def test_a_kernel_that_cannot_be_had_is_refused(workload: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        find_workload(workload).parse(given)

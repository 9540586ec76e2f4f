"""If these fail, a run asks another attention kernel than its settings say, or takes code compiled with another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from prony_node.backends.torch.attention import ORDER, asked_in, order_of
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload

SHAPE = (2, 4, 8, 16)


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({"preset": "fast"}, ORDER),  # a model that has no such setting
        ({"preset": "plain"}, ()),
        ({"preset": "plain", "attention": "flash"}, ("flash", "cudnn", "efficient")),
        ({"preset": "fast", "attention": "cudnn"}, ORDER),
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
            F.scaled_dot_product_attention(*[torch.zeros(SHAPE)] * 3)
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
            torch.compile(lambda one: F.scaled_dot_product_attention(one, one, one))(torch.zeros(SHAPE))
        found = counters["aot_autograd"]
        return "hit" if found["autograd_cache_hit"] else "miss" if found["autograd_cache_miss"] else "none"

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert [compile_in(order) for order in (("flash",), ORDER, ("flash",))] == ["miss", "miss", "hit"]


@pytest.mark.parametrize(
    ("workload", "given", "said"),
    [
        ("gpt-117m", {"attention": "flash", "device": "cpu"}, "attention=flash is one of CUDA's kernels"),
        ("gpt-117m", {"attention": "measured"}, "; did you mean attention=cudnn?"),  # a value of older versions
        ("vit-l", {"attention": "fast"}, "attention is library | cudnn | flash"),
        ("resnet50", {"attention": "flash"}, "'attention'"),
    ],
)
def test_a_kernel_that_cannot_be_had_is_refused(workload: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        find_workload(workload).parse(given)

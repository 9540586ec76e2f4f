"""If these fail, a run asks another attention kernel than its settings say, or takes code compiled with another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from prony_node.backends.torch.step import asked_in
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload
from prony_node.workloads.config import ATTENTION_ORDER as ORDER
from prony_node.workloads.config import attention_order

SHAPE = (2, 4, 8, 16)


@pytest.mark.parametrize(
    ("workload", "settings", "order"),
    [
        ("swin-t", {"preset": "fast", "kernels": "low-precision-residual"}, ORDER),  # it offers no choice
        ("swin-t", {"preset": "plain", "kernels": "library"}, ()),
        ("gpt-117m", {"preset": "plain", "kernels": "flash-attention"}, ("flash", "cudnn", "efficient")),
        ("vit-l", {"preset": "fast", "kernels": "cudnn-attention,low-precision-residual"}, ORDER),
        ("vit-l", {"preset": "fast", "kernels": "low-precision-residual"}, ()),
        ("gpt-117m", {"preset": "fast", "kernels": "library"}, ()),
        ("gpt-117m", {"preset": "fast", "kernels": "math-attention"}, ("math",)),
    ],
)
def test_the_order_follows_from_the_settings(workload: str, settings: dict[str, str], order: tuple[str, ...]) -> None:
    assert attention_order(find_workload(workload).kernels, settings) == order


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
        ("gpt-117m", {"kernels": "flash-attention", "device": "cpu"}, "flash-attention is for device=cuda, not cpu"),
        (
            "gpt-117m",
            {"kernels": "flash-atention"},
            "did you mean flash-attention? gpt-117m has cudnn-attention, flash",
        ),
        ("gpt-117m", {"kernels": "flash-attention,math-attention"}, "cannot both be asked first"),
        ("resnet50", {"kernels": "flash-attention"}, "resnet50 has compiled-norms, folded-stem"),
    ],
)
def test_a_kernel_that_cannot_be_had_is_refused(workload: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        find_workload(workload).parse(given)

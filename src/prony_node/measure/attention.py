"""Which attention kernel a step takes: one that was asked for, or the fastest on the shapes of its model."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.compiler
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prony_node.contract.settings import Value

ORDER: tuple[str, ...] = ("cudnn", "flash", "efficient")  # cuDNN's are written for Hopper
CLEARLY = 0.02  # faster by this share: below it a choice would turn on chance, and the compiler's cache with it
KINDS = 3  # timed at most: those that most of the work goes into
CALLS, ROUNDS = 5, 3

Clock = Callable[[Callable[[], object]], float]  # seconds of one call


@dataclass(frozen=True)
class AttentionShape:
    """One shape of attention: batch, heads, length and head size of queries, keys and values."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    mask: tuple[int, ...] | None
    causal: bool

    @property
    def size(self) -> int:
        """What the work grows with."""
        return math.prod(self.query) * self.key[-2]

    def with_batch(self, factor: float) -> AttentionShape:
        """The same with so many times the batch."""
        batch = max(1, round(self.query[0] * factor))
        query, key, value = ((batch, *shape[1:]) for shape in (self.query, self.key, self.value))
        mask = self.mask and ((batch if self.mask[0] == self.query[0] else self.mask[0]), *self.mask[1:])
        return replace(self, query=query, key=key, value=value, mask=mask)


class AttentionObserver(TorchDispatchMode):
    """Counts what attention is asked for in here, whichever kernel answers it."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[AttentionShape] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if name.startswith("aten::_scaled_dot_product") and not name.endswith("backward"):
            named = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | (kwargs or {})
            self.kinds[_kind(named)] += 1
        return func(*args, **(kwargs or {}))


def _kind(given: Mapping[str, Any]) -> AttentionShape:
    mask = given.get("attn_bias", given.get("attn_mask"))
    query, key, value = (tuple(given[name].shape) for name in ("query", "key", "value"))
    return AttentionShape(
        query, key, value, None if mask is None else tuple(mask.shape), bool(given.get("is_causal", False))
    )


@dataclass(frozen=True)
class Choice:
    """The order in which kernels are asked, and what it rests on."""

    order: tuple[str, ...] = ORDER
    seconds: tuple[tuple[AttentionShape, int, dict[str, float]], ...] = ()

    def document(self) -> dict[str, Any]:
        return {
            "order": list(self.order),
            "timed": [
                {
                    "query": list(kind.query), "key": list(kind.key), "masked": kind.mask is not None,
                    "causal": kind.causal, "calls": calls,
                    "milliseconds": {name: round(1e3 * one, 4) for name, one in found.items()},
                }
                for kind, calls, found in self.seconds
            ],
        }  # fmt: skip


def choose(kinds: Counter[AttentionShape], time_kind: Callable[[AttentionShape, str], float | None]) -> Choice:
    """Time every kernel on the kinds that matter, and ask them in the order of what the model would take with each."""
    most = sorted(kinds.items(), key=lambda one: one[0].size * one[1], reverse=True)[:KINDS]
    timed = []
    for kind, calls in most:
        found = {name: seconds for name in ORDER if (seconds := time_kind(kind, name)) is not None}
        if found:
            timed.append((kind, calls, found))
    if not timed:
        return Choice()

    def total(name: str) -> float:
        """Of a kernel; what it cannot do another does, as fast as any."""
        return sum(calls * found.get(name, min(found.values())) for _, calls, found in timed)

    order = ORDER
    fastest = min(ORDER, key=total)
    if total(fastest) < (1 - CLEARLY) * total(ORDER[0]):
        order = tuple(sorted(ORDER, key=total))
    return Choice(order, tuple(timed))


def time_on(
    device: torch.device, dtype: torch.dtype, clock: Clock, *, training: bool
) -> Callable[[AttentionShape, str], Any]:
    """Times one kernel on one kind, forward and, in training, backward; None where it cannot do that."""

    def time_kind(kind: AttentionShape, name: str) -> float | None:
        try:
            chance = torch.Generator(device).manual_seed(0)  # the run's own numbers are not touched
            made = [
                torch.randn(shape, device=device, dtype=dtype, generator=chance)
                for shape in (kind.query, kind.key, kind.value)
            ]
            mask = None if kind.mask is None else torch.zeros(kind.mask, device=device, dtype=dtype)
            query, key, value = (one.requires_grad_(training) for one in made)

            def once() -> Tensor:
                answer = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=kind.causal)
                if training:
                    torch.autograd.backward(answer, answer.detach())
                return answer

            with asked_in((name,), only=True):
                return clock(once)
        except RuntimeError:  # no such kernel for these shapes, or no memory for them
            return None

    return time_kind


def device_clock(work: Callable[[], object]) -> float:
    """The best of a few rounds, by the device's own events: what else the host does is not counted."""
    work()
    best = math.inf
    for _ in range(ROUNDS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(CALLS):
            work()
        ended.record()
        ended.synchronize()
        best = min(best, began.elapsed_time(ended) / 1e3 / CALLS)
    return best


def order_of(settings: Mapping[str, Value]) -> tuple[str, ...]:
    """In which order kernels are asked by these settings, before any was timed; none: torch's own order."""
    first = settings.get("attention", "cudnn" if settings["preset"] == "fast" else "library")
    fixed = {"library": (), "measured": ORDER, "math": ("math",)}  # the last of them can do anything
    return fixed[first] if first in fixed else tuple(dict.fromkeys((str(first), *ORDER)))


@contextlib.contextmanager
def asked_in(order: tuple[str, ...], *, only: bool = False) -> Iterator[None]:
    """Kernels are asked in this order in here, and torch's plain form last, unless `only` these may answer."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    named = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    names = order if only else dict.fromkeys((*order, "math"))
    with sdpa_kernel([named[name] for name in names], set_priority=True), _own_cache(" ".join(names)):
        yield


def _own_cache(tag: str) -> contextlib.AbstractContextManager[Any]:
    """Compiled code has its kernel in it, and torch's cache tells graphs apart by what they ask for alone."""
    config: Any = getattr(torch.compiler, "config", None)
    if not hasattr(config, "cache_key_tag"):  # an older torch
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[Any] = config.patch(cache_key_tag=f"attention {tag}")
    return patched

"""Which of torch's attention kernels a step asks first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.compiler


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

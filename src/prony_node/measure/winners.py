"""Which form of a compiled kernel was the fastest, kept beside the kernel for the processes that come after.

torch keeps it as well, but looks for it before it adds forms with smaller blocks to a reduction: those it times anew in
every process, a tenth of a second each. See https://github.com/pytorch/pytorch/issues/189121. What was timed beside
others on the device may be wrong and would stay, so that it is for the run to say when to keep what it found.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import torch

from prony_node.contract import files
from prony_node.contract.plain import write_alone

FOUND: dict[Path, tuple[set[str], str]] = {}  # by where to keep them: the forms that were timed, and the fastest


def remember_winners() -> None:
    """From now on, in this process. A version of torch that times its kernels elsewhere is left as it is."""
    try:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    except ImportError:
        return
    timed = getattr(CachingAutotuner, "autotune_to_one_config", None)
    if timed is None or hasattr(timed, "__wrapped__"):
        return

    @functools.wraps(timed)
    def remembered(kernel: Any, *given: Any, **named: Any) -> None:
        if not kernel.filename:
            timed(kernel, *given, **named)
            return
        kept = Path(f"{kernel.filename}.winner")
        forms = {form_of(launcher.config): launcher for launcher in kernel.launchers}
        if winner := recall(kept, set(forms)):
            kernel.launchers = [forms[winner]]
            return
        timed(kernel, *given, **named)
        FOUND[kept] = set(forms), form_of(kernel.launchers[0].config)

    CachingAutotuner.autotune_to_one_config = remembered


def form_of(config: Any) -> str:
    """Its blocks, warps and stages."""
    blocks = sorted(config.kwargs.items())
    return f"{blocks} {config.num_warps} {config.num_stages}"


def recall(path: Path, forms: set[str]) -> str | None:
    """The winner among these, if all of them were timed by this version of torch."""
    try:
        kept = files.read_plain_json(path)
    except OSError:
        return None
    if not isinstance(kept, dict) or kept.get("torch") != torch.__version__:
        return None
    winner, tried = kept.get("winner"), kept.get("tried")
    known = (
        isinstance(winner, str) and isinstance(tried, list) and winner in forms and all(form in tried for form in forms)
    )
    return winner if known else None


def keep_winners() -> None:
    """What this process timed so far. A folder that cannot be written to costs the next one its time, no more."""
    while FOUND:
        path, (tried, winner) = FOUND.popitem()
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            document = {"torch": torch.__version__, "tried": sorted(tried), "winner": winner}
            write_alone(path, files.to_json(document).encode())

"""Compiled kernels: where they are kept, and which form of each was the fastest."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch

from prony_node.contract import files
from prony_node.contract.cache import make_own_cache, private_folder
from prony_node.contract.errors import RequestError
from prony_node.contract.record import CompileCacheUse
from prony_node.contract.safe_files import make_own_folder, write_alone
from prony_node.contract.settings import Value

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


def use_cache(settings: dict[str, Value], folder: Path, closing: ExitStack) -> str | None:
    """Point the compiler at an empty cache inside the run folder, or at the one that runs share.

    What it finds there it executes. Where somebody else could change it, a temporary folder is used, which `closing`
    removes; why, is returned.
    """
    if settings["compile"] == "off":
        return None
    # Else a graph with an autograd function of ours is traced anew in every process. Older versions have no switch.
    if hasattr(functorch, "autograd_cache_allow_custom_autograd_functions"):
        functorch.autograd_cache_allow_custom_autograd_functions = True
    note = _choose_cache(settings["compile_cache"] == "cold", folder, closing)
    if torch.cuda.is_available():  # of AMD too; a CPU has one form of each kernel
        remember_winners()  # imports the compiler, which looks for its folders then
    return note


def _choose_cache(is_cold: bool, folder: Path, closing: ExitStack) -> str | None:
    default = _default_cache()
    _guard_headers(default, closing)
    # Once it is imported, the compiler states its default itself.
    if not is_cold and os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(default)) != str(default):
        return None
    note = None
    try:
        place = _make_cold(folder) if is_cold else make_own_cache("compile")
    except OSError as error:
        place = _make_temporary(closing)
        if not is_cold:
            why = f"{error.filename}: {error.strerror}"
            note = f"compiled kernels are not kept: {why}; XDG_CACHE_HOME names another folder"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place)
    if is_cold:
        os.environ["TRITON_CACHE_DIR"] = str(place / "triton")
    return note


def _make_cold(folder: Path) -> Path:
    place = folder / files.COMPILE_CACHE
    make_own_folder(place)
    return place


def _make_temporary(closing: ExitStack) -> Path:
    try:
        return closing.enter_context(private_folder("prony-compile-"))
    except OSError as error:
        raise RequestError(
            f"there is no folder of yours alone to compile into: {error.strerror}; set TMPDIR to another"
        ) from error


def _default_cache() -> Path:
    """As torch names it, which cannot be asked: its import already uses the folder."""
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return Path(tempfile.gettempdir()) / f"torchinductor_{user}"


def _guard_headers(default: Path, closing: ExitStack) -> None:
    """torch keeps compiled headers in its default folder, whatever its cache is, and anyone can guess its name."""
    try:
        make_own_folder(default)
    except OSError:
        closing.enter_context(_temporary_files_in(_make_temporary(closing)))


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    stated, used = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = used
        del os.environ["TMPDIR"]
        if stated is not None:
            os.environ["TMPDIR"] = stated


def cache_state(settings: dict[str, Value]) -> CompileCacheUse:
    """What the compiler found in its cache during cold start."""
    if settings["compile"] == "off":
        return CompileCacheUse("none", hits=0, misses=0)
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    hits = inductor["fxgraph_cache_hit"] + autograd["autograd_cache_hit"]
    misses = inductor["fxgraph_cache_miss"] + autograd["autograd_cache_miss"]
    if hits + misses == 0:
        return CompileCacheUse("unknown", hits=0, misses=0)
    state = "warm" if misses == 0 else "cold" if hits == 0 else "partly warm"
    return CompileCacheUse(state, hits=hits, misses=misses)

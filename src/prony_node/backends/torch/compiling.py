"""What is traced of a model: its FLOPs, gradients of convolutions, and compiled kernels with where they are kept."""

from __future__ import annotations

import contextlib
import functools
import getpass
import math
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from prony_node.backends.protocol import Flops
from prony_node.backends.torch.task import Task
from prony_node.contract import files
from prony_node.contract.cache import make_own_cache, private_folder
from prony_node.contract.errors import RequestError
from prony_node.contract.record import CompileCacheUse
from prony_node.contract.safe_files import make_own_folder, write_alone
from prony_node.contract.settings import Value

# Compiled kernels: where they are kept, and which form of each was the fastest.


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


# FLOPs counted on the model, on the meta device: no memory, no arithmetic, and no fused kernel that hides work.


SAMPLES = 2  # a batch norm of one sample may have nothing to normalise over


def count_flops(task: Task, *, training: bool, recompute: bool) -> Flops | None:
    """Of a sample; None where samples differ, since a step that asks the host cannot be tried without values."""
    if task.varies:
        return None
    convention = "multiply-add is 2; " + ("forward and backward" if training else "forward")
    if task.attention == "full":
        convention += "; causal attention counted as full"
    per_sample = _count(task, training=training, recompute=False)
    again = _count(task, training=training, recompute=True) - per_sample if recompute else 0.0
    return Flops(per_sample, again, convention)


def _convolution_backward(
    grad_out: Sequence[int], x: Sequence[int], weight: Sequence[int], *rest: Any, out_shape: object
) -> int:
    """Each of the two gradients is the forward pass's products again.

    Torch's own count of the gradient by the weight leaves groups out: a depthwise convolution of a thousand channels
    would count a thousand times.
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = rest
    positions = (x if transposed else grad_out)[2:]
    forward = 2 * x[0] * math.prod(positions) * math.prod(weight)
    return forward * sum(map(bool, wanted[:2]))


class _EmptyNorms(TorchDispatchMode):
    """Answers norms with tensors of the right shape: they have no products to count, and torch tries them in Python.

    That is most of the time of a count: hundreds of small operations for each of them.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        norm = NORMS.get(func)
        return norm(*args) if norm and not kwargs else func(*args, **(kwargs or {}))


def _batch_norm(image: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    training = rest[4]
    return torch.empty_like(image), *(image.new_empty(image.shape[1] if training else 0) for _ in range(2))


def _batch_norm_backward(gradient: Tensor, image: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    shapes = (image.shape, image.shape[1:2], image.shape[1:2])
    return tuple(image.new_empty(shape) if asked else None for shape, asked in zip(shapes, rest[-1], strict=True))


def _layer_norm(values: Tensor, shape: Sequence[int], *rest: Any) -> tuple[Tensor, ...]:
    rows = (*values.shape[: -len(shape)], *(1 for _ in shape))
    return torch.empty_like(values), values.new_empty(rows), values.new_empty(rows)


def _layer_norm_backward(gradient: Tensor, values: Tensor, shape: Sequence[int], *rest: Any) -> tuple[Any, ...]:
    shapes = (values.shape, shape, shape)
    return tuple(values.new_empty(shape) if asked else None for shape, asked in zip(shapes, rest[-1], strict=True))


NORMS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
    torch.ops.aten.native_layer_norm.default: _layer_norm,
    torch.ops.aten.native_layer_norm_backward.default: _layer_norm_backward,
}


def _count(task: Task, *, training: bool, recompute: bool) -> float:
    shapes = task.sample(torch.Generator().manual_seed(0), SAMPLES)
    batch = tuple(torch.empty_like(tensor, device="meta") for tensor in shapes)
    with torch.device("meta"):
        model = task.model()
    if recompute and task.recompute:
        task.recompute(model)
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
    )
    with counter, _EmptyNorms(), sdpa_kernel(SDPBackend.MATH):
        if training:
            task.loss(model, batch).backward()
        else:
            with torch.no_grad():
                task.predict(model.eval(), batch)
    return counter.get_total_flops() / SAMPLES


# Gradients of convolutions, asked for once while the compiler traces the model.
#
# cuDNN makes a kernel ready when a thread first asks for it; the gradients of a depthwise convolution take it half a
# second and more. Backward passes run on a thread of torch's own, which has nothing to do until the model is traced:
# so it is given every kind of the model's convolutions meanwhile, without values.


GRADIENTS = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class ConvolutionGradient:
    """What one convolution's gradients are asked for with."""

    gradient: tuple[int, ...]
    image: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    wanted: tuple[bool, bool]  # by the image, by the weight

    def times(self, batch: float) -> ConvolutionGradient:
        gradient, image = ((round(shape[0] * batch), *shape[1:]) for shape in (self.gradient, self.image))
        return replace(self, gradient=gradient, image=image)

    def ask(self, device: torch.device, dtype: torch.dtype, layout: torch.memory_format) -> None:
        gradient, image, weight = (
            torch.empty(shape, device=device, dtype=dtype, memory_format=layout)
            for shape in (self.gradient, self.image, self.weight)
        )
        where = (None, self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        GRADIENTS(gradient, image, weight, *where, (*self.wanted, False))


class GradientObserver(TorchDispatchMode):
    """Notes the gradients of two-dimensional convolutions that are taken in here, such as by a count of FLOPs."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[ConvolutionGradient, None] = {}

    def of_batch(self, samples: int) -> list[ConvolutionGradient]:
        """What a step with so many samples asks for, if FLOPs were counted in here."""
        return [kind.times(samples / SAMPLES) for kind in self.kinds]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is GRADIENTS and not args[7] and args[1].dim() == 4:
            gradient, image, weight, _bias, stride, padding, dilation, _transposed, _more, groups, wanted = args
            kind = ConvolutionGradient(
                gradient=tuple(gradient.shape),
                image=tuple(image.shape),
                weight=tuple(weight.shape),
                stride=tuple(stride),
                padding=tuple(padding),
                dilation=tuple(dilation),
                groups=groups,
                wanted=(wanted[0], wanted[1]),
            )
            self.kinds[kind] = None
        return func(*args, **(kwargs or {}))


class _Backwards(torch.autograd.Function):
    """Its gradient is some work."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, work: Callable[[], None]) -> Tensor:
        ctx.work = work
        return start.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.work()
        return gradient, None


def on_backward_thread(work: Callable[[], None], device: torch.device) -> None:
    """Do this where torch computes gradients of that device, and wait for it."""
    start = torch.zeros(1, device=device, requires_grad=True)
    torch.autograd.grad(_Backwards.apply(start, work), start)


def ask_ahead(
    kinds: list[ConvolutionGradient], device: torch.device, dtype: torch.dtype, layout: torch.memory_format
) -> threading.Thread:
    """Each kind once, beside what the caller does next; a backward pass that comes meanwhile waits for it.

    The largest come first: when the first step takes its memory, what is still held here is small.
    """

    def ask() -> None:
        for kind in sorted(kinds, key=lambda one: math.prod(one.image), reverse=True):
            kind.ask(device, dtype, layout)

    def work() -> None:
        beside = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else contextlib.nullcontext()
        with contextlib.suppress(Exception), beside:  # the step itself says what is wrong, if it is
            on_backward_thread(ask, device)

    thread = threading.Thread(target=work, name="gradients-ahead", daemon=True)
    thread.start()
    return thread

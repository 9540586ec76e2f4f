"""The kernels that workloads have in place of their library's implementation of a layer, and where each is a default.

A kernel computes the same function. `kernels=default` turns on what has been shown to pay for the workload, mode,
precision and device; docs/background/performance.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prony_node.contract.errors import RequestError, nearest
from prony_node.contract.kernels import kernel_names
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value

Where = Literal["", "any", "cuda", "cuda-training", "few"]  # few: in steps of few samples on one CUDA device
Settings = Mapping[str, Value]
ATTENTION_ORDER = ("cudnn", "flash", "efficient")  # cuDNN's kernels are written for Hopper
ATTENTION_NAMES = {f"{name}-attention": name for name in (*ATTENTION_ORDER, "math")}


def _anything(requested: Settings, machine: Machine) -> bool:
    return True


@dataclass(frozen=True)
class Kernel:
    """One implementation of a layer, by a name that says what it is."""

    name: str
    help: str
    default: Where = ""  # where kernels=default has it, of the workload that holds it
    mode: str = ""  # train or infer, where it has no meaning in the other
    devices: tuple[str, ...] = ()  # kinds of device that can run it, where not all can
    part_of: str = ""  # another kernel, without which it has no place
    pays: Callable[[Settings, Machine], bool] = _anything  # as a default, with the settings that were asked for

    @property
    def orders_attention(self) -> bool:
        """Whether it says which of torch's attention kernels is asked first."""
        return self.name in ATTENTION_NAMES

    def by_default(self, where: Where) -> Kernel:
        return replace(self, default=where)

    def is_default(self, requested: Settings, mode: str, machine: Machine, few: bool) -> bool:
        on_cuda = machine.device == "cuda" and requested.get("precision") != "fp64"
        there = {
            "": False, "any": True, "cuda": on_cuda, "cuda-training": on_cuda and mode == "train", "few": few,
        }[self.default]  # fmt: skip
        return there and self.mode in ("", mode) and self.pays(requested, machine)


def _compiled(requested: Settings, machine: Machine) -> bool:
    """What the compiler makes one kernel of."""
    return requested.get("compile") != "off"


def _folds(requested: Settings, machine: Machine) -> bool:
    """A folded stem takes even sides, and lays images out channels last; the compiler folds."""
    even = int(requested.get("image_size", 2)) % 2 == 0
    return even and requested.get("memory_format") != "contiguous" and _compiled(requested, machine)


def _fuses(requested: Settings, machine: Machine) -> bool:
    """What cuDNN joins to a convolution was shown to pay in 16 bits, channels last."""
    halves = requested.get("precision", "bf16") in ("bf16", "bf16-pure", "fp16")
    return halves and requested.get("memory_format") != "contiguous" and not machine.rocm


GPUS = ("cuda", "xpu")
COMPILED_NORMS = Kernel(
    "compiled-norms", "batch norms by sums of values and squares, ReLUs by sign, for the compiler",
    mode="train", pays=_compiled,
)  # fmt: skip
FOLDED_STEM = Kernel(
    "folded-stem", "a ResNet's first convolution over two by two pixels at a time: the same sums", pays=_folds
)
FUSED_BLOCKS = Kernel(
    "fused-blocks", "bias, sum and ReLU of residual blocks inside cuDNN's convolutions", mode="infer", pays=_fuses
)
LOW_PRECISION_RESIDUAL = Kernel(
    "low-precision-residual",
    "transformers of images: the residual stream in the layers' precision, patches as one matrix product, attention "
    "of ViT without copies",
)
MATMUL_UPSAMPLING = Kernel("matmul-upsampling", "gradients of bilinear upsampling by matrix products")
COMPILED_DEPTHWISE = Kernel(
    "compiled-depthwise", "depthwise convolutions as one compiled kernel that reads its input once", pays=_compiled
)
BATCHED_ASSIGNMENT = Kernel(
    "batched-assignment", "anchors and boxes matched for a batch at once, where torchvision goes image by image",
    mode="train",
)  # fmt: skip
TRITON_NMS = Kernel(
    "triton-nms", "non-maximum suppression of proposals as one Triton kernel",
    mode="train", devices=GPUS, part_of=BATCHED_ASSIGNMENT.name,
)  # fmt: skip
MASKED_ROI_ALIGN = Kernel(
    "masked-roi-align", "regions pooled from all levels of the pyramid without a wait for the host",
    mode="train", part_of=BATCHED_ASSIGNMENT.name,
)  # fmt: skip
TRITON_DEFORMABLE_ATTENTION = Kernel(
    "triton-deformable-attention", "the sampling of deformable attention as one Triton kernel", devices=GPUS
)
ATTENTIONS = tuple(
    Kernel(name, f"scaled dot-product attention: {what} first", devices=("cuda",))
    for name, what in (
        ("cudnn-attention", "cuDNN's kernel"),
        ("flash-attention", "torch's flash attention"),
        ("efficient-attention", "torch's memory-efficient kernel"),
        ("math-attention", "torch's plain matrix products"),
    )
)
CUDNN_BY_DEFAULT = (ATTENTIONS[0].by_default("cuda"), *ATTENTIONS[1:])


def of_mode(kernels: Sequence[Kernel], mode: str) -> tuple[Kernel, ...]:
    return tuple(kernel for kernel in kernels if kernel.mode in ("", mode))


def attention_order(kernels: Sequence[Kernel], settings: Settings) -> tuple[str, ...]:
    """In which order torch's attention kernels are asked on CUDA; none: torch's own order.

    A workload that offers no choice of them has cuDNN's first with preset=fast.
    """
    if not any(kernel.orders_attention for kernel in kernels):
        return ATTENTION_ORDER if settings.get("preset") == "fast" else ()
    asked = kernel_names(settings.get("kernels"))
    first = next((ATTENTION_NAMES[name] for name in asked if name in ATTENTION_NAMES), None)
    if first is None:
        return ()
    return (first,) if first == "math" else tuple(dict.fromkeys((first, *ATTENTION_ORDER)))  # math can do anything


def check_kernels(workload: str, kernels: Sequence[Kernel], settings: Settings) -> None:
    """Refuse a kernel that the workload has not, or that these settings leave no place for."""
    asked = kernel_names(settings.get("kernels"))
    known = {kernel.name: kernel for kernel in kernels}
    mode = str(settings.get("mode", "train"))
    for name in asked:
        if name not in known:
            raise _unknown(workload, name, list(known))
    for name in asked:
        _check_place(known[name], settings, mode, asked)
    attentions = [name for name in asked if name in ATTENTION_NAMES]
    if len(attentions) > 1:
        raise RequestError(f"{' and '.join(attentions)} cannot both be asked first; give one of them")


def _unknown(workload: str, name: str, known: list[str]) -> RequestError:
    if not known:
        return RequestError(f"kernels={name} is not possible: {workload} has its library's alone")
    guess = nearest(name, known)
    hint = f"did you mean {guess}? " if guess else ""
    return RequestError(f"kernels={name} is not possible: {hint}{workload} has {', '.join(known)}")


def _check_place(kernel: Kernel, settings: Settings, mode: str, asked: Sequence[str]) -> None:
    name = kernel.name
    if kernel.mode not in ("", mode):
        raise RequestError(f"kernels={name} has no meaning with mode={mode}; use mode={kernel.mode} or leave it out")
    kind = str(settings.get("device", "auto")).partition(":")[0]
    if kernel.devices and kind != "auto" and kind not in kernel.devices:
        raise RequestError(f"kernels={name} is for device={' or '.join(kernel.devices)}, not {kind}; leave it out")
    if kernel.devices == GPUS and settings.get("precision") == "fp64":
        raise RequestError(f"kernels={name} has its sums in fp32, so it is not possible with precision=fp64")
    if kernel.part_of and kernel.part_of not in asked:
        raise RequestError(f"kernels={name} is a part of {kernel.part_of}; give kernels={kernel.part_of},{name}")
    if name == FUSED_BLOCKS.name and settings.get("preset", "fast") != "fast":
        raise RequestError(f"kernels={name} has batch norms folded, which preset={settings['preset']} keeps")
    if name == FOLDED_STEM.name and int(settings.get("image_size", 2)) % 2:
        raise RequestError(f"kernels={name} takes pixels two by two: give an even image_size, or leave it out")

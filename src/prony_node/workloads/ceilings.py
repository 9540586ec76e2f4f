"""The operations behind the ceilings: modules that hold their operands and do one thing with them.

The operands stay in the module because a step takes its batch by copying it, which would be measured too. What comes
with a sample is small: it replaces a few values of an operand before each operation, so that each answer is its own
and work that was not done shows in the run's check of outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.task import Batch, Task
from prony_node.workloads.ceilings_config import MIB, attention_flops, conv_flops, copy_bytes, gemm_flops, triad_bytes

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

PROBES = 1024  # elements of a long buffer that are looked at, evenly spread
WIDTHS = {"bf16": 2, "bf16-pure": 2, "fp16": 2}  # bytes of an operand's element; 4 in default, fp32 and tf32
SCALE = 0.5


class CeilingOperation(nn.Module, ABC):
    """One operation a sample. What it answers is a view of what was computed, so that looking at it costs nothing."""

    @abstractmethod
    def operate(self, row: Tensor) -> Tensor:
        """The operation on this sample's row, and what it answers."""

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) == 1:
            return self.operate(rows[0]).unsqueeze(0)
        return torch.stack([self.operate(row).clone() for row in rows])  # the next one may use the same memory


class Gemm(CeilingOperation):
    """a b, the first row of a being the sample's."""

    a: Tensor
    b: Tensor

    def __init__(self, matrix: int) -> None:
        super().__init__()
        self.step = max(1, matrix // 256)
        self.register_buffer("a", torch.randn(matrix, matrix))
        self.register_buffer("b", torch.randn(matrix, matrix) / matrix**0.5)

    def operate(self, row: Tensor) -> Tensor:
        self.a[0].copy_(row)
        return (self.a @ self.b)[:: self.step, :: self.step]


class Conv(CeilingOperation):
    """A 3x3 convolution, the first pixel of the first image being the sample's."""

    images: Tensor
    weight: Tensor

    def __init__(self, images: int, channels: int, image_size: int) -> None:
        super().__init__()
        self.register_buffer("images", torch.randn(images, channels, image_size, image_size))
        self.register_buffer("weight", torch.randn(channels, channels, 3, 3) / (9 * channels) ** 0.5)

    def operate(self, row: Tensor) -> Tensor:
        self.images[0, :, 0, 0].copy_(row)
        return F.conv2d(self.images, self.weight, padding=1)[:: max(1, len(self.images) // 8), :, ::4, ::4]


class Attention(CeilingOperation):
    """Attention without a mask, the first query being the sample's."""

    q: Tensor
    k: Tensor
    v: Tensor

    def __init__(self, sequences: int, heads: int, sequence: int, head_dim: int) -> None:
        super().__init__()
        self.step = max(1, sequence // 64)
        for name in ("q", "k", "v"):
            self.register_buffer(name, torch.randn(sequences, heads, sequence, head_dim))

    def operate(self, row: Tensor) -> Tensor:
        self.q[0, 0, 0].copy_(row)
        return F.scaled_dot_product_attention(self.q, self.k, self.v)[:, :, :: self.step]


class Triad(CeilingOperation):
    """a = b + s c, the elements of b that are looked at being the sample's."""

    a: Tensor
    b: Tensor
    c: Tensor

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.step = elements // PROBES
        self.register_buffer("a", torch.zeros(elements))
        self.register_buffer("b", torch.randn(elements))
        self.register_buffer("c", torch.randn(elements))

    def operate(self, row: Tensor) -> Tensor:
        self.b[:: self.step].copy_(row)
        torch.add(self.b, self.c, alpha=SCALE, out=self.a)
        return self.a[:: self.step]


class HostCopy(CeilingOperation):
    """Bytes from page-locked host memory to the device.

    The sample's values lie where the answer is read until the copy has replaced them.
    """

    target: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.step = size // PROBES
        self.register_buffer("target", torch.zeros(size, dtype=torch.uint8))
        # No buffer of the module: it must stay on the host when the rest goes to the device.
        pinned = self.target.device.type not in ("cpu", "meta")
        self.host = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        if not self.target.is_meta:
            self.host.random_(0, 256)

    def operate(self, row: Tensor) -> Tensor:
        self.target[:: self.step].copy_(row)
        self.target.copy_(self.host, non_blocking=True)
        return self.target[:: self.step]


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    """The task of the ceiling of that name."""
    own = {setting.name: int(settings[setting.name]) for setting in workload.settings}
    width = WIDTHS.get(str(settings.get("precision")), 4)
    makers: dict[str, Callable[[], tuple[int, int, Callable[[], nn.Module]]]] = {
        "gemm": lambda: (gemm_flops(**own), own["matrix"], lambda: Gemm(**own)),
        "conv": lambda: (conv_flops(**own), own["channels"], lambda: Conv(**own)),
        "attention": lambda: (attention_flops(**own), own["head_dim"], lambda: Attention(**own)),
        "memory-bandwidth": lambda: (
            triad_bytes(**own), PROBES, lambda: Triad(own["buffer_mib"] * MIB // width),
        ),
        "host-to-device": lambda: (copy_bytes(**own), PROBES, lambda: HostCopy(own["buffer_mib"] * MIB)),
    }  # fmt: skip
    units, values, model = makers[workload.name]()
    return Task(
        unit=workload.unit,
        units_per_sample=units,
        model=model,
        loss=no_loss,
        predict=lambda module, batch: module(batch[0]),
        sample=lambda generator, count: (torch.rand(count, values, generator=generator, device=generator.device),),
        learning_rate=0.0,
    )


def no_loss(module: nn.Module, batch: Batch) -> Tensor:
    raise AssertionError("a ceiling is not trained; its workload refuses mode=train")

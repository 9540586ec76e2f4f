"""The device's own ceilings, torch-free: one operation each, measured like any workload.

A sample is one operation on operands that lie where the operation needs them; batch_size is how many of them a step
has. The unit is what the operation does, FLOP or bytes, so that throughput is FLOP/s or B/s.

The defaults are large enough that an H200 (132 multiprocessors, 50 MiB of cache, 4.8 TB/s) has nothing to wait for:
each of gemm, conv and attention is about 1.1 TFLOP, a millisecond or more, beside which a launch of some microseconds
is lost; gemm has 2,048 tiles of 128 x 256, 15 and a half rounds of its multiprocessors; the buffers of
memory-bandwidth are twenty times its cache. A CPU gets sizes that take about a second at most.
"""

from __future__ import annotations

from collections.abc import Mapping

from prony_node.contract.settings import Setting, Value
from prony_node.workloads.config import Workload
from prony_node.workloads.image_config import IMAGE_SIZE
from prony_node.workloads.language_config import SEQUENCE

MIB = 2**20
MATRIX = Setting("matrix", "count", "rows and columns of each matrix", least=16)
CHANNELS = Setting("channels", "count", "input and output channels of the convolution", least=8)
IMAGES = Setting("images", "count", "images per convolution")
SEQUENCES = Setting("sequences", "count", "sequences per attention call")
HEADS = Setting("heads", "count", "attention heads")
HEAD_DIM = Setting("head_dim", "count", "width of each head", least=8)
BUFFER = Setting("buffer_mib", "count", "size of each buffer in MiB")


def gemm_flops(matrix: int) -> int:
    """A multiply-add for each row, column and inner index."""
    return 2 * matrix**3


def conv_flops(images: int, channels: int, image_size: int) -> int:
    """Nine taps for each pixel and pair of channels; taps that fall on the padding are counted as done."""
    return 2 * images * 9 * channels**2 * image_size**2


def attention_flops(sequences: int, heads: int, sequence: int, head_dim: int) -> int:
    """Two products, scores and values, over every pair of positions: nothing is masked."""
    return 4 * sequences * heads * sequence**2 * head_dim


def triad_bytes(buffer_mib: int) -> int:
    """Two buffers read and one written; a CPU that reads a line before it writes it moves more, as STREAM does."""
    return 3 * buffer_mib * MIB


def copy_bytes(buffer_mib: int) -> int:
    """What crosses the link."""
    return buffer_mib * MIB


def _ceiling(
    name: str,
    help: str,
    unit: str,
    settings: tuple[Setting, ...],
    fixed: Mapping[str, Value],
    on_cpu: Mapping[str, Value],
    tiny: Mapping[str, Value],
    *,
    memory_gib: float,
    memory_format: str = "contiguous",
    pinned: bool = False,
    flops: float | None = None,
    flops_source: str = "",
) -> Workload:
    return Workload(
        name=name,
        help=help,
        module="prony_node.workloads.ceilings",
        unit=unit,
        parameters=0,
        source="Prony's own: a ceiling of the device",
        batch={"infer/cpu": 1, "infer/accelerator": 1},
        memory_gib={"infer": memory_gib},
        memory_format=memory_format,
        settings=settings,
        # Nothing is there to be fused, and the library's own kernel is what is asked for.
        fixed={"compile": "off", **fixed},
        fixed_on_cpu=on_cpu,
        tiny=tiny,
        operation=True,
        pinned=pinned,
        flops=flops,
        flops_source=flops_source,
    )


CEILINGS = (
    _ceiling(
        "gemm", "product of two square matrices", "FLOP", (MATRIX,),
        {"matrix": 8192}, {"matrix": 2048}, {"matrix": 64},
        memory_gib=2.0, flops=gemm_flops(8192), flops_source="2 matrix^3",
    ),
    _ceiling(
        "conv", "3x3 convolution of images, padded to their size", "FLOP", (IMAGES, CHANNELS, IMAGE_SIZE),
        {"images": 256, "channels": 512, "image_size": 32},
        {"images": 8, "channels": 256, "image_size": 32},
        {"images": 2, "channels": 16, "image_size": 32},
        memory_gib=4.0, memory_format="channels_last",
        flops=conv_flops(256, 512, 32), flops_source="18 images channels^2 image_size^2",
    ),
    _ceiling(
        "attention", "scaled dot-product attention, every position to every other", "FLOP",
        (SEQUENCES, HEADS, SEQUENCE, HEAD_DIM),
        {"sequences": 4, "heads": 32, "sequence": 4096, "head_dim": 128},
        {"sequences": 1, "heads": 8, "sequence": 1024, "head_dim": 128},
        {"sequences": 2, "heads": 2, "sequence": 64, "head_dim": 16},
        memory_gib=4.0, flops=attention_flops(4, 32, 4096, 128),
        flops_source="4 sequences heads sequence^2 head_dim",
    ),
    _ceiling(
        "memory-bandwidth", "triad in device memory, a = b + s c: bytes read and written", "B", (BUFFER,),
        {"buffer_mib": 1024}, {"buffer_mib": 256}, {"buffer_mib": 1},
        memory_gib=8.0,
    ),
    _ceiling(
        "host-to-device", "copy from page-locked host memory to the device", "B", (BUFFER,),
        {"buffer_mib": 256}, {}, {"buffer_mib": 1},
        memory_gib=1.0, pinned=True,
    ),
)  # fmt: skip

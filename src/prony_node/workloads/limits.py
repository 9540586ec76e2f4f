"""Data, sides, shapes and precisions that a workload cannot take, refused before anything starts; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prony_node.contract.errors import RequestError
from prony_node.contract.quality import parse_target
from prony_node.contract.settings import Value
from prony_node.contract.trial import reads_data_set
from prony_node.data.place import FILES_ALONE

if TYPE_CHECKING:
    from prony_node.workloads.config import Workload

# Whose images workers alone decode, and what the device would do.
BY_WORKERS = {"boxes": "cuts images to one size", "masks": "is for JPEGs, and street scenes are PNGs"}


def check_sides(workload: Workload, settings: Mapping[str, Value]) -> None:
    """Of images: what the model cuts them into must go into them."""
    patch, stride = workload.shape.get("patch", 1), workload.shape.get("stride", 1)
    for name, part, why in (
        ("image_size", patch, f"cuts an image into patches of {patch}"),
        ("crop_height", stride, f"answers for squares of {stride}"),
        ("crop_width", stride, f"answers for squares of {stride}"),
    ):
        size = settings.get(name)
        if isinstance(size, int) and size % part:
            raise RequestError(
                f"{name}={size} is not possible: {workload.name} {why} pixels; "
                f"{name}={max(1, round(size / part)) * part} would do"
            )
    if settings.get("stem") == "folded" and int(settings.get("image_size", 2)) % 2:
        raise RequestError("stem=folded takes pixels two by two: give an even image_size, or stem=library")


def check_shapes(workload: Workload, settings: Mapping[str, Value]) -> None:
    """Of a workload whose batches differ in shape, and of boxes, which are numbers of pixels."""
    mode, parts = settings.get("compile", "off"), workload.compiled_parts
    if workload.varies and settings.get("graphs"):
        _check_captured_part(workload, settings)
    if workload.varies and mode != "off" and not (parts and mode in ("default", "reduce-overhead")):
        offered = (
            f"compile=default compiles its {parts} for any shape, reduce-overhead captures them too" if parts else ""
        )
        raise RequestError(
            f"compile={mode} is not possible: no two batches of {workload.name} have the same shape; "
            + (offered or "leave it out")
        )
    kind = str(settings.get("device", "auto")).partition(":")[0]
    for name in ("sampling", "suppression"):
        if settings.get(name) == "kernel" and (kind in ("cpu", "mps") or settings.get("precision") == "fp64"):
            raise RequestError(
                f"{name}=kernel is written for GPUs, with sums in fp32; {name}=library is for any device"
            )
    if settings.get("attention", "library") != "library" and kind in ("cpu", "mps", "xpu"):
        raise RequestError(
            f"attention={settings['attention']} is one of CUDA's kernels; attention=library is for any device"
        )
    if settings.get("blocks") == "fused" and settings.get("preset", "fast") != "fast":
        raise RequestError(f"blocks=fused has batch norms folded, which preset={settings['preset']} leaves as they are")
    for name, own in (("suppression", "kernel"), ("pooling", "masked")):
        if settings.get(name) == own and settings.get("assignment") == "library":
            raise RequestError(f"{name}={own} is of assignment=batched; torchvision's own losses do that themselves")
    if workload.reads == "boxes" and settings.get("precision") == "bf16-pure" and settings.get("mode") != "infer":
        raise RequestError(
            "precision=bf16-pure is not possible: a corner of a box at 600 pixels would be rounded by up to two; "
            "precision=bf16 keeps boxes in fp32"
        )


def _check_captured_part(workload: Workload, settings: Mapping[str, Value]) -> None:
    part = workload.captured_part
    if not part:
        raise RequestError(
            f"graphs=on is not possible: a graph repeats one shape, and no two batches of {workload.name} have the same"
        )
    if settings.get("mode") == "infer":
        raise RequestError(f"graphs=on captures the {part} of {workload.name} in training alone; leave it out")
    if settings.get("recompute"):
        raise RequestError(f"graphs=on captures the {part} of {workload.name}, which recompute=on runs twice; use one")
    if int(settings.get("grad_accumulation", 1)) > 1 or "global_batch" in settings:
        raise RequestError(
            f"graphs=on captures the {part} of {workload.name} with gradients that each backward pass overwrites, "
            "so they cannot be accumulated; use graphs=off"
        )


def check_eight_bits(workload: Workload, settings: Mapping[str, Value]) -> None:
    if settings.get("precision") != "fp8":
        return
    if not workload.has_fp8:
        raise RequestError(f"precision=fp8 is offered for the gpt models alone; {workload.name} has precision=bf16")
    if settings.get("mode") == "infer":
        raise RequestError("precision=fp8 is offered for mode=train alone; use precision=bf16 for inference")


def check_data(workload: Workload, settings: Mapping[str, Value]) -> None:
    """What the workload can read, and what it can learn from that."""
    data = settings.get("data", "device")
    if reads_data_set(settings) and not workload.reads:
        raise RequestError(f"{workload.name} has no way to read a data set; data is device or host")
    if data == "generated" and not workload.generated:
        raise RequestError(f"there is no data=generated for {workload.name}; give a data set that you have, data=PATH")
    if data == "generated" and workload.generated in FILES_ALONE and settings.get("data_format") == "shards":
        raise RequestError(
            f"shards hold images and their classes; what {workload.name} reads is written as data_format=files"
        )
    if workload.reads in BY_WORKERS and settings.get("decode", "cpu") != "cpu":
        raise RequestError(f"decode={settings['decode']} {BY_WORKERS[workload.reads]}; {workload.name} has decode=cpu")
    if workload.reads in BY_WORKERS and settings.get("cache") == "device":
        raise RequestError(f"cache=device is for small sets of pixels; {workload.name} takes cache=memory or off")
    if "tokenizer" in settings and (not reads_data_set(settings) or data == "generated"):
        raise RequestError(f"tokenizer is for texts that you have, and data={data} has none; add data=PATH")
    if "until" in settings:
        if settings.get("phase", "forward") != "forward" or settings.get("mode") == "infer":
            raise RequestError("until is a quality to train to; it has no meaning with mode=infer")
        parse_target(str(settings["until"]), workload.scores)


def check_operation(workload: Workload, settings: Mapping[str, Value]) -> None:
    """Of what a device, or devices together, can do: there is nothing to train and nothing to load."""
    if settings.get("mode") == "train":
        what = "the device itself" if workload.collective is None else "devices together"
        raise RequestError(f"{workload.name} measures what {what} can do, so it has mode=infer alone")
    if settings.get("data", "device") != "device":
        raise RequestError(
            f"{workload.name} works on operands of its own, so there is no data={settings['data']} to load"
        )
    if workload.collective is not None:
        workload.collective(settings)
    if settings.get("batch_size") == "auto":
        raise RequestError(f"{workload.name} gains nothing from memory; batch_size is how many operations a step has")
    kind = str(settings.get("device", "auto")).partition(":")[0]
    if workload.pinned and kind in ("cpu", "mps"):
        raise RequestError(f"{workload.name} copies to a device's own memory; device={kind} has none")

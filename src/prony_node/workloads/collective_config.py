"""What devices do together, torch-free: one collective operation each, over messages from small to large.

Sizes and bandwidths are those of NVIDIA's nccl-tests (its doc/PERFORMANCE.md), so that figures can stand side by side:
the algorithm bandwidth is size over time, and the bus bandwidth is that times a factor, which makes it what a device's
link to the others carried, however many they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Setting, Value, all_devices
from prony_node.workloads.config import Workload

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}  # bytes of an element, in the precisions that a message can have
SIZE, EXAMPLE = r"[1-9][0-9]{0,3}(B|KiB|MiB|GiB)", "a size such as 1KiB, 16MiB or 1GiB"
SMALLEST = Setting("smallest", "text", "smallest message of a collective", pattern=SIZE, example=EXAMPLE)
LARGEST = Setting(
    "largest", "text", "largest message, whose bus bandwidth is the result; sizes double from the smallest",
    pattern=SIZE, example=EXAMPLE,
)  # fmt: skip


@dataclass(frozen=True)
class CollectiveKind:
    """What a collective does, what its size counts, and its bus bandwidth over its algorithm bandwidth."""

    help: str
    size: str
    factor: Callable[[int], Fraction]  # of the number of ranks


def _twice_others(ranks: int) -> Fraction:
    return Fraction(2 * (ranks - 1), ranks)


def _others(ranks: int) -> Fraction:
    return Fraction(ranks - 1, ranks)


def _all(ranks: int) -> Fraction:
    return Fraction(1)


KINDS: dict[str, CollectiveKind] = {
    "allreduce": CollectiveKind("sum over all ranks, on every rank", "of each rank's array", _twice_others),
    "allgather": CollectiveKind("parts of all ranks, on every rank", "of the whole array", _others),
    "reducescatter": CollectiveKind("sum over all ranks, a part of it on each", "of the whole array", _others),
    "alltoall": CollectiveKind("a part from each rank to each other rank", "of all that a rank sends", _others),
    "broadcast": CollectiveKind("from the first rank to all others", "of the array", _all),
    "sendrecv": CollectiveKind("each rank to the next, in a ring", "of what a rank sends", _all),
}


def parse_size(text: Value) -> int:
    """Bytes of `16MiB`."""
    number, unit = re.fullmatch(r"([0-9]+)([A-Za-z]+)", str(text)).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


def message_sizes(settings: Mapping[str, Value]) -> list[int]:
    """Each size the double of the one before, and the largest at the end."""
    size, largest = parse_size(settings["smallest"]), parse_size(settings["largest"])
    sizes = []
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest]


def check_collective(name: str, settings: Mapping[str, Value]) -> None:
    """Refuse what has no meaning for a collective, one device above all."""
    ranks = all_devices(settings)
    if ranks == 1:
        raise RequestError(
            f"{name} is what devices do together, and one alone has nobody to do it with: any number would be that of "
            "a copy in its own memory; add devices=2 or more"
        )
    if "copies" in settings:
        raise RequestError(f"copies share a device, and {name} is between devices; leave it out")
    if settings.get("batch_size", 1) != 1:
        raise RequestError(f"batch_size has no meaning for {name}: a step is one operation on one message")
    if settings.get("graphs") or settings.get("compile", "off") != "off":
        raise RequestError(f"{name} is one call of the communication library: there is nothing to compile or capture")
    precision = settings.get("precision", "fp32")
    if precision not in WIDTHS:
        raise RequestError(f"precision={precision} is not offered for {name}: a message is of {', '.join(WIDTHS)}")
    if str(settings.get("device", "auto")) == "mps":
        raise RequestError(f"{name} is not possible on device=mps, which torch has no communication library for")
    _check_sizes(name, settings, ranks, WIDTHS[str(precision)])


def _check_sizes(name: str, settings: Mapping[str, Value], ranks: int, width: int) -> None:
    if "smallest" in settings and parse_size(settings["smallest"]) < ranks * width:
        raise RequestError(
            f"smallest={settings['smallest']} is not possible: {ranks} ranks need an element of {width} bytes each"
        )
    if not {"smallest", "largest"} <= set(settings):
        return
    if parse_size(settings["smallest"]) > parse_size(settings["largest"]):
        raise RequestError(f"smallest={settings['smallest']} is larger than largest={settings['largest']}")


def _collective(name: str, kind: CollectiveKind) -> Workload:
    return Workload(
        name=name,
        help=f"{kind.help}: bus bandwidth as in nccl-tests; message size {kind.size}",
        module="prony_node.workloads.collective",
        unit="B",
        parameters=0,
        source="Prony's own: what devices do together",
        batch={"infer/cpu": 1, "infer/accelerator": 1},
        memory_gib={"infer": 4.0},
        settings=(SMALLEST, LARGEST),
        fixed={"compile": "off", "graphs": False, "precision": "fp32", "smallest": "1KiB", "largest": "1GiB"},
        fixed_on_cpu={"largest": "16MiB"},
        operation=True,
        collective=lambda settings: check_collective(name, settings),
    )


COLLECTIVES = tuple(_collective(name, kind) for name, kind in KINDS.items())

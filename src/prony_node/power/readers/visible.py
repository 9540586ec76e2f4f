"""Which NVIDIA GPUs a process may use, as CUDA_VISIBLE_DEVICES says. Pure: NVML's answers come in, UUIDs go out.

The rules are those of NVIDIA's CUDA programming guide (environment variables) and MIG user guide: a list of indices, or
of UUIDs that may be cut short as long as they stay unique; what follows the first invalid entry is not visible.
A device named twice makes CUDA refuse the list, so that none is visible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

OLD_SLICE = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+")  # before driver 470


@dataclass(frozen=True)
class Gpu:
    """A GPU in the order of the PCI bus, and the names that each of its MIG slices goes by."""

    uuid: str
    slices: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Visible:
    """What a process may use: whole GPUs and those of which it has a slice, by the GPU's UUID, in CUDA's order."""

    uuids: tuple[str, ...] = ()
    sliced: frozenset[str] = frozenset()
    by_index: bool = False  # then it matters in which order CUDA counts
    note: str = ""


def visible_gpus(text: str | None, gpus: Sequence[Gpu]) -> Visible:
    """The GPUs that CUDA shows for this value of CUDA_VISIBLE_DEVICES; None means that it is not set."""
    if text is None:
        sliced = frozenset(gpu.uuid for gpu in gpus if gpu.slices)
        return Visible(tuple(dict.fromkeys(gpu.uuid for gpu in gpus)), sliced)
    chosen: list[tuple[str, str]] = []  # the GPU and which slice of it
    kind, note = "", ""
    for entry in (part.strip() for part in text.split(",")):
        entry_kind = _kind(entry)
        kind = kind or entry_kind
        found = _find(entry, kind, gpus) if entry_kind == kind else None
        if found is None:
            note = _stopped(text, entry, len(chosen))
            break
        if found in chosen:
            return Visible(note=f"CUDA_VISIBLE_DEVICES={text} names {entry} twice, so CUDA shows no device")
        chosen.append(found)
    uuids = tuple(dict.fromkeys(uuid for uuid, _ in chosen))
    return Visible(uuids, frozenset(uuid for uuid, piece in chosen if piece), kind == "index", note)


def _kind(entry: str) -> str:
    """CUDA does not mix them: a list is of what its first entry is."""
    return next((prefix for prefix in ("GPU-", "MIG-") if entry.startswith(prefix)), "index")


def _find(entry: str, kind: str, gpus: Sequence[Gpu]) -> tuple[str, str] | None:
    """The GPU, and the slice of it or an empty name; None when there is no such device or more than one."""
    if kind == "index":
        digits = re.match(r"\+?([0-9]{1,9})", entry)  # CUDA reads the digits at the front and drops the rest
        index = int(digits[1]) if digits else len(gpus)
        return _first_of(gpus[index]) if index < len(gpus) else None
    if kind == "GPU-":
        found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return _first_of(found[0]) if len(found) == 1 else None
    pieces = [(gpu.uuid, names[0]) for gpu in gpus for names in gpu.slices if any(n.startswith(entry) for n in names)]
    exact = [(gpu.uuid, names[0]) for gpu in gpus for names in gpu.slices if entry in names]
    if exact or pieces:
        found_pieces = exact or pieces
        return found_pieces[0] if len(found_pieces) == 1 else None
    old = OLD_SLICE.fullmatch(entry)
    # A GPU whose slices cannot be listed: the old form still names the GPU.
    unlisted = [gpu.uuid for gpu in gpus if not gpu.slices and old and gpu.uuid == old[1]]
    return (unlisted[0], entry) if unlisted else None


def _first_of(gpu: Gpu) -> tuple[str, str]:
    """A GPU in MIG mode that is named as a whole gives its first slice."""
    return gpu.uuid, gpu.slices[0][0] if gpu.slices else ""


def _stopped(text: str, entry: str, count: int) -> str:
    if not count:
        return f"CUDA_VISIBLE_DEVICES={text!r} shows no GPU of this node"
    return f"CUDA_VISIBLE_DEVICES={text!r} has no valid device from {entry!r} on: CUDA shows the {count} before it"

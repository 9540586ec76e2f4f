"""memory_cap: hold this process to so much memory, as on a smaller device, so that running out of it is real."""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from dataclasses import dataclass

import torch

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value
from prony_node.measure.memory import free_and_total, gib, process_bytes

GIB = 2**30
M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE_BLOCK = 128 * 2**10  # where malloc begins: to say so keeps it from keeping ever larger blocks
PARALLEL_GRAIN = 2**16  # elements a thread, so that all threads take part


@dataclass(frozen=True)
class Room:
    """What this process may take from here on, capped or not; None: nobody tells."""

    device: torch.device
    room: int | None
    before: int = 0  # bytes that were held already and do not count

    def held_at_most(self) -> int | None:
        """The most of it that was held so far: what the allocator reserved, or of a CPU the memory that was touched."""
        if self.device.type != "cpu":
            module = torch.get_device_module(self.device)
            return int(module.max_memory_reserved(self.device)) if hasattr(module, "max_memory_reserved") else None
        peak, of_files = process_bytes("VmHWM"), process_bytes("RssFile")
        return None if peak is None or of_files is None else max(0, peak - of_files - self.before)


def cap_memory(device: torch.device, cap_gib: Value | None, share: float = 1.0) -> Room:
    """Cap what this process may take: `share` of that cap, or of all that is free when there is none."""
    known = free_and_total(device)
    if cap_gib is None and (share == 1.0 or device.type == "cpu" or not _can_cap(device)):
        return Room(device, None if known is None else known[0])
    if known is None or not _can_cap(device):
        raise RequestError(f"memory_cap={cap_gib} cannot be held on {device.type}: torch offers no cap there")
    wanted = known[0] if cap_gib is None else int(cap_gib) * GIB
    if wanted > known[0]:
        raise RequestError(f"memory_cap={cap_gib} (GiB) is more than the {gib(known[0])} that are free on {device}")
    room = int(share * wanted)
    if device.type == "cpu":
        return _cap_host(device, room)
    torch.get_device_module(device).set_per_process_memory_fraction(room / known[1], device)
    return Room(device, room)


def _can_cap(device: torch.device) -> bool:
    if device.type == "cpu":
        return process_bytes("VmData") is not None
    return hasattr(torch.get_device_module(device), "set_per_process_memory_fraction")


def _cap_host(device: torch.device, room: int) -> Room:
    """The kernel refuses private memory beyond what is held now and the room."""
    torch.ones(torch.get_num_threads() * PARALLEL_GRAIN).add_(1)  # the threads' stacks are not the model's
    # Left to itself malloc keeps freed blocks, another amount in each run, and the cap would count those too.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    held, touched = process_bytes("VmData") or 0, process_bytes("RssAnon") or 0
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = held + room if hard == resource.RLIM_INFINITY else min(held + room, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return Room(device, room, touched)

"""Binding a rank as `bind` asks, once at its start: all that it starts from then on, loaders too, inherits it."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

from prony_node.contract.core_lists import cpu_list
from prony_node.parallel.neighbours import bindings
from prony_node.parallel.topology import pci_address, read_slot, read_topology

SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # the number of the system call; libc has no function for it
PREFERRED = 1  # MPOL_PREFERRED: another node's memory once this one's is full, where a strict policy would end the run
WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def bind_rank(
    bind: str, local_rank: int, devices: list[str], allowed: list[int], root: Path = Path("/")
) -> dict[str, Any]:
    """Bind this rank; `devices` are those of all ranks of this node, in their order. What was done, for the record."""
    if bind == "none":
        return {"bind": bind, "cores": None, "node": None, "memory": None, "reason": "not asked for"}
    addresses = [None if device == "cpu" else pci_address(device) for device in devices]
    slots = [
        None if device == "cpu" else read_slot(root, address)
        for device, address in zip(devices, addresses, strict=True)
    ]
    found = bindings(bind, read_topology(root), frozenset(allowed), slots)[local_rank]
    done: dict[str, Any] = {"bind": bind, "cores": None, "node": found.node, "memory": None, "reason": found.reason}
    if addresses[local_rank]:
        done["device"] = addresses[local_rank]
    if found.cores is None:
        return done
    if not bind_threads(found.cores):
        return {**done, "node": None, "reason": "this system has no way to bind a process to cores"}
    done["cores"] = cpu_list(sorted(found.cores))
    refused = (
        "its cores lie on several NUMA nodes, or on one without memory: memory was not bound"
        if found.node is None
        else prefer_memory(found.node)
    )
    if not refused:
        done["memory"] = f"of node {found.node} first"
    return {**done, "reason": "; ".join(filter(None, (found.reason, refused)))}


def bind_threads(cores: frozenset[int]) -> bool:
    """Every thread that this process has by now, and so all that will be started; False where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, cores)
    for thread in Path("/proc/self/task").glob("[0-9]*"):  # libraries have started some while they were imported
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:
            continue  # it has ended meanwhile
    return True


def prefer_memory(node: int) -> str:
    """Take memory of this node first, here and in all that is started from here; else a sentence why not."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return f"memory was not bound: how is not known for {platform.system()} on {platform.machine()}"
    mask = (ctypes.c_ulong * (node // WORD_BITS + 1))()
    mask[node // WORD_BITS] = 1 << (node % WORD_BITS)
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    answer = libc.syscall(
        ctypes.c_long(number), ctypes.c_long(PREFERRED), mask, ctypes.c_ulong(len(mask) * WORD_BITS + 1)
    )
    if answer == 0:
        return ""
    return (
        f"memory was not bound: the kernel refused it ({os.strerror(ctypes.get_errno())}), as some containers make it"
    )

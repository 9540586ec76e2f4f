"""Memory: what a model needs at least, what was free, what was used at most, and a cap on it."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from prony_node.backends.torch.task import Task
from prony_node.contract.errors import RequestError, is_digits
from prony_node.contract.record import Metric, measured, missing
from prony_node.contract.settings import Value, devices_of_model, replicas
from prony_node.measure.batch_search import OutOfMemory


def free_and_total(device: torch.device) -> tuple[int, int] | None:
    """Bytes free and in all, to this process: of the device, or of the host for a CPU, and within its cap."""
    if device.type == "cpu":
        return _within_limit(_host_memory())
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(device)
    share = module.get_per_process_memory_fraction(device) if hasattr(module, "get_per_process_memory_fraction") else 1
    if share < 1:
        allowed = int(share * total)
        return min(int(free), max(0, allowed - int(module.memory_reserved(device)))), allowed
    return int(free), int(total)


def _within_limit(known: tuple[int, int] | None) -> tuple[int, int] | None:
    """The same where the kernel lets this process have no more than so much (a memory_cap, or a shell's ulimit)."""
    limit, held = resource.getrlimit(resource.RLIMIT_DATA)[0], process_bytes("VmData")
    if known is None or held is None or limit == resource.RLIM_INFINITY:
        return known
    return min(known[0], max(0, limit - held)), min(known[1], limit)


def process_bytes(name: str) -> int | None:
    """A figure of this process (VmData, VmRSS), as Linux tells it; None elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _host_memory() -> tuple[int, int] | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    free, total = values.get("MemAvailable", 0), values.get("MemTotal", 0)
    limit, used = (_group_bytes(name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None and limit < total:
        return min(free, max(0, limit - used)), limit
    return free, total


def _group_bytes(name: str) -> int | None:
    """A figure of the control group that limits a container, seen from inside of it; None when there is none."""
    try:
        text = (Path("/sys/fs/cgroup") / name).read_text().strip()
    except OSError:
        return None
    return int(text) if is_digits(text) else None


def state_bytes(parameters: int, settings: dict[str, Value]) -> int:
    """What weights, gradients and optimizer state take: less than any run of this trial needs."""
    precision = str(settings["precision"])
    width = {"bf16-pure": 2, "fp64": 8}.get(precision, 4)
    if settings["mode"] == "infer":
        return parameters * (2 if precision in ("bf16", "fp16", "bf16-pure") else width)
    copies = {"sgd": 3, "adam": 4, "adamw": 4}[str(settings["optimizer"])]
    shares = replicas(settings) if settings.get("parallel") == "fsdp" else 1
    return parameters * width * copies // (shares * devices_of_model(settings))


def parameters_of(task: Task) -> int:
    """Counted on a model that takes no memory: for one whose size nobody stated."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in task.model().parameters())


def refuse_hopeless(parameters: int | None, settings: dict[str, Value], device: torch.device) -> None:
    """Say at once what would otherwise take minutes, or the host's OOM killer, to find out; None: not known."""
    known = free_and_total(device)
    if parameters is None:
        return
    needed = state_bytes(parameters, settings)
    if known and needed > known[0]:
        what = "the weights" if settings["mode"] == "infer" else "weights, gradients and optimizer state"
        raise OutOfMemory(f"{what} alone need {gib(needed)}; {free_words(device, settings.get('memory_cap'))}")


def free_words(device: torch.device, cap_gib: Value | None = None) -> str:
    known = free_and_total(device)
    if known is None:
        return f"how much was free on {device} is not known"
    of = gib(known[1]) if cap_gib is None else f"memory_cap={cap_gib} GiB"
    return f"{gib(known[0])} of {of} were free on {device}"


def gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def reset_peak(device: torch.device) -> None:
    if device.type != "cpu":
        module = torch.get_device_module(device)
        if hasattr(module, "reset_peak_memory_stats"):
            module.reset_peak_memory_stats(device)


def memory_metrics(device: torch.device) -> dict[str, Metric]:
    peak_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    metrics = {"peak_memory_host": measured(peak_host, "B", scope="rank process", source="getrusage")}
    module = torch.get_device_module(device)
    if device.type == "cpu" or not hasattr(module, "max_memory_allocated"):
        reason = f"{device.type} has no allocator that counts; see peak_memory_host"
        return metrics | {"peak_memory": missing(reason), "peak_memory_reserved": missing(reason)}
    source = "torch's allocator, from the first step on"
    allocated, reserved = module.max_memory_allocated(device), module.max_memory_reserved(device)
    return metrics | {
        "peak_memory": measured(allocated, "B", scope="one device", source=source),
        "peak_memory_reserved": measured(reserved, "B", scope="one device", source=source),
    }


GIB = 2**30
M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE_BLOCK = 128 * 2**10  # where malloc begins: to say so keeps it from keeping ever larger blocks
PARALLEL_GRAIN = 2**16  # elements a thread, so that all threads take part


@dataclass(frozen=True)
class TorchMemoryBudget:
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


def cap_memory(device: torch.device, cap_gib: Value | None, share: float = 1.0) -> TorchMemoryBudget:
    """Cap what this process may take: `share` of that cap, or of all that is free when there is none."""
    known = free_and_total(device)
    if cap_gib is None and (share == 1.0 or device.type == "cpu" or not _can_cap(device)):
        return TorchMemoryBudget(device, None if known is None else known[0])
    if known is None or not _can_cap(device):
        raise RequestError(f"memory_cap={cap_gib} cannot be held on {device.type}: torch offers no cap there")
    wanted = known[0] if cap_gib is None else int(cap_gib) * GIB
    if wanted > known[0]:
        raise RequestError(f"memory_cap={cap_gib} (GiB) is more than the {gib(known[0])} that are free on {device}")
    room = int(share * wanted)
    if device.type == "cpu":
        return _cap_host(device, room)
    torch.get_device_module(device).set_per_process_memory_fraction(room / known[1], device)
    return TorchMemoryBudget(device, room)


def _can_cap(device: torch.device) -> bool:
    if device.type == "cpu":
        return process_bytes("VmData") is not None
    return hasattr(torch.get_device_module(device), "set_per_process_memory_fraction")


def _cap_host(device: torch.device, room: int) -> TorchMemoryBudget:
    """The kernel refuses private memory beyond what is held now and the room."""
    torch.ones(torch.get_num_threads() * PARALLEL_GRAIN).add_(1)  # the threads' stacks are not the model's
    # Left to itself malloc keeps freed blocks, another amount in each run, and the cap would count those too.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    held, touched = process_bytes("VmData") or 0, process_bytes("RssAnon") or 0
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = held + room if hard == resource.RLIM_INFINITY else min(held + room, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return TorchMemoryBudget(device, room, touched)

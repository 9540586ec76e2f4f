"""The machine while a run is going on: about one sample a second, taken by the supervisor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from prony_node.facts import amd, nvidia
from prony_node.facts.cgroup import CpuLimits, cgroup_facts
from prony_node.facts.container import pid_namespace
from prony_node.facts.cpu import CPUS
from prony_node.facts.host import hypervisor_facts, load_average
from prony_node.facts.memory import parse_meminfo
from prony_node.facts.nvidia_errors import ErrorWatch
from prony_node.facts.pci import link_facts
from prony_node.facts.processes import all_processes, allowed_times, cpu_times, memory_of, our_roots, own_tree
from prony_node.facts.tree import Missing, Tree, parse_cpu_list, parse_keys, whole_number
from prony_node.facts.watch_checks import watch_checks

__all__ = ["Watch", "watch_checks"]

ERRORS_EVERY_S = 5.0
MOST_CPUS_ASKED = 8  # asking a CPU for its clock may interrupt it, so ask a few


class Watch:
    """Samples of the device that a rank computes on, and of the host around it. Nothing here raises."""

    def __init__(self, device_facts: dict[str, Any], root: Path = Path("/")) -> None:
        self.tree = Tree(root)
        self.kind = str(device_facts.get("kind") or "cpu")
        self.address: str | None = (device_facts.get("pci") or {}).get("address")
        self.roots = our_roots()
        self.reason: str | None = None
        self.nvml: nvidia.Nvml | None = None
        self.handle: Any = None
        self.whole: Any = None
        self.errors: ErrorWatch | None = None
        self._errors_due_s = 0.0
        self.limits = CpuLimits(self.tree)
        self.memory_limit: int | None = cgroup_facts(self.tree, Missing())["memory_limit_bytes"]
        is_amd = bool((device_facts.get("torch") or {}).get("hip"))
        self.is_amd = self.kind == "cuda" and is_amd
        if self.kind == "cuda" and not is_amd:
            self._open_nvml(device_facts.get("uuid"))
        elif self.kind not in ("cpu", "cuda"):
            self.reason = f"no reader for {self.kind} devices yet"
        self.invisible = self._why_invisible(device_facts.get("virtualisation"))
        allowed = parse_cpu_list(parse_keys(self.tree.text("/proc/self/status")).get("Cpus_allowed_list"))
        self.allowed = set(allowed)
        self.cpus = allowed[:: max(1, -(-len(allowed) // MOST_CPUS_ASKED))]

    def sample(self) -> dict[str, Any]:
        """What holds now; a value that cannot be read is null."""
        sample: dict[str, Any] = {"t_s": time.monotonic()}
        for part in (self._host, self._device):
            try:
                sample |= part()
            except Exception as error:  # a sensor that fails costs its values, not the run
                sample["reason"] = f"{type(error).__name__}: {error}"
        return sample

    def last_sample(self) -> dict[str, Any]:
        """After the rank has ended: what counts errors, once more."""
        self._errors_due_s = 0.0
        return self.sample()

    def _open_nvml(self, uuid: str | None) -> None:
        self.nvml, self.reason = nvidia.open_nvml()
        if self.nvml is None:
            return
        self.handle = self.nvml.find(uuid, self.address)
        if self.handle is None:
            self.nvml, self.reason = None, "NVML knows no device of this UUID or PCI address"
        else:
            _, self.whole = nvidia.whole_device(self.nvml, self.handle)
            self.errors = ErrorWatch(self.nvml, self.whole)

    def _why_invisible(self, virtualisation: str | None) -> str | None:
        """Why other processes on the device might not be seen from here; None when all are."""
        namespace = pid_namespace(self.tree)
        if namespace != "first":
            return "this container does not see the machine's other processes"
        virtual = hypervisor_facts(self.tree, Missing())
        if virtual["present"] and virtualisation != "passthrough":
            # A device handed through whole belongs to this machine alone; another may be shared outside.
            return "this virtual machine does not see what others do with the device"
        return None

    def _host(self) -> dict[str, Any]:
        counters = dict(
            line.split(maxsplit=1)
            for line in (self.tree.text("/proc/vmstat") or "").splitlines()
            if line.startswith(("pswpin ", "pswpout "))
        )
        average = load_average(self.tree)
        processes = all_processes(self.tree)
        self.ours = own_tree(processes, self.roots)
        return {
            "swap_in_pages": whole_number(counters.get("pswpin")),
            "swap_out_pages": whole_number(counters.get("pswpout")),
            "load_average": average[0] if average else None,
            **cpu_times(self.tree, self.ours, processes),
            **allowed_times(self.tree, self.allowed),
            **self.limits.sample(),
            **self._memory(),
        }

    def _memory(self) -> dict[str, Any]:
        """Host memory of the ranks and what they started, and how much more they may have."""
        own = memory_of(self.tree, self.ours - self.roots)
        free = parse_meminfo(self.tree.text("/proc/meminfo")).get("MemAvailable")
        if free is not None and self.memory_limit is not None:
            free = min(free, max(0, self.memory_limit - (own or 0)))
        return {"memory_own_bytes": own, "memory_free_bytes": free}

    def _device(self) -> dict[str, Any]:
        if self.kind == "cpu":
            return self._cpu()
        values: dict[str, Any] = {
            "sm_clock_mhz": None, "memory_clock_mhz": None, "temperature_c": None, "power_w": None,
            "throttle": None, "foreign_pids": None, "pcie_generation": None, "pcie_width": None,
        }  # fmt: skip
        processes = None
        if self.nvml is not None:
            values |= nvidia.sample(self.nvml, self.handle, self.whole)
            processes = values.pop("processes")
            if None in (values["throttle"], values["sm_clock_mhz"], processes):
                values["reason"] = next(iter(self.nvml.reasons.values()), None)
        elif self.is_amd:
            values |= amd.sample(self.tree, self.address)
            link = link_facts(self.tree, self.address)
            values |= {"pcie_generation": link["generation_now"], "pcie_width": link["width_now"]}
        if self.errors is not None and time.monotonic() >= self._errors_due_s:
            values |= self.errors.read()
            self._errors_due_s = time.monotonic() + ERRORS_EVERY_S
        if processes is not None:
            foreign = [one for one in processes if one["pid"] not in self.ours]
            values["foreign_pids"] = sorted(one["pid"] for one in foreign)
            values["own_seen"] = len(foreign) < len(processes)
            if self.whole is self.handle:  # a slice's processes do not account for the whole GPU's memory
                values["unaccounted_bytes"] = _unaccounted(values.get("memory_used_bytes"), processes)
        if self.invisible:
            values["invisible"] = self.invisible
        if self.reason:
            values["reason"] = self.reason
        return values

    def _cpu(self) -> dict[str, Any]:
        clocks_khz = [self.tree.number(f"{CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in self.cpus]
        known_khz = [clock for clock in clocks_khz if clock is not None]
        events = [
            self.tree.number(f"{CPUS}/cpu{cpu}/thermal_throttle/{scope}_throttle_count")
            for cpu in self.cpus
            for scope in ("core", "package")
        ]
        known_events = [count for count in events if count is not None]
        return {
            "cpu_clock_mhz": max(known_khz) / 1000 if known_khz else None,
            "cpu_throttle_events": sum(known_events) if known_events else None,
        }


def _unaccounted(used_bytes: Any, processes: list[dict[str, Any]]) -> int | None:
    """Device memory in use that no process in sight owns."""
    owned = [one["memory_bytes"] for one in processes]
    if not isinstance(used_bytes, int) or not owned or None in owned:
        return None
    return max(0, used_bytes - int(sum(owned)))

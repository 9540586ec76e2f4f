"""CPU time that a rank and its loader workers take while something is measured."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

from prony_node.contract.record import Metric, measured, missing


class CpuUsage:
    """CPU time from here to `metric()`, of this process and of the children that live then."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._began = time.perf_counter()
        self._own_s = time.process_time()
        self._workers_s = self._workers()

    def _workers(self) -> dict[int, float]:
        found = {}
        for child in multiprocessing.active_children():
            seconds = _cpu_seconds(child.pid) if child.pid else None
            if child.pid and seconds is not None:
                found[child.pid] = seconds
        return found

    def metric(self) -> Metric:
        elapsed_s = time.perf_counter() - self._began
        if elapsed_s <= 0:
            return missing("no time passed")
        used_s = time.process_time() - self._own_s
        for pid, seconds in self._workers().items():
            used_s += seconds - self._workers_s.get(pid, 0.0)
        scope = f"rank and loader workers, of {self._cores} cores"
        return measured(used_s / elapsed_s / self._cores, "1", scope=scope, source="CPU time of the processes")


def _cpu_seconds(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None

"""A pynvml that replays a recording of an H200, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

RECORDED = Path(__file__).with_name("nvidia_h200.csv")
WALL_S = 1_794_717_121.4  # wall clock minus monotonic clock on the recorded machine
BUFFER_S = 2.4
ALL_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NVMLError(Exception):
    """What the bindings raise: NVML's number in `value`, its words as text."""

    def __init__(self, value: int, words: str) -> None:
        super().__init__(words)
        self.value = value


def refuse(value: int, words: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        raise NVMLError(value, words)

    return call


NOT_SUPPORTED = refuse(3, "Not Supported")
LOST = refuse(15, "GPU is lost")


def union(value: Any, kind: int = 1) -> SimpleNamespace:
    """As the C union does, the other members hold rubbish."""
    members = dict.fromkeys(ALL_TYPES, 0xDEAD) | {ALL_TYPES[kind]: value}
    return SimpleNamespace(**members)


class FakeNvml(ModuleType):
    """One H200 by default; `gpus` are handles, and a handle is the GPU's UUID. Functions can be set or deleted."""

    def __init__(self, *gpus: str, name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0)) -> None:
        super().__init__("pynvml")
        self.gpus = gpus or ("GPU-5f1c0a3e-0000-4000-8000-000000000001",)
        self.now_s = 34.5
        self.step_s = 0.0  # of the wall clock, since the recording
        self.stamp_step_s = 0.0  # of the clock that stamps
        self.step_at_s = 0.0  # from when on stamps follow it
        self.value_type = 1
        self.closed = 0
        self.traces: dict[str, list[tuple[float, int]]] = {}
        for line in RECORDED.read_text().splitlines():
            if not line.startswith("#"):
                at, field, value = line.split(",")
                self.traces.setdefault(field, []).append((float(at), int(value)))
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: len(self.gpus)
        self.nvmlDeviceGetHandleByIndex = lambda index: self.gpus[index]
        self.nvmlDeviceGetUUID = lambda handle: handle
        self.nvmlDeviceGetName = lambda handle: name
        self.nvmlDeviceGetCudaComputeCapability = lambda handle: capability
        self.nvmlDeviceGetMigMode = lambda handle: [0, 0]
        self.nvmlDeviceGetEnforcedPowerLimit = lambda handle: 700_000
        self.nvmlDeviceGetComputeRunningProcesses = lambda handle: []
        self.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: []
        self.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=0, memory=0)
        self.nvmlDeviceGetTotalEnergyConsumption = lambda handle: self.at("energy")
        self.nvmlDeviceGetPowerUsage = lambda handle: self.at("185")
        self.nvmlDeviceGetFieldValues = self._field_values
        self.nvmlDeviceGetSamples = self._samples

    def clocks(self) -> tuple[float, float]:
        return self.now_s + WALL_S + self.step_s, self.now_s

    def at(self, field: str) -> int:
        return [value for at_s, value in self.traces[field] if at_s <= self.now_s][-1]

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def _field_values(self, handle: str, wanted: list[Any]) -> list[SimpleNamespace]:
        """As the H200 answers: error 3 for the module, the same energy for every scope."""
        found = []
        for one in wanted:
            number, scope = one if isinstance(one, tuple) else (one, 0)
            if str(number) in self.traces and scope == 0:
                found.append(SimpleNamespace(nvmlReturn=0, valueType=1, value=union(self.at(str(number)))))
            elif number == 83:
                found.append(SimpleNamespace(nvmlReturn=0, valueType=3, value=union(self.at("energy"), 3)))
            else:
                found.append(SimpleNamespace(nvmlReturn=3, valueType=1, value=union(0)))
        return found

    def stamped(self) -> list[tuple[int, int]]:
        """What lies in the driver's buffer now, with its stamps."""
        rows = []
        for at_s, value in self.traces["buffer"]:
            if self.now_s - BUFFER_S < at_s <= self.now_s:
                step_s = self.stamp_step_s if at_s > self.step_at_s else 0.0
                rows.append((round((at_s + WALL_S + step_s) * 1e6), value))
        return rows

    def _samples(self, handle: str, kind: int, since_us: int) -> tuple[int, list[SimpleNamespace]]:
        assert kind == 0, "0 is the total power"
        rows = [row for row in self.stamped() if row[0] > since_us]
        if not rows:
            raise NVMLError(6, "Not Found")
        return self.value_type, [SimpleNamespace(timeStamp=us, sampleValue=union(v, self.value_type)) for us, v in rows]

"""Errors of an NVIDIA device that come up during a run: XIDs, remapped rows, uncorrected memory errors."""

from __future__ import annotations

from typing import Any

from prony_node.facts.nvidia import Nvml

# Numbers of NVML's interface, which it keeps for ever.
XID_EVENT = 0x8
UNCORRECTED, SINCE_DRIVER_LOAD = 1, 0
DOUBLE_BIT_ERROR = 1
ASKED = (
    "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPages", "nvmlDeviceGetTotalEccErrors",
)  # fmt: skip
MOST_EVENTS = 16  # that are read at once


class ErrorWatch:
    """Reads counters, and the XIDs that came since it was asked last. Nothing here waits or raises."""

    def __init__(self, nvml: Nvml, whole: Any) -> None:
        self._nvml, self._whole = nvml, whole
        self._events = nvml.ask("nvmlEventSetCreate")
        if self._events is not None:
            nvml.ask("nvmlDeviceRegisterEvents", whole, XID_EVENT, self._events)
            if "nvmlDeviceRegisterEvents" in nvml.reasons:
                self._events = None
        self._forget_reasons()

    def read(self) -> dict[str, Any]:
        """Counters so far and new XIDs; what NVML does not tell is null."""
        rows = self._nvml.ask("nvmlDeviceGetRemappedRows", self._whole)
        known = isinstance(rows, (tuple, list)) and len(rows) == 4
        retired = None if known else self._nvml.ask("nvmlDeviceGetRetiredPages", self._whole, DOUBLE_BIT_ERROR)
        errors = {
            "ecc_uncorrected": self._nvml.ask(
                "nvmlDeviceGetTotalEccErrors", self._whole, UNCORRECTED, SINCE_DRIVER_LOAD
            ),
            "remapped_rows": int(rows[0]) + int(rows[1]) if known else None,
            "remap_pending": bool(rows[2]) if known else None,
            "remap_failed": bool(rows[3]) if known else None,
            "retired_pages": len(retired) if isinstance(retired, list) else None,
            "xids": self._new_xids(),
        }
        self._forget_reasons()
        return errors

    def _new_xids(self) -> list[int] | None:
        if self._events is None:
            return None
        found: list[int] = []
        for _ in range(MOST_EVENTS):
            event = self._nvml.ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:  # none is waiting, which NVML calls a timeout
                waited = "timeout" in self._nvml.reasons.get("nvmlEventSetWait_v2", "").lower()
                return found if waited or found else None
            if getattr(event, "eventType", 0) & XID_EVENT:
                found.append(int(getattr(event, "eventData", 0)))
        return found

    def _forget_reasons(self) -> None:
        """A reason here is not why a clock or a list of processes could not be read."""
        for function in ASKED:
            self._nvml.reasons.pop(function, None)

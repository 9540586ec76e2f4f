"""NVIDIA's management library, for everything that asks it: facts, power readers, the cores near a device.

`ask` and the questions about power raise NvmlError where NVML refuses or answers with nonsense. `try_ask` answers None
and keeps the reason, for facts that are null where they cannot be had.
"""

from __future__ import annotations

import contextlib
from typing import Any

# Numbers of NVML's interface, which it keeps for ever (nvml.h).
FIELD_AVERAGE, FIELD_INSTANT = 185, 186
GPU_ALONE, MODULE = 0, 1  # scopes of a power field
TOTAL_POWER_SAMPLES = 0
ERROR_NOT_FOUND, ERROR_INSUFFICIENT_SIZE = 6, 7
VALUE_TYPES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
THROTTLE = {
    0x1: "idle", 0x2: "application clocks", 0x4: "power limit", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake", 0x100: "display clocks",
    0x200: "board limit", 0x400: "reliability",
}  # fmt: skip
MOST_W = 100e3  # NVML's word for "not available" is the largest number of its type; no GPU is near this


class NvmlError(Exception):
    """NVML cannot be had, or did not answer a question; the message is a sentence, `said` NVML's own words."""

    def __init__(self, sentence: str, said: str = "", code: int | None = None) -> None:
        super().__init__(sentence)
        self.said = said or sentence
        self.code = code


class Nvml:
    """NVML, started; ended by `close`."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.mig_uuids: set[str] = set()
        self.reasons: dict[str, str] = {}  # by function: why `try_ask` had no answer

    def ask(self, function: str, *arguments: Any) -> Any:
        call = getattr(self.module, function, None)
        if call is None:
            known = f"this nvidia-ml-py does not know {function}"
            raise NvmlError(f"{known}; a newer one may", known)
        try:
            answer = call(*arguments)
        except Exception as error:  # NVML's own errors, and ctypes' where driver and bindings disagree
            said = str(error) or type(error).__name__
            raise NvmlError(
                f"NVML refuses {function}: {said}", f"NVML: {said}", getattr(error, "value", None)
            ) from error
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer

    def try_ask(self, function: str, *arguments: Any) -> Any:
        """The answer; None, and the reason in `reasons`, where there is none."""
        try:
            return self.ask(function, *arguments)
        except NvmlError as error:
            self.reasons[function] = error.said
            return None

    def find(self, uuid: str | None, address: str | None) -> Any:
        """The handle of a device, by UUID and else by PCI address; never by index, which may differ."""
        for known in uuid_forms(uuid):
            handle = self.try_ask("nvmlDeviceGetHandleByUUID", known)
            if handle is not None:
                return handle
        return self.try_ask("nvmlDeviceGetHandleByPciBusId", address) if address else None

    def handles(self) -> tuple[dict[str, Any], list[str]]:
        """The GPUs that may be opened, by UUID in the order of the PCI bus, and a note on those that may not."""
        try:
            count = int(self.ask("nvmlDeviceGetCount"))
        except (NvmlError, TypeError, ValueError, OverflowError) as error:
            raise NvmlError(f"NVML does not say how many GPUs there are: {error}") from error
        found, refused = {}, ""
        for index in range(min(count, 1024)):
            try:
                handle = self.ask("nvmlDeviceGetHandleByIndex", index)
                found[self._uuid(handle)] = handle
            except NvmlError as error:
                refused = str(error)
        closed = count - len(found)
        return found, [f"{closed} of {count} GPUs may not be opened: {refused}"] if closed else []

    def _uuid(self, handle: Any) -> str:
        uuid = self.ask("nvmlDeviceGetUUID", handle)
        if not isinstance(uuid, str) or not uuid:
            raise NvmlError(f"NVML answers a UUID with {str(uuid)[:40]!r}")
        return uuid

    def slices(self, uuid: str, handle: Any) -> tuple[tuple[str, ...], ...]:
        """The names of each MIG slice, new form and old; none when the GPU is not sliced."""
        names: list[tuple[str, ...]] = []
        try:
            now, _ = self.ask("nvmlDeviceGetMigMode", handle)
            if now != 1:
                return ()
            self.mig_uuids.add(uuid)
            count = int(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle))
        except (NvmlError, TypeError, ValueError, OverflowError):  # a GPU that cannot be sliced refuses the question
            return ()
        for index in range(min(count, 64)):
            try:
                piece = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
                new = self._uuid(piece)
                where = [self.ask(f"nvmlDeviceGet{what}InstanceId", piece) for what in ("Gpu", "Compute")]
            except NvmlError:  # fewer slices than could be
                continue
            names.append((new, f"MIG-{uuid}/{where[0]}/{where[1]}"))
        return tuple(names)

    def is_mig(self, uuid: str) -> bool:
        return uuid in self.mig_uuids

    def name(self, handle: Any) -> str:
        try:
            return str(self.ask("nvmlDeviceGetName", handle))
        except NvmlError:
            return "NVIDIA GPU"

    def capability(self, handle: Any) -> tuple[int, int] | None:
        try:
            major, minor = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
            return int(major), int(minor)
        except (NvmlError, TypeError, ValueError, OverflowError):
            return None

    def energy_j(self, handle: Any) -> float:
        return _number(self.ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e15, "energy in mJ") / 1000

    def usage_w(self, handle: Any) -> float:
        return _watts(self.ask("nvmlDeviceGetPowerUsage", handle))

    def field_w(self, handle: Any, number: int, scope: int = GPU_ALONE) -> float:
        """A power field; of the GPU it is asked without scope, which bindings before that word also understand."""
        values = self.ask("nvmlDeviceGetFieldValues", handle, [(number, scope) if scope else number])
        try:
            value = values[0]
            code = value.nvmlReturn
            answer = getattr(value.value, VALUE_TYPES[value.valueType]) if code == 0 else None
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise NvmlError(f"NVML answers field {number} in a form that is not known: {error}") from error
        if answer is None:
            raise NvmlError(f"NVML refuses field {number} of scope {scope} with its error {code}")
        return _watts(answer)

    def samples(self, handle: Any, since_us: int) -> list[tuple[int, float]]:
        """Stamps in microseconds of the wall clock, and watts, oldest first; empty when there is nothing new."""
        try:
            kind, rows = self.ask("nvmlDeviceGetSamples", handle, TOTAL_POWER_SAMPLES, since_us)
            found = [(int(row.timeStamp), getattr(row.sampleValue, VALUE_TYPES[kind])) for row in rows]
        except NvmlError as lost:
            if lost.code in (ERROR_NOT_FOUND, ERROR_INSUFFICIENT_SIZE):
                return []
            raise
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise NvmlError(f"NVML answers its power samples in a form that is not known: {error}") from error
        good = [(stamp, value / 1000) for stamp, value in found if 0 < stamp < 2**64 and _is_power(value)]
        if found and not good:
            raise NvmlError(f"NVML's power samples hold no power: {str(found[-1][1])[:40]!r} in mW")
        return good

    def pids(self, handle: Any) -> list[int] | None:
        """Of compute and graphics processes that NVML shows here; None when it refuses both lists."""
        pids: set[int] = set()
        refused = 0
        for kind in ("Compute", "Graphics"):
            try:
                pids |= {int(one.pid) for one in self.ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)}
            except (NvmlError, TypeError, ValueError, AttributeError, OverflowError):
                refused += 1
        return None if refused == 2 else sorted(pids)

    def computing(self, handle: Any) -> int | None:
        """How many processes compute on it, as far as NVML shows them here."""
        try:
            return len(self.ask("nvmlDeviceGetComputeRunningProcesses", handle))
        except (NvmlError, TypeError):
            return None

    def throttle(self, handle: Any) -> list[str] | None:
        """What holds the clocks back, in words."""
        bits = self.try_ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self.try_ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)  # its name before driver 535
        return throttle_words(bits)

    def utilisation_percent(self, handle: Any) -> int | None:
        try:
            percent = int(self.ask("nvmlDeviceGetUtilizationRates", handle).gpu)
            return percent if 0 <= percent <= 100 else None
        except (NvmlError, TypeError, ValueError, AttributeError, OverflowError):
            return None

    def limit_w(self, handle: Any) -> float | None:
        try:
            return _watts(self.ask("nvmlDeviceGetEnforcedPowerLimit", handle))
        except NvmlError:
            return None

    def close(self) -> None:
        with contextlib.suppress(NvmlError):  # nothing is left that it could be told
            self.ask("nvmlShutdown")


def open_nvml() -> Nvml:
    """NVML ready to be asked; NvmlError with the reason where it cannot be had."""
    try:
        import pynvml
    except Exception as error:  # absent, or a broken installation
        why = f"nvidia-ml-py cannot be imported ({type(error).__name__}: {error}); install it to read NVIDIA GPUs"
        raise NvmlError(why) from error
    nvml = Nvml(pynvml)
    try:
        nvml.ask("nvmlInit")
    except NvmlError as error:
        raise NvmlError(f"NVML does not start: {error.said.removeprefix('NVML: ')}") from error
    return nvml


def throttle_words(bits: Any) -> list[str] | None:
    """What these bits of NVML say; None for what is no set of bits."""
    if not isinstance(bits, int):
        return None
    unknown = bits & ~sum(THROTTLE)
    words = [word for bit, word in THROTTLE.items() if bits & bit]
    return [*words, f"unknown reason 0x{unknown:x}"] if unknown else words


def uuid_forms(uuid: str | None) -> list[str]:
    """torch writes a bare UUID; NVML wants to be told whether it is a GPU or a slice of one."""
    if not uuid:
        return []
    return [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]


def _is_power(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and bool(0 <= value <= MOST_W * 1000)  # not-a-number is in no range


def _watts(value: Any) -> float:
    return _number(value, MOST_W * 1000, "power in mW") / 1000


def _number(value: Any, most: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise NvmlError(f"NVML answers {what} with {str(value)[:40]}, which is none")
    return float(value)

"""What defaults depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What the defaults depend on, as found on the machine."""

    device: str  # cpu, cuda, xpu, mps
    memory_gib: float | None = None  # of the device
    cores: int = 1
    rocm: bool = False  # the device is called cuda, its libraries are AMD's

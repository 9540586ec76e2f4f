"""memory_cap is a cap: of torch's allocator on a device, of the kernel on a CPU; where there is none it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prony_node.backends.torch import memory
from prony_node.backends.torch.memory import cap_memory
from prony_node.backends.torch.out_of_memory import out_of_memory_in
from prony_node.contract import RequestError

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
GIB, MIB = 2**30, 2**20
SRC = Path(__file__).parents[4] / "src"


class Allocator:
    """Torch's module of a device with 80 GiB, of which 60 are free."""

    def __init__(self) -> None:
        self.fraction, self.reserved = 1.0, 0

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 60 * GIB, 80 * GIB

    def set_per_process_memory_fraction(self, fraction: float, device: torch.device) -> None:
        assert isinstance(fraction, float)
        assert 0 < fraction <= 1
        self.fraction = fraction

    def get_per_process_memory_fraction(self, device: torch.device) -> float:
        return self.fraction

    def memory_reserved(self, device: torch.device) -> int:
        return self.reserved

    def max_memory_reserved(self, device: torch.device) -> int:
        return self.reserved


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found = Allocator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: found)
    return found


def test_a_cap_is_a_part_of_the_devices_memory(allocator: Allocator) -> None:
    room = cap_memory(CUDA, 20)
    assert (room.room, allocator.fraction) == (20 * GIB, 0.25)
    allocator.reserved = 5 * GIB
    assert room.held_at_most() == 5 * GIB
    assert memory.free_words(CUDA, 20) == "15.0 GiB of memory_cap=20 GiB were free on cuda:0"


def test_a_try_leaves_a_little_of_the_cap_or_of_what_is_free(allocator: Allocator) -> None:
    assert cap_memory(CUDA, 20, 0.5).room == 10 * GIB
    assert allocator.fraction == 0.125
    allocator.fraction = 1.0
    assert cap_memory(CUDA, None, 0.5).room == 30 * GIB
    assert allocator.fraction == 0.375


def test_nothing_is_capped_unasked(allocator: Allocator) -> None:
    assert cap_memory(CUDA, None).room == 60 * GIB
    assert allocator.fraction == 1.0
    assert memory.free_and_total(CUDA) == (60 * GIB, 80 * GIB)


def test_a_cap_above_what_is_free_is_refused(allocator: Allocator) -> None:
    with pytest.raises(RequestError, match=r"memory_cap=70 \(GiB\) is more than the 60\.0 GiB that are free on cuda:0"):
        cap_memory(CUDA, 70)


def test_a_device_without_caps_refuses_one_and_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    older = SimpleNamespace(mem_get_info=lambda device: (6 * GIB, 8 * GIB))
    monkeypatch.setattr(torch, "get_device_module", lambda device: older)
    with pytest.raises(RequestError, match="memory_cap=4 cannot be held on xpu: torch offers no cap there"):
        cap_memory(torch.device("xpu", 0), 4)
    assert cap_memory(torch.device("xpu", 0), None, 0.5).room == 6 * GIB
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    assert cap_memory(torch.device("mps"), None).room is None


def output_under_cap(code: str) -> str:
    """What this code prints under a cap of 1 GiB, in a process of its own, since a limit cannot be taken back."""
    start = (
        f"import sys; sys.path.insert(0, {str(SRC)!r})\n"
        "from prony_node.backends.torch.out_of_memory import avoid_reservations\n"
        "avoid_reservations()\n"
        "import torch; from prony_node.backends.torch.memory import cap_memory\n"
        "torch.set_num_threads(2); room = cap_memory(torch.device('cpu'), 1)\n"
    )
    return subprocess.run([sys.executable, "-c", start + code], stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the cap of a CPU is Linux's")
def test_the_kernel_holds_a_cpu_to_its_cap() -> None:
    """What is freed does not count any more."""
    printed = output_under_cap(
        "for _ in range(3): held = torch.ones(int(0.9 * 2**28)); del held\n"
        "held = [torch.ones(25_000) for _ in range(7_000)]; del held\n"  # small ones, 0.65 GiB in all
        "print(room.room, room.held_at_most())\n"
        "try: torch.empty(int(1.02 * 2**28))\n"
        "except RuntimeError as error: print(error)\n"
    )
    figures, said = printed.split("\n", 1)
    room, held = map(int, figures.split())
    assert room == GIB
    assert 0.89 * GIB < held < 1.05 * GIB
    assert out_of_memory_in(RuntimeError(said))


def test_a_cpu_without_figures_of_its_process_has_no_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_and_total", lambda device: (8 * GIB, 8 * GIB))
    monkeypatch.setattr(memory, "process_bytes", lambda name: None)
    with pytest.raises(RequestError, match="memory_cap=4 cannot be held on cpu"):
        cap_memory(CPU, 4)


def broken_capture() -> Exception:
    """What comes out when memory runs out inside a capture: the end of the capture fails in its turn."""
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        return error


def test_an_error_that_memory_led_to_is_known_as_such() -> None:
    error = broken_capture()
    assert "out of memory" not in str(error)
    assert "Tried to allocate 2 GiB" in str(out_of_memory_in(error))
    unrelated = RuntimeError("shapes differ")
    unrelated.__context__, unrelated.__suppress_context__ = error, True
    assert not out_of_memory_in(unrelated)


def test_a_library_that_fails_is_short_of_memory_only_where_the_allocator_refused(monkeypatch: Any) -> None:
    error = RuntimeError("FIND was unable to find an engine to execute this computation")
    assert not out_of_memory_in(error)  # as for a convolution that the library does not have
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": 0})
    assert not out_of_memory_in(error)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": 2})
    assert out_of_memory_in(error)
    assert not out_of_memory_in(RuntimeError("shapes differ"))

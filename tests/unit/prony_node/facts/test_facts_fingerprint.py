"""If these fail, a finished trial runs twice, or one from another machine passes for ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prony_node.facts import fingerprint
from prony_node.facts.software import device_uuids, machine_identity
from prony_node.facts.tree import Tree

Machine = Callable[[str], Path]


def change(root: Path, name: str, old: str, new: str) -> None:
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_two_short_hashes_that_stay(machine: Machine) -> None:
    root = machine("grace_hopper")
    first = fingerprint(root)
    assert all(re.fullmatch("[0-9a-f]{16}", str(own)) for own in (first.machine, first.software))
    change(root, "proc/loadavg", "0.12", "9.99")
    change(root, "proc/meminfo", "MemAvailable:   588000000", "MemAvailable:   1")
    change(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3375000", "81000")
    assert fingerprint(root) == first


def test_another_gpu_is_another_machine_but_the_same_software(machine: Machine) -> None:
    root = machine("grace_hopper")
    first = fingerprint(root)
    change(root, "proc/driver/nvidia/gpus/0009:01:00.0/information", "GPU-1111", "GPU-9999")
    second = fingerprint(root)
    assert second.machine != first.machine
    assert second.software == first.software


def test_another_driver_is_other_software_on_the_same_machine(machine: Machine) -> None:
    root = machine("grace_hopper")
    first = fingerprint(root)
    change(root, "proc/driver/nvidia/version", "570.86.15", "580.65.06")
    second = fingerprint(root)
    assert second.machine == first.machine
    assert second.software != first.software


def test_amd_devices_count(machine: Machine) -> None:
    assert device_uuids(Tree(machine("x86_two_sockets"))) == ["9391f6f9d8e41a23"]


def test_a_gpu_nobody_opened_is_asked_for_through_nvml(
    machine: Machine, nvml: Callable[..., dict[str, Any]], monkeypatch: Any
) -> None:
    root = machine("grace_hopper")
    change(
        root,
        "proc/driver/nvidia/gpus/0009:01:00.0/information",
        "GPU-11111111-2222-3333-4444-555555555555",
        "GPU-????????-????-????-????-????????????",
    )
    nvml()
    monkeypatch.setattr(Tree, "live", property(lambda self: True))
    assert machine_identity(Tree(root)).devices == ("GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",)

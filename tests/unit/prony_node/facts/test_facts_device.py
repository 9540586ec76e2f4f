"""If these fail, a record misses or misstates the device, or a refusing driver ends the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prony_node.backends.torch.facts import device_facts, properties_facts
from prony_node.contract.facts import DeviceFacts, DeviceProcess, MissingFact, PowerLimits
from prony_node.contract.typed import decode, encode
from prony_node.facts.device import DevicePair, amd_facts, counts_as, merged, nvidia_facts, nvidia_links
from prony_node.facts.tree import Missing, Tree
from prony_node.nvml import throttle_words, uuid_forms

Nvml = Callable[..., dict[str, Any]]
UUID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


def test_cpu_device() -> None:
    facts = device_facts("cpu")
    assert facts.counts_as == "the host's CPUs"
    assert facts.torch.version
    assert facts.torch.threads >= 1
    json.dumps(encode(facts), allow_nan=False)


def test_a_device_that_is_not_here_is_reasons_not_an_exception() -> None:
    for name in ("cuda:99", "nonsense", "xpu:0", "cuda:x"):
        facts = device_facts(name)
        assert facts.uuid is None
        assert facts.missing


def test_h200(nvml: Nvml) -> None:
    nvml()
    missing = Missing()
    facts = nvidia_facts(UUID, None, missing)
    assert facts.uuid == f"GPU-{UUID}"
    assert facts.counts_as == "one GPU"
    assert (facts.driver, facts.driver_cuda) == ("580.65.06", "13.0")
    assert facts.pci.address == "0000:65:00.0"
    assert facts.power_limit == PowerLimits(set_w=700, enforced_w=700, default_w=700, min_w=200, max_w=700)
    assert (facts.ecc, facts.mig, facts.persistence) == ("on", "off", "on")
    assert facts.temperatures_c == {"gpu": 34, "memory": 38, "slowdown_at": 90}
    assert facts.clocks.sm_application_mhz is None
    assert encode(facts)["clocks"]["sm_application_mhz"] is None
    assert decode(DeviceFacts, encode(facts)) == facts
    assert missing.entries == [MissingFact("ApplicationsClock", "NVML: Not Supported")]


def test_a_mig_slice_says_so_and_takes_limits_from_its_gpu(nvml: Nvml) -> None:
    asked: list[Any] = []

    def limit(handle: str) -> int:
        asked.append(handle)
        return 700000

    nvml(
        nvmlDeviceIsMigDeviceHandle=1,
        nvmlDeviceGetHandleByUUID=lambda uuid: "slice",
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle="gpu0",
        nvmlDeviceGetPowerManagementLimit=limit,
        nvmlDeviceGetMigMode=[1, 1],
    )
    facts = nvidia_facts(f"MIG-{UUID}", None, Missing())
    assert facts.counts_as == "one MIG slice of a GPU"
    assert facts.mig == "on"
    assert asked == ["gpu0"]


def test_permission_denied_everywhere_is_null_with_reasons(nvml: Nvml) -> None:
    names = [name for name in nvml() if name not in ("nvmlInit", "nvmlDeviceGetHandleByUUID")]
    nvml(**{name: {"error": "Insufficient Permissions"} for name in names})
    missing = Missing()
    facts = nvidia_facts(UUID, None, missing)
    assert facts.driver is None
    assert facts.processes is None
    assert facts.energy_counter is False
    assert all(entry.reason == "NVML: Insufficient Permissions" or "does not know" in entry.reason
               for entry in missing.entries)  # fmt: skip


def test_bindings_older_than_the_question(nvml: Nvml) -> None:
    nvml(nvmlSystemGetConfComputeState=None)
    missing = Missing()
    assert nvidia_facts(UUID, None, missing).confidential_compute is None
    assert any("does not know" in entry.reason for entry in missing.entries)


@pytest.mark.usefixtures("no_nvml")
def test_no_nvml_is_one_reason() -> None:
    missing = Missing()
    assert nvidia_facts(UUID, None, missing) == DeviceFacts()
    assert "nvidia-ml-py cannot be imported" in missing.entries[0].reason


def test_no_driver_is_one_reason(nvml: Nvml) -> None:
    nvml(nvmlInit={"error": "NVML Shared Library Not Found"})
    missing = Missing()
    assert nvidia_facts(UUID, None, missing) == DeviceFacts()
    assert missing.entries[0].reason == "NVML does not start: NVML Shared Library Not Found"


def test_torch_writes_a_uuid_without_its_kind() -> None:
    assert uuid_forms(UUID) == [f"GPU-{UUID}", f"MIG-{UUID}"]
    assert uuid_forms("MIG-1") == ["MIG-1"]


def test_throttle_reasons_as_words() -> None:
    assert throttle_words(0) == []
    assert throttle_words(0x4 | 0x40) == ["power limit", "hardware thermal"]
    assert throttle_words(1 << 40) == ["unknown reason 0x10000000000"]
    assert throttle_words(None) is None


def test_torch_properties_and_the_links_from_sysfs(machine: Callable[[str], Path]) -> None:
    properties = SimpleNamespace(
        name="NVIDIA GH200 480GB", uuid=UUID, total_memory=5, major=9, minor=0, multi_processor_count=132,
        pci_domain_id=9, pci_bus_id=1, pci_device_id=0,
    )  # fmt: skip
    facts = merged(properties_facts(properties), DeviceFacts(), Tree(machine("grace_hopper")))
    assert (facts.capability, facts.architecture) == ("9.0", "sm_90")
    assert facts.pci.address == "0009:01:00.0"
    assert (facts.pci.generation_now, facts.pci.width_now, facts.pci.numa_node) == (5, 1, 0)


def test_amd_die(machine: Callable[[str], Path]) -> None:
    tree, missing = Tree(machine("x86_two_sockets")), Missing()
    facts = amd_facts(tree, "0000:c1:00.0", "AMD Instinct MI250X", missing)
    assert facts.counts_as == "one die of an MI250"
    assert facts.uuid == "9391f6f9d8e41a23"
    assert (facts.clocks.sm_now_mhz, facts.clocks.sm_max_mhz) == (800, 1700)
    assert facts.power_limit.set_w == 560
    assert facts.temperatures_c == {"edge": 41, "junction": 45}
    assert facts.processes == (DeviceProcess(777),)
    assert counts_as("AMD Instinct MI300X", "CPX") == "one CPX partition of a GPU"


def test_links_between_two_gpus(nvml: Nvml) -> None:
    nvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu{index}",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetNvLinkState=lambda handle, link: int(link < 18),
        nvmlDeviceGetTopologyCommonAncestor=50,
        nvmlDeviceGetP2PStatus=0,
    )
    links = nvidia_links(Missing())
    assert [device.nvlinks_active for device in links.devices] == [18, 18]
    assert links.pairs == (DevicePair(("GPU-gpu0", "GPU-gpu1"), True, "across NUMA nodes"),)

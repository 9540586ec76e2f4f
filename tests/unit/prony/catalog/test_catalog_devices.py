"""A wrong peak makes a wrong utilisation, which is worse than none."""

from __future__ import annotations

import re

import pytest

from prony.catalog import devices, find_device, peaks

# Names as torch gives them, and the device of the catalog that each is.
NAMES = {
    "NVIDIA A100-SXM4-40GB": "A100 SXM 40 GB",
    "A100-SXM4-40GB": "A100 SXM 40 GB",
    "NVIDIA A100-PCIE-40GB": "A100 PCIe 40 GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80 GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80 GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM 80 GB",
    "NVIDIA H100 PCIe": "H100 PCIe 80 GB",
    "NVIDIA H100 NVL": "H100 NVL 94 GB",
    "NVIDIA H200": "H200 SXM 141 GB",
    "NVIDIA H200 NVL": "H200 NVL 141 GB",
    "NVIDIA GH200 480GB": "the Hopper GPU (96 GB HBM3)",
    "NVIDIA GH200 120GB": "the Hopper GPU (96 GB HBM3)",
    "NVIDIA GH200 144G HBM3e": "the Hopper GPU (144 GB HBM3e)",
    "NVIDIA B200": "B200 of an HGX board",
    "NVIDIA L40S": "L40S",
    "NVIDIA L4": "L4",
    "Tesla V100-SXM2-16GB": "V100 SXM2",
    "Tesla V100-SXM2-32GB": "V100 SXM2",
    "Tesla V100-PCIE-16GB": "V100 PCIe",
    "Tesla V100S-PCIE-32GB": "V100S PCIe",
    "Tesla T4": "T4",
    "NVIDIA GeForce RTX 4090": "GeForce RTX 4090",
    "NVIDIA GeForce RTX 3090": "GeForce RTX 3090",
    "NVIDIA A40": "A40",
    "NVIDIA A10": "A10",
    "AMD Instinct MI210": "MI210",
    "AMD Instinct MI250X": "one of the two dies of an MI250X",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X VF": "MI300X",
    "AMD Instinct MI300A": "MI300A",
    "AMD Instinct MI325X": "MI325X",
    "Intel(R) Data Center GPU Max 1550": "one of the two stacks of a Max 1550",
}
# Near names of other devices, or of a part of one.
STRANGERS = [
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-SXM-64GB", "NVIDIA A10G", "NVIDIA A16", "NVIDIA L40",
    "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GB200",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20", "AMD Instinct MI250X / MI250", "AMD Instinct MI100",
    "Intel(R) Data Center GPU Max 1100", "Apple M3", "", "x NVIDIA H200",
]  # fmt: skip
PRECISIONS = {"fp32", "tf32", "bf16", "fp16", "fp8"}


@pytest.mark.parametrize("name", NAMES)
def test_torch_name_finds_its_device(name: str) -> None:
    device = find_device(name)
    assert device is not None
    assert device.device.startswith(NAMES[name])


@pytest.mark.parametrize("name", STRANGERS)
def test_unknown_device_has_no_peak(name: str) -> None:
    assert find_device(name) is None
    assert not [peak for peak in peaks() if re.search(peak.device, name)]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_matches_two_devices(name: str) -> None:
    assert len([device for device in devices() if device.is_named(name)]) == 1


def test_every_device_has_a_test_name() -> None:
    tested = [find_device(name) for name in NAMES]
    assert [device.device for device in devices() if device not in tested] == []


def test_entries_are_plausible() -> None:
    for device in devices():
        assert set(device.tflops) <= PRECISIONS
        assert re.search(r"20\d\d", device.source), device.source
        assert 100 < device.memory_gb_s < 10_000
        assert device.tflops["fp32"] <= device.tflops.get("tf32", device.tflops["fp32"]) <= device.tflops["fp16"]
        assert device.tflops.get("bf16", device.tflops["fp16"]) == device.tflops["fp16"]
        if "fp8" in device.tflops:  # dense: fp8 doubles fp16, it does not quadruple it
            assert device.tflops["fp8"] == pytest.approx(2 * device.tflops["fp16"], rel=0.02)


def test_plan_gets_a_peak_for_each_precision_setting() -> None:
    found = {peak.precision: peak for peak in peaks() if re.search(peak.device, "NVIDIA H200")}
    assert found["bf16"].flops == pytest.approx(989.5e12)
    assert found["bf16-pure"].flops == found["bf16"].flops
    assert found["fp8"].flops == 2 * found["bf16"].flops
    assert found["fp32"].flops == pytest.approx(67e12)
    assert "H200" in found["bf16"].source


def test_old_device_has_no_bf16_peak() -> None:
    found = {peak.precision for peak in peaks() if re.search(peak.device, "Tesla V100-SXM2-16GB")}
    assert found == {"fp32", "fp16"}

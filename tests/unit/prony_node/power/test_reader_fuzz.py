"""If these fail, an odd byte in a file of the kernel or in a program's answer ends a run that was measuring well.

Whatever stands there, a reader answers with a number that can be, with Unavailable or with SensorLost.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_machine import write_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from prony_node.power.readers import cray, grace, intel_gpu, rapl
from prony_node.power.readers.ipmi import parse_reading
from prony_node.power.readers.redfish import Refused, checked_url, parse, parse_members, parse_power
from prony_node.power.readers.slurm import check_alone, parse_config, parse_node_json, parse_node_text
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable, as_number, plausible_j, plausible_w

ODD = [
    "",
    "0",
    "1",
    "-1",
    "nan",
    "inf",
    "1e400",
    "1_0",
    "٣",
    "0x10",
    "N/A",
    "package-0",
    "package-1-die-0",
    "dram",
    "psys",
    "core",
    "power_meter",
    "xe",
    "i915",
    "card",
    "pkg",
    "Module Power Socket 0",
    "Grace Power Socket 0",
    "CPU Power Socket ٣",
    "5 J 7 us",
    "0 J",
    "5 W 7 us",
    "٣ J 1 us",
    "PCI_SLOT_NAME=0000:03:00.0\n",
    "vendor_id : GenuineIntel",
]
CONTENTS = st.sampled_from([*ODD, "9" * 400, "1\x002", "model : ²\ncpu family : 6"]).map(str.encode) | st.binary(
    max_size=40
)

# Trees that work, synthesised from documented formats: what is odd is laid over them.
TREES: dict[Callable[[Path], PowerReader], dict[str, str]] = {
    rapl.open_reader: {
        **{
            f"/sys/class/powercap/{zone}/{file}": content
            for zone, name in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "dram"), ("intel-rapl:1", "package-1"))
            for file, content in (("name", name), ("energy_uj", "5000000"), ("max_energy_range_uj", "262143328850"))
        },
        "/sys/class/powercap/intel-rapl-mmio:0/name": "package-0",
        "/sys/class/powercap/intel-rapl-mmio:0/energy_uj": "1",
        "/sys/class/powercap/intel-rapl:2/name": "psys",
        "/sys/class/powercap/intel-rapl:2/energy_uj": "7000000",
        "/sys/class/powercap/intel-rapl:٣/name": "package-3",
        "/proc/cpuinfo": "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 106\n",
    },
    grace.open_reader: {
        f"/sys/class/hwmon/hwmon{number}/{file}": content
        for number, info in enumerate(("Module Power Socket 0", "Grace Power Socket 0", "SysIO Power Socket 0"))
        for file, content in (
            ("name", "power_meter"),
            ("device/power1_average", "90000000"),
            ("device/power1_average_interval", "50"),
            ("device/power1_oem_info", info),
        )
    },
    cray.open_reader: {
        **{
            f"/sys/cray/pm_counters/{part}energy": "5000 J 1416590204112961 us"
            for part in ("", "cpu_", "memory_", "accel0_", "accel1_", "capped_", "accel٣_")
        },
        "/sys/cray/pm_counters/startup": "1",
        "/sys/cray/pm_counters/freshness": "1",
        "/sys/cray/pm_counters/raw_scan_hz": "10",
        "/sys/devices/system/cpu/cpu0/topology/physical_package_id": "0",
    },
    intel_gpu.open_reader: {
        f"/sys/class/drm/{card}/device/{file}": content
        for card, address in (("card0", "0000:03:00.0"), ("card1", "0000:83:00.0"), ("card0-DP-1", "none"))
        for file, content in (
            ("uevent", f"DRIVER=xe\nPCI_SLOT_NAME={address}"),
            ("hwmon/hwmon0/name", "xe"),
            ("hwmon/hwmon0/energy1_input", "8000000"),
            ("hwmon/hwmon0/energy1_label", "card"),
            ("hwmon/hwmon0/energy2_input", "5000000"),
            ("hwmon/hwmon0/energy2_label", "pkg"),
        )
    },
}


def answers(reader: PowerReader) -> None:
    assert len({sensor.id for sensor in reader.sensors}) == len(reader.sensors) > 0
    for sensor in reader.sensors:
        assert sensor.part not in sensor.contains
        assert sensor.evidence == "documented format"
        with suppress(SensorLost):
            value = reader.read(sensor)
            assert isinstance(value, float)
            assert math.isfinite(value)
            assert value >= 0.0
    reader.close()


@pytest.mark.parametrize("open_reader", TREES, ids=lambda opener: opener.__module__.rpartition(".")[2])
def test_a_broken_tree_is_a_reader_or_a_reason(open_reader: Callable[[Path], PowerReader]) -> None:
    names = st.sampled_from(sorted(TREES[open_reader]))

    @settings(max_examples=40)
    @given(
        st.dictionaries(names, CONTENTS | st.none(), max_size=10),
        st.dictionaries(names, CONTENTS, max_size=6),
    )
    def opens_and_reads(first: dict[str, bytes | None], then: dict[str, bytes]) -> None:
        laid_over = {**TREES[open_reader], **first}
        with tempfile.TemporaryDirectory() as folder:
            root = write_tree(Path(folder), {name: text for name, text in laid_over.items() if text is not None})
            with suppress(Unavailable):
                reader = open_reader(root)
                answers(reader)
                write_tree(root, then)
                answers(reader)

    opens_and_reads()


PIECES = [
    "Instantaneous power reading",
    "Power reading state is",
    "Sampling period",
    "activated",
    " : ",
    ":",
    " Watts",
    "220",
    "0",
    "CurrentWatts=",
    "ConsumedJoules=",
    "n/s",
    "OverSubscribe=",
    "NO",
    "NumNodes=1",
    "NumCPUs=",
    "CPUAlloc=",
    "7",
    "٣",
    "²",
    "AcctGatherEnergyType",
    "AcctGatherNodeFreq",
    " = ",
    "\n",
    "acct_gather_energy/ipmi",
    "30 sec",
    "\t",
    " ",
    "99999999999999999999999999",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=80)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = [
    "nodes",
    "energy",
    "current_watts",
    "consumed_energy",
    "last_collected",
    "number",
    "set",
    "Members",
    "@odata.id",
    "PowerControl",
    "PowerConsumedWatts",
    "PowerWatts",
    "EnergykWh",
    "Reading",
    "Links",
]
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(TEXTS)
def test_text_of_programs_is_a_number_or_a_reason(text: str) -> None:
    with suppress(SensorLost):
        assert 0.0 < parse_reading(text) <= 1e6
    said = parse_node_text(text)
    assert said.power_w is None or 0.0 < said.power_w <= 1e6
    with suppress(Unavailable):
        plugin, period_s = parse_config(text)
        assert plugin
        assert period_s > 0.0
    with suppress(Unavailable):
        check_alone(text, text)


@given(DOCUMENTS)
def test_json_of_any_shape_is_numbers_or_a_reason(document: Any) -> None:
    text = json.dumps(document)
    with suppress(SensorLost):
        said = parse_node_json(text)
        assert said.energy_j is None or 0.0 < said.energy_j <= 1e15
    assert all(isinstance(name, str) for name in parse_members(text))
    for resource in ("EnvironmentMetrics", "Power"):
        for value in parse_power(resource, text):
            number = as_number(value)
            assert number is None or math.isfinite(number)


@given(LEAVES, LEAVES | st.dictionaries(st.sampled_from(["set", "number"]), LEAVES), LEAVES)
def test_a_nodes_energy_of_any_type_is_a_number_or_none(joules: Any, watts: Any, collected: Any) -> None:
    energy = {"consumed_energy": joules, "current_watts": watts, "last_collected": collected}
    said = parse_node_json(json.dumps({"nodes": [{"energy": energy}]}))
    assert said.collected_unix_s is None or said.collected_unix_s > 0.0


@given(TEXTS | st.sampled_from(['{"a": 1e99999999999999999999}', '{"a": -Infinity}', "[" * 9000, "1" * 9000, "\ud800"]))
def test_what_is_not_json_is_refused(text: str) -> None:
    with suppress(Refused):
        parse(text)
    with suppress(SensorLost):
        parse_node_json(text)


@given(st.text(max_size=40) | st.builds("{}{}".format, st.sampled_from(["https://", "http://"]), st.text(max_size=20)))
def test_an_address_is_safe_or_refused(url: str) -> None:
    with suppress(Unavailable):
        base = checked_url(url)
        assert base.startswith(("https://", "http://127.", "http://localhost", "http://["))
        assert "@" not in base


@given(LEAVES | st.integers(10**18, 10**400))
def test_nothing_implausible_passes(value: Any) -> None:
    with suppress(SensorLost):
        assert 0.0 <= plausible_w(value, "it") <= 1e6
    with suppress(SensorLost):
        assert 0.0 <= plausible_j(value, "it") <= 1e15

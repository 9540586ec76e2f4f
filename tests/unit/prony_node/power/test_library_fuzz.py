"""Odd answers of vendors' libraries: a reader says Unavailable or SensorLost, and never reads nonsense as power."""

from __future__ import annotations

import math
import os
import plistlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from fake_nvml import ALL_TYPES, FakeNvml, NVMLError
from hypothesis import given, settings
from hypothesis import strategies as st

from prony_node.power.readers import amd, apple, graphcore, habana, nvidia
from prony_node.power.sensor import KINDS, PowerReader, Reading, SensorLost, Unavailable, number_in

ROOT = Path("/nowhere")
VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

odd_numbers = st.sampled_from(
    [0, -1, -0.5, 0xFFFF, 0xFFFFFFFF, 2**64 - 1, 10**400, math.nan, math.inf, -math.inf, True]
)
odd = st.one_of(
    st.none(),
    odd_numbers,
    st.sampled_from(["N/A", "", "98.2W", "-3W", "nan", "1e999", "٣W", b"\xff\x00", b"uuid"]),
    st.text(max_size=8),
    st.integers(-(10**6), 10**7),
    st.floats(),
    st.sampled_from([[], {}, (), [None], object()]),
    st.sampled_from([KeyError("x"), OSError("gone"), NVMLError(15, "GPU is lost"), NVMLError(6, ""), RecursionError()]),
)


def answering(answer: Any) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return call


def exercise(open_reader: Callable[[Path], PowerReader], module: ModuleType, change: Callable[[], None]) -> None:
    """Open, read everything, let the library change its mind, read again, close."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with mock.patch.dict("sys.modules", {module.__name__: module}), mock.patch.dict(os.environ, clean, clear=True):
        try:
            reader = open_reader(ROOT)
        except Unavailable:
            return
        assert reader.sensors
        assert len({sensor.id for sensor in reader.sensors}) == len(reader.sensors)
        for again in (False, True):
            if again:
                change()
            for sensor in reader.sensors:
                assert sensor.kind in KINDS
                check(reader, sensor)
                assert isinstance(reader.busy(sensor.part), str | None)
                limit_w = reader.limit_w(sensor.part) if hasattr(reader, "limit_w") else None
                assert limit_w is None or 0 <= limit_w < 1e6
        reader.close()


def check(reader: PowerReader, sensor: Any) -> None:
    try:
        answer = reader.read(sensor)
    except SensorLost:
        return
    for value in answer if isinstance(answer, list) else [Reading(0.0, 0.0, answer)]:
        assert math.isfinite(value.value)
        assert 0 <= value.value <= (1e15 if sensor.kind == "counter" else 1e6)


def change_some(module: ModuleType, changes: dict[str, Any]) -> None:
    for name, answer in changes.items():
        setattr(module, name, answering(answer))


NVML_FUNCTIONS = sorted(name for name in vars(FakeNvml()) if name.startswith("nvml"))


def changes_of(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), odd, max_size=4)


@settings(max_examples=200)
@given(changes_of(NVML_FUNCTIONS), changes_of(NVML_FUNCTIONS))
def test_nvml_may_answer_anything(first: dict[str, Any], later: dict[str, Any]) -> None:
    module = FakeNvml()
    change_some(module, first)
    with mock.patch.object(nvidia, "clocks", module.clocks):
        exercise(nvidia.open_reader, module, lambda: change_some(module, later))


unions = st.fixed_dictionaries(dict.fromkeys(ALL_TYPES, odd)).map(lambda members: SimpleNamespace(**members))


@given(
    st.lists(st.builds(SimpleNamespace, timeStamp=odd, sampleValue=unions | odd), max_size=4) | odd,
    st.builds(
        SimpleNamespace, nvmlReturn=st.sampled_from([0, 3, None]), valueType=st.integers(-1, 8), value=unions | odd
    ),
    st.integers(-1, 8),
)
def test_nvml_structures_may_hold_anything(rows: Any, value: Any, kind: int) -> None:
    module = FakeNvml()

    def change() -> None:
        module.nvmlDeviceGetSamples = lambda *arguments: (kind, rows)  # type: ignore[method-assign]
        module.nvmlDeviceGetFieldValues = lambda *arguments: [value]  # type: ignore[method-assign]

    with mock.patch.object(nvidia, "clocks", module.clocks):
        exercise(nvidia.open_reader, module, change)


AMD_WORDS = ["energy_accumulator", "power", "counter_resolution", "current_socket_power", "average_socket_power"]
AMD_WORDS += ["socket_power", "market_name", "gfx_activity"]
AMD_FUNCTIONS = [f"amdsmi_{name}" for name in ("init", "get_processor_handles", "get_energy_count", "get_power_info")]
AMD_FUNCTIONS += [
    f"amdsmi_get_gpu_{name}" for name in ("device_bdf", "device_uuid", "asic_info", "activity", "process_list")
]


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(AMD_WORDS), odd), changes_of(AMD_FUNCTIONS), changes_of(AMD_FUNCTIONS))
def test_amdsmi_may_answer_anything(words: dict[str, Any], first: dict[str, Any], later: dict[str, Any]) -> None:
    module = ModuleType("amdsmi")
    known: dict[str, Any] = {
        "energy_accumulator": 10**6,
        "counter_resolution": 15.3,
        "current_socket_power": 300,
    } | words
    change_some(module, dict.fromkeys(AMD_FUNCTIONS, known) | {"amdsmi_get_processor_handles": [1, 2, 3]} | first)
    exercise(amd.open_reader, module, lambda: change_some(module, later))


HLML_FUNCTIONS = ["hlmlInit", "hlmlDeviceGetCount"]
HLML_FUNCTIONS += [f"hlmlDeviceGet{n}" for n in ("HandleByIndex", "UUID", "Name", "PowerUsage", "UtilizationRates")]
HLML_FUNCTIONS += ["hlmlDeviceGetTotalEnergyConsumption"]


@settings(max_examples=200)
@given(changes_of(HLML_FUNCTIONS), changes_of(HLML_FUNCTIONS))
def test_pyhlml_may_answer_anything(first: dict[str, Any], later: dict[str, Any]) -> None:
    module = ModuleType("pyhlml")
    change_some(module, dict.fromkeys(HLML_FUNCTIONS, 2) | first)
    exercise(habana.open_reader, module, lambda: change_some(module, later))


IPU_WORDS = ["id", "board serial number", "board ipu index", "ipu power", "total board power", "ipu utilisation"]
IPU_WORDS += ["user executable", "user process id"]
devices = st.lists(st.dictionaries(st.sampled_from(IPU_WORDS), odd) | odd, max_size=4) | odd


@settings(max_examples=200)
@given(devices, devices, odd)
def test_gcipuinfo_may_answer_anything(first: Any, later: Any, update: Any) -> None:
    module = ModuleType("gcipuinfo")
    information = SimpleNamespace(updateData=lambda: True, getDevices=answering(first))
    module.gcipuinfo = lambda: information  # type: ignore[attr-defined]

    def change() -> None:
        information.getDevices = answering(later)
        information.updateData = answering(update)

    exercise(graphcore.open_reader, module, change)


@given(st.text() | st.dictionaries(st.text(max_size=4), odd_numbers).map(str))
def test_powermetrics_may_write_anything(text: str) -> None:
    with pytest.raises(SensorLost):
        apple.package_power_w(text)


@given(st.floats(allow_nan=True) | st.integers(-(2**63), 2**63) | st.text(alphabet="N/A 1", max_size=4) | st.booleans())
def test_powermetrics_values_are_power_or_lost(value: Any) -> None:
    text = plistlib.dumps({"processor": {"combined_power": value}}).decode()
    try:
        watts = apple.package_power_w(text)
    except SensorLost:
        return
    assert 0 <= watts <= 1e6


@given(odd)
def test_a_text_is_a_number_with_its_unit_or_nothing(text: Any) -> None:
    number = number_in(text, "W")
    assert number is None or math.isfinite(number)
    assert number_in("98.20W", "W") == 98.2
    assert number_in("98 %", "W") is None

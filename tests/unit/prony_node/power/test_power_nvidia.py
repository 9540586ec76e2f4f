"""The reader for NVIDIA GPUs against an NVML that replays an H200."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import LOST, NOT_SUPPORTED, FakeNvml, NVMLError, refuse, union

from prony_node.power.readers import nvidia
from prony_node.power.readers.nvidia import NvidiaReader, open_reader
from prony_node.power.sensor import PowerReader, Reading, Sensor, SensorLost, Unavailable

UUID = "GPU-5f1c0a3e-0000-4000-8000-000000000001"
OTHER = "GPU-77770a3e-0000-4000-8000-000000000002"
ROOT = Path("/")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNvml], FakeNvml]:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)

    def put(module: FakeNvml) -> FakeNvml:
        monkeypatch.setitem(sys.modules, "pynvml", module)
        monkeypatch.setattr(nvidia, "clocks", module.clocks)
        return module

    return put


@pytest.fixture
def h200(install: Callable[[FakeNvml], FakeNvml]) -> FakeNvml:
    return install(FakeNvml())


def sensor(reader: NvidiaReader, name: str) -> Sensor:
    return next(one for one in reader.sensors if one.id.startswith(f"nvidia.{name} "))


def names(reader: NvidiaReader) -> list[str]:
    return [one.id.split()[0].removeprefix("nvidia.") for one in reader.sensors]


def new(reader: NvidiaReader) -> list[Reading]:
    answer = reader.read(sensor(reader, "samples"))
    assert isinstance(answer, list)
    return answer


def test_an_h200_states_its_four_sensors(h200: FakeNvml) -> None:
    reader: PowerReader = open_reader(ROOT)
    assert [one.id for one in reader.sensors] == [
        f"nvidia.{name} {UUID}" for name in ("energy", "samples", "power", "average")
    ]
    stated = {one.id.split()[0]: (one.kind, one.period_s, one.window_s, one.seen_share) for one in reader.sensors}
    assert stated == {
        "nvidia.energy": ("counter", 0.1, None, 1.0),
        "nvidia.samples": ("instantaneous", 0.02, None, 1.0),
        "nvidia.power": ("instantaneous", 0.1, 0.025, 0.25),
        "nvidia.average": ("average", 0.1, 1.0, 1.0),
    }
    assert {(one.scope, one.part, one.evidence, one.uncertainty) for one in reader.sensors} == {
        ("gpu", UUID, "hardware", 0.05)
    }
    assert all("lack of attention" in one.uncertainty_source for one in reader.sensors)


def test_values_are_joules_and_watts(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    h200.now_s = 36.5
    assert reader.read(sensor(reader, "energy")) == pytest.approx(h200.at("energy") / 1000)
    assert reader.read(sensor(reader, "power")) == pytest.approx(h200.at("186") / 1000)
    assert reader.read(sensor(reader, "average")) == pytest.approx(h200.at("185") / 1000)
    assert 300 < reader.read(sensor(reader, "power")) < 750, "an H200 under load"  # type: ignore[operator]


def test_samples_come_once_and_in_order_and_agree_with_the_counter(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    h200.now_s = 34.0
    new(reader)
    readings = []
    for step in range(1, 6):
        h200.now_s = 34.0 + 0.5 * step
        readings += new(reader)
        assert new(reader) == [], "nothing new is an empty list"
    times = [one.before_s for one in readings]
    recorded = [at_s for at_s, _ in h200.traces["buffer"] if 34.0 < at_s <= 36.5]
    assert times == pytest.approx(recorded, abs=2e-6)
    assert all(one.before_s == one.after_s for one in readings)
    joules = sum((b.before_s - a.before_s) * (a.value + b.value) / 2 for a, b in pairwise(readings))
    ticks = [(at_s, value / 1000) for at_s, value in h200.traces["energy"] if times[0] <= at_s <= times[-1]]
    counted = (ticks[-1][1] - ticks[0][1]) / (ticks[-1][0] - ticks[0][0])
    assert joules / (times[-1] - times[0]) == pytest.approx(counted, rel=0.1), "mean power of both"


@pytest.mark.parametrize("value_type", range(7))
def test_the_type_of_a_sample_says_which_member_of_the_union_holds(h200: FakeNvml, value_type: int) -> None:
    h200.value_type = value_type
    assert 70 < new(open_reader(ROOT))[-1].value < 750


@pytest.mark.parametrize("step_s", [-7200.0, -3.0, -0.7, 0.7, 3.0, 7200.0])
@pytest.mark.parametrize("stamps_follow", [True, False])
def test_a_stepped_wall_clock_moves_no_reading(h200: FakeNvml, step_s: float, stamps_follow: bool) -> None:
    """Wrong placement would put energy into another window."""
    reader = open_reader(ROOT)
    h200.now_s = 34.5
    readings = new(reader)
    h200.step_s, h200.step_at_s = step_s, 34.72
    h200.stamp_step_s = step_s if stamps_follow else 0.0
    for now_s in (35.0, 35.4, 35.9, 36.4, 36.5):
        h200.now_s = now_s
        readings += (batch := new(reader))
        assert all(one.after_s <= now_s for one in batch), "in the future"
    times = [one.before_s for one in readings]
    assert times == sorted(set(times)), "out of order, or twice"
    late = [one for one in readings if one.before_s > 35.5]
    values = [value / 1000 for _, value in h200.traces["buffer"]]
    true_s = {value / 1000: at_s for at_s, value in h200.traces["buffer"] if values.count(value / 1000) == 1}
    worst_s = max(abs(true_s[one.value] - one.before_s) for one in late if one.value in true_s)
    assert worst_s < 0.03
    assert len(late) > 40, "readings after the step are there"


def test_a_gpu_that_stopped_sampling_keeps_its_old_readings_in_the_past(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    h200.now_s = 36.0
    new(reader)
    h200.traces["buffer"] = [row for row in h200.traces["buffer"] if row[0] < 36.2]
    h200.now_s = 38.0
    late = new(reader)
    assert late
    assert all(36.0 < one.before_s < 36.2 for one in late)


def test_a_lost_gpu_is_said(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    for function in ("TotalEnergyConsumption", "Samples", "FieldValues"):
        setattr(h200, f"nvmlDeviceGet{function}", LOST)
    for one in reader.sensors:
        with pytest.raises(SensorLost, match="GPU is lost"):
            reader.read(one)


def test_a_foreign_sensor_and_a_closed_reader_are_said(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    reader.close()
    assert h200.closed == 1
    with pytest.raises(SensorLost, match="closed"):
        reader.read(reader.sensors[0])


def test_no_library_and_no_driver_are_said(h200: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    h200.nvmlInit = refuse(12, "NVML Shared Library Not Found")  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="Shared Library Not Found"):
        open_reader(ROOT)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Unavailable, match="install it"):
        open_reader(ROOT)


def test_a_gpu_without_energy_or_power_closes_nvml(h200: FakeNvml) -> None:
    for function in ("TotalEnergyConsumption", "Samples", "FieldValues", "PowerUsage"):
        setattr(h200, f"nvmlDeviceGet{function}", NOT_SUPPORTED)
    with pytest.raises(Unavailable, match="neither energy nor power"):
        open_reader(ROOT)
    assert h200.closed == 1


@pytest.mark.parametrize(
    ("capability", "sensors", "window_s", "seen_share"),
    [
        ((7, 0), ["power"], None, 1.0),
        ((8, 0), ["power"], 0.025, 0.25),
        ((8, 6), ["average"], 1.0, 1.0),
        ((12, 0), ["average"], 1.0, 1.0),
    ],
)
def test_power_usage_is_what_the_manual_says_of_the_architecture(
    install: Callable[..., FakeNvml],
    capability: tuple[int, int],
    sensors: list[str],
    window_s: float | None,
    seen_share: float,
) -> None:
    """Taking a one-second average for an instant would hide every peak."""
    module = install(FakeNvml(capability=capability))
    for function in ("TotalEnergyConsumption", "Samples", "FieldValues"):
        setattr(module, f"nvmlDeviceGet{function}", NOT_SUPPORTED)
    reader = open_reader(ROOT)
    assert names(reader) == sensors
    assert (reader.sensors[0].window_s, reader.sensors[0].seen_share) == (window_s, seen_share)
    assert reader.sensors[0].evidence == "documented format"
    assert reader.read(reader.sensors[0]) == pytest.approx(module.at("185") / 1000)


def test_what_a_device_that_was_not_tried_looks_at_is_not_stated(install: Callable[..., FakeNvml]) -> None:
    install(FakeNvml(name="NVIDIA L40S", capability=(8, 9)))
    power = sensor(open_reader(ROOT), "power")
    assert (power.window_s, power.seen_share, power.evidence) == (None, 1.0, "documented format")


def test_a_grace_hopper_has_its_module(install: Callable[..., FakeNvml]) -> None:
    module = install(FakeNvml(name="NVIDIA GH200 120GB"))
    plain = module.nvmlDeviceGetFieldValues

    def fields(handle: str, wanted: list[Any]) -> list[SimpleNamespace]:
        if isinstance(wanted[0], tuple) and wanted[0] in ((185, 1), (186, 1)):
            return [SimpleNamespace(nvmlReturn=0, valueType=1, value=union(612_000))]
        return plain(handle, wanted)

    module.nvmlDeviceGetFieldValues = fields  # type: ignore[method-assign]
    reader = open_reader(ROOT)
    whole = sensor(reader, "module")
    assert (whole.scope, whole.part) == ("module", f"module of {UUID}")
    assert whole.contains == (UUID, "grace", "grace-0", "cpu-0", "sysio-0"), "nothing inside is added again"
    assert whole.evidence == "documented format"
    assert reader.read(whole) == 612.0
    assert sensor(reader, "module_average").window_s == 1.0
    assert reader.limit_w(whole.part) is None, "the GPU's limit is not the module's"
    assert reader.busy(whole.part) == ""


def test_an_h200_has_no_module_though_energy_answers_for_every_scope(install: Callable[..., FakeNvml]) -> None:
    install(FakeNvml(name="NVIDIA GH200 that refuses its module"))
    assert names(open_reader(ROOT)) == ["energy", "samples", "power", "average"]


def test_devices_are_those_that_cuda_shows(install: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeNvml(UUID, OTHER))
    assert [*open_reader(ROOT).devices] == [UUID, OTHER]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [*open_reader(ROOT).devices] == [OTHER]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f")
    assert [*open_reader(ROOT).devices] == [UUID]
    assert open_reader(ROOT).notes == ()
    for hidden in ("", "-1", "7"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        with pytest.raises(Unavailable, match="CUDA_VISIBLE_DEVICES"):
            open_reader(ROOT)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    assert len(open_reader(ROOT).devices) == 2, "another vendor's variable"


def test_counting_mixed_models_is_an_assumption_that_is_said(
    install: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = install(FakeNvml(UUID, OTHER))
    module.nvmlDeviceGetName = lambda handle: f"model of {handle}"  # type: ignore[method-assign]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "assumed" in open_reader(ROOT).notes[0]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert open_reader(ROOT).notes == ()


def test_gpus_that_may_not_be_opened_are_not_counted(
    install: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a Slurm job CUDA counts the GPUs of the job alone."""
    module = install(FakeNvml(UUID, OTHER))

    def handle_by_index(index: int) -> str:
        if index == 0:
            raise NVMLError(4, "Insufficient Permissions")
        return OTHER

    module.nvmlDeviceGetHandleByIndex = handle_by_index  # type: ignore[method-assign]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    reader = open_reader(ROOT)
    assert [*reader.devices] == [OTHER]
    assert "1 of 2 GPUs may not be opened" in reader.notes[0]


def mig(module: FakeNvml) -> FakeNvml:
    module.nvmlDeviceGetMigMode = lambda handle: [1, 1] if handle == UUID else [0, 0]  # type: ignore[method-assign]
    module.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 7
    module.nvmlDeviceGetMigDeviceHandleByIndex = lambda handle, index: (
        f"MIG-{index}aaa-bbb" if index < 2 else refuse(6, "Not Found")()
    )
    module.nvmlDeviceGetGpuInstanceId = lambda piece: int(piece[4]) + 1
    module.nvmlDeviceGetComputeInstanceId = lambda piece: 0
    return module


@pytest.mark.parametrize("value", [None, "0", "MIG-1aaa", "MIG-1aaa-bbb", f"MIG-{UUID}/2/0"])
def test_a_slice_is_read_as_the_whole_gpu_and_says_so(
    install: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Nobody may take the power of seven tenants for that of one."""
    install(mig(FakeNvml()))
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    reader = open_reader(ROOT)
    assert [*reader.devices] == [UUID]
    assert all("the whole GPU, of which this process has one MIG slice" in one.label for one in reader.sensors)
    assert "MIG" in reader.notes[0]


def test_busy_says_what_keeps_a_gpu_from_being_idle(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    assert reader.busy(UUID) == ""
    h200.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=37)  # type: ignore[method-assign]
    assert reader.busy(UUID) == "37 % utilised"
    h200.nvmlDeviceGetComputeRunningProcesses = lambda handle: [SimpleNamespace(pid=12)]  # type: ignore[method-assign]
    h200.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: [SimpleNamespace(pid=7)]  # type: ignore[method-assign]
    assert reader.busy(UUID) == "2 processes on it (pid 7, 12), 37 % utilised"
    h200.nvmlDeviceGetUtilizationRates = NOT_SUPPORTED  # type: ignore[method-assign]
    assert reader.busy(UUID) == "2 processes on it (pid 7, 12)"
    h200.nvmlDeviceGetComputeRunningProcesses = h200.nvmlDeviceGetGraphicsRunningProcesses = NOT_SUPPORTED  # type: ignore[method-assign]
    assert reader.busy(UUID) is None
    h200.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=0)  # type: ignore[method-assign]
    assert reader.busy(UUID) is None, "no list of processes, so nobody can tell"
    assert reader.busy("GPU-unknown") is None


def test_the_limit_is_that_which_the_driver_enforces(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    assert reader.limit_w(UUID) == 700.0
    assert reader.limit_w("GPU-unknown") is None
    h200.nvmlDeviceGetEnforcedPowerLimit = NOT_SUPPORTED  # type: ignore[method-assign]
    assert reader.limit_w(UUID) is None


def test_not_available_as_a_number_is_no_power(h200: FakeNvml) -> None:
    reader = open_reader(ROOT)
    h200.nvmlDeviceGetFieldValues = (  # type: ignore[method-assign]
        lambda handle, wanted: [SimpleNamespace(nvmlReturn=0, valueType=1, value=union(0xFFFFFFFF))]
    )
    with pytest.raises(SensorLost, match="4294967295"):
        reader.read(sensor(reader, "power"))

"""If these fail, a part is told by the wrong sensor, idle is not idle, or the node has parts in it twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_parts import GPU, made_part, made_sensor, made_trace, varied

from prony_node.power.figures import (
    LOWER_BOUND,
    MEASURED,
    contained,
    idle_power,
    node_energy,
    part_energies,
    part_energy,
)
from prony_node.power.recording import Recording, Trace
from prony_node.power.sensor import Reading, Sensor

COUNTER = made_sensor(GPU, "counter")
NOW = made_sensor(GPU, "instantaneous", name="power", period_s=0.05)
AVERAGE = made_sensor(GPU, "average", window_s=1.0)
PACKAGES = [made_sensor(f"package-{n}", scope="package", reader="rapl") for n in range(2)]
DRAMS = [made_sensor(f"dram-{n}", scope="dram", reader="rapl") for n in range(2)]
PSYS = made_sensor("psys", scope="node", reader="rapl", contains=("package-0", "package-1", "dram-0", "dram-1"))
RAPL = [*PACKAGES, *DRAMS, PSYS]
RAPL_W = {"package-0": 200.0, "package-1": 100.0, "dram-0": 20.0, "dram-1": 10.0, "psys": 400.0}


def grace_hopper(sockets: int) -> tuple[list[Sensor], dict[str, float]]:
    """Meters of GH200 modules as the readers grace and nvidia name them, and what each would read."""
    sensors, power_w = [], {}
    for n in range(sockets):
        gpu = f"GPU-{n}"
        rails = [f"cpu-{n}", f"sysio-{n}"]
        meters = {
            f"module-{n}": ("grace", "module", (f"grace-{n}", *rails, f"gpus-of-module-{n}"), 800.0),
            f"grace-{n}": ("grace", "package", tuple(rails), 250.0),
            f"cpu-{n}": ("grace", "package", (), 150.0),
            f"sysio-{n}": ("grace", "package", (), 30.0),
            gpu: ("nvidia", "gpu", (), 500.0),
            f"module of {gpu}": ("nvidia", "module", _nvidia_module(gpu, sockets), 800.0),
        }
        for part, (reader, scope, inside, watts) in meters.items():
            sensors.append(made_sensor(part, "average", scope, reader=reader, contains=inside))
            power_w[part] = watts
    return sensors, power_w


def _nvidia_module(gpu: str, sockets: int) -> tuple[str, ...]:
    return (gpu, "grace", *(f"{rail}-{n}" for n in range(sockets) for rail in ("grace", "cpu", "sysio")))


def test_a_counter_comes_before_an_integral_and_the_quick_sensor_beside_it() -> None:
    slow = made_sensor(GPU, "instantaneous", name="slow", period_s=0.5)
    traces = [made_trace(of, watts) for of, watts in ((AVERAGE, 302.0), (slow, 301.0), (NOW, 303.0), (COUNTER, 300.0))]
    found = part_energy(traces, 2.0, 12.0)
    assert found.figure is not None
    assert found.beside is not None
    assert (found.part, found.scope, found.label) == (GPU, "gpu", f"Made {GPU}")
    assert (found.figure.method, found.figure.sensor) == ("counter", COUNTER)
    assert found.figure.power_w == pytest.approx(300.0, rel=1e-6)
    assert found.beside.sensor == NOW
    assert (found.beside.start_s, found.beside.end_s) == (found.figure.start_s, found.figure.end_s)
    assert found.difference == pytest.approx(0.01, rel=1e-6)
    assert found.allowed is not None
    assert found.allowed >= found.figure.relative_uncertainty
    assert found.thirds_w == pytest.approx([300.0] * 3, rel=0.02)
    assert found.trend is not None
    assert found.trend.change == pytest.approx(0.0, abs=0.01)


def test_of_two_counters_the_surer_one_is_taken() -> None:
    coarse = replace(COUNTER, id=f"made.coarse {GPU}", resolution=1000.0)
    found = part_energy([made_trace(coarse, 300.0), made_trace(COUNTER, 300.0)], 2.0, 12.0)
    assert found.figure is not None
    assert found.figure.sensor == COUNTER


def test_without_a_counter_power_is_integrated_and_a_part_time_sensor_stands_beside() -> None:
    part_time = made_sensor(GPU, "instantaneous", name="parttime", seen_share=0.25, period_s=0.05)
    found = part_energy([made_trace(part_time, 310.0), made_trace(NOW, 300.0)], 2.0, 12.0)
    assert found.figure is not None
    assert found.beside is not None
    assert (found.figure.sensor, found.figure.method) == (NOW, "integral")
    assert found.figure.energy_j == pytest.approx(3000.0)
    assert found.beside.sensor == part_time


def test_a_counter_that_fails_leaves_the_integral() -> None:
    dead = Trace(COUNTER, [Reading(0.05 * n, 0.05 * n, 7.0) for n in range(280)])
    found = part_energy([dead, made_trace(NOW, 300.0)], 2.0, 12.0)
    assert found.figure is not None
    assert found.figure.method == "integral"
    assert found.beside is None
    assert (found.difference, found.allowed) == (None, None)


def test_the_peak_is_of_the_quickest_power_sensor_inside_the_window() -> None:
    power = varied(made_trace(NOW, 300.0), {10: 9.0, 100: 1.5, 270: 9.0})  # at 0.5, 5 and 13.5 s
    found = part_energy([varied(made_trace(AVERAGE, 300.0), {100: 2.0}), power, made_trace(COUNTER, 300.0)], 2.0, 12.0)
    assert (found.peak_w, found.peak_sensor) == (450.0, NOW.id)
    alone = part_energy([made_trace(COUNTER, 300.0)], 2.0, 12.0)
    assert (alone.peak_w, alone.peak_sensor) == (None, "")


def test_thirds_show_a_drift_and_a_short_window_has_none() -> None:
    rising = varied(made_trace(NOW, 300.0), {n: 1.0 + 0.3 * (n * 0.05 - 2.0) / 10.0 for n in range(280)})
    found = part_energy([rising], 2.0, 12.0)
    assert found.thirds_w == pytest.approx([315.0, 345.0, 375.0], rel=0.005)
    assert found.trend is not None
    assert found.trend.change == pytest.approx(90.0 / 345.0, rel=0.02)
    short = part_energy([rising], 2.0, 5.0)
    assert short.figure is not None
    assert short.thirds_w == ()


def test_every_part_has_a_figure_or_its_reason() -> None:
    other = made_sensor("package-0", scope="package")
    silent = made_sensor("dram-0", scope="dram")
    recording = Recording([made_trace(COUNTER, 300.0), made_trace(other, 90.0), Trace(silent), made_trace(NOW, 300.0)])
    found = {part.part: part for part in part_energies(recording, 2.0, 12.0)}
    assert list(found) == [GPU, "package-0", "dram-0"]
    assert found["dram-0"].figure is None
    assert found["dram-0"].reason == "made.counter: the counter ticked 0 times in the window; 8 are required"
    assert found[GPU].beside is not None


def test_a_sensor_that_is_lost_within_the_window_is_noted_and_the_other_tells_the_energy() -> None:
    lost = made_trace(NOW, 300.0, 0.0, 6.0)
    lost.notes = [(1.0, "it answers again"), (6.0, "it does not answer: gone")]
    found = part_energy([lost, made_trace(COUNTER, 300.0)], 2.0, 12.0)
    assert found.figure is not None
    assert found.figure.sensor == COUNTER
    assert found.beside is None
    assert found.notes == ("made.power: it does not answer: gone",), "a note of before the window is not of it"


def test_a_counter_lost_midway_tells_the_time_that_it_saw_and_not_more() -> None:
    lost = made_trace(COUNTER, 300.0, 0.0, 6.0)
    lost.notes = [(6.0, "it does not answer: gone")]
    found = part_energy([lost], 2.0, 12.0)
    assert found.figure is not None
    assert found.figure.end_s <= 6.0
    assert found.figure.power_w == pytest.approx(300.0, rel=1e-6)
    assert found.notes


def test_a_part_whose_only_sensor_is_lost_has_no_figure_and_says_what_it_said() -> None:
    lost = made_trace(NOW, 300.0, 0.0, 3.0)
    lost.notes = [(3.0, "it does not answer: gone")]
    found = part_energy([lost], 2.0, 12.0)
    assert found.figure is None
    assert found.reason == (
        "made.power: the sensor gave no readings at an edge of the window; it does not answer: gone"
    )
    early = Trace(COUNTER, [], [(0.5, "it does not answer: gone")])
    assert part_energy([early], 2.0, 12.0).reason.endswith("it does not answer: gone")


@pytest.mark.parametrize("watts", [0.0, -5.0])
def test_a_sensor_that_reads_nothing_measures_nothing(watts: float) -> None:
    found = part_energy([made_trace(NOW, watts)], 2.0, 12.0)
    assert found.figure is None
    assert "it does not measure" in found.reason


def idle_recording(busy: Any, *traces: Trace, started_s: float | None = 0.0) -> Recording:
    about: dict[str, Any] = {} if busy is ... else {"busy_at_start": {GPU: busy}}
    return Recording(list(traces), about=about | ({} if started_s is None else {"started_monotonic_s": started_s}))


def test_idle_is_the_mean_before_the_run() -> None:
    power = varied(made_trace(NOW, 80.0), {n: 5.0 for n in range(80, 280)})  # busy from 4 s on
    assert idle_power(idle_recording("", power), GPU, 3.99) == (pytest.approx(80.0), NOW.id)


def test_a_drivers_buffer_from_before_the_sampler_does_not_count() -> None:
    """Someone else's load just before: the driver's samples still tell of it."""
    buffered = varied(made_trace(NOW, 80.0, -6.0, 4.0), {n: 8.0 for n in range(120)})
    idle_w, _ = idle_power(idle_recording("", buffered), GPU, 4.0)
    assert idle_w == pytest.approx(80.0)
    too_late = idle_power(idle_recording("", buffered, started_s=3.5), GPU, 4.0)
    assert too_late == (None, "it was sampled for less than 1 s before the run")


def test_an_average_tells_of_its_own_window_after_the_start_only() -> None:
    average = varied(made_trace(AVERAGE, 80.0), {n: 8.0 for n in range(20)})  # the first second still has the load
    idle_w, _ = idle_power(idle_recording("", average), GPU, 4.0)
    assert idle_w == pytest.approx(80.0)
    assert idle_power(idle_recording("", average), GPU, 1.5)[0] is None


@pytest.mark.parametrize("busy", [None, ...])
def test_where_nobody_can_tell_whether_it_was_idle_there_is_no_idle_power(busy: Any) -> None:
    found = idle_power(idle_recording(busy, made_trace(NOW, 80.0)), GPU, 4.0)
    assert found == (None, "whether it was idle before the run cannot be told")


def test_where_it_was_busy_there_is_no_idle_power() -> None:
    found = idle_power(idle_recording("1 process on it", made_trace(NOW, 80.0)), GPU, 4.0)
    assert found == (None, "it was not idle before the run: 1 process on it")


def test_a_counter_alone_tells_no_idle_power_and_says_so() -> None:
    found = idle_power(idle_recording("", made_trace(COUNTER, 80.0)), GPU, 4.0)
    assert found == (None, "it has no sensor that reads power")


def node_of(sensors: list[Sensor], power_w: dict[str, float], lost: tuple[str, ...] = ()) -> Any:
    parts = [made_part(of, None if of.part in lost else power_w[of.part]) for of in sensors]
    return node_energy(parts, sensors)


def test_the_platform_is_the_node_where_there_is_no_accelerator() -> None:
    node = node_of(RAPL, RAPL_W)
    assert (node.how, node.parts, node.power_w, node.energy_j) == (MEASURED, ["psys"], 400.0, 4000.0)


def test_beside_an_accelerator_the_platform_is_not_the_node_and_packages_memory_and_gpus_add_up() -> None:
    node = node_of([*RAPL, COUNTER], {**RAPL_W, GPU: 600.0})
    assert node.how == LOWER_BOUND
    assert set(node.parts) == {"package-0", "package-1", "dram-0", "dram-1", GPU}
    assert node.power_w == pytest.approx(930.0)
    assert node.energy_j == pytest.approx(node.power_w * node.seconds)
    assert node.uncertainty_j < 0.05 * 930.0, "independent errors add as squares"
    lost = node_of([*RAPL, COUNTER], {**RAPL_W, GPU: 600.0}, lost=(GPU,))
    assert lost.how == LOWER_BOUND, "the accelerator is there, though it does not answer"
    assert lost.power_w == pytest.approx(330.0)


def test_a_node_that_is_measured_stands_alone() -> None:
    whole = made_sensor("node", "average", "node", reader="ipmi")
    sensors = [*RAPL, COUNTER, whole]
    node = node_of(sensors, {**RAPL_W, GPU: 600.0, "node": 1500.0})
    assert (node.how, node.parts, node.power_w) == (MEASURED, ["node"], 1500.0)
    without = node_of(sensors, {**RAPL_W, GPU: 600.0, "node": 1500.0}, lost=("node",))
    assert (without.how, without.power_w) == (LOWER_BOUND, pytest.approx(930.0))


@pytest.mark.parametrize("sockets", [1, 4])
@pytest.mark.parametrize("reader", ["as it is", "replay"])
def test_a_grace_hopper_module_has_everything_inside(sockets: int, reader: str) -> None:
    sensors, power_w = grace_hopper(sockets)
    if reader == "replay":  # which tells of every sensor under its own name
        sensors = [replace(of, reader="replay") for of in sensors]
    node = node_of(sensors, power_w)
    assert node.parts == [f"module-{n}" for n in range(sockets)]
    assert node.power_w == pytest.approx(800.0 * sockets)


def test_without_the_modules_meter_the_drivers_module_has_grace_inside() -> None:
    sensors, power_w = grace_hopper(1)
    without = [of for of in sensors if of.part != "module-0"]
    assert node_of(without, power_w).parts == ["module of GPU-0"]


def test_a_module_that_is_lost_does_not_keep_out_what_it_holds() -> None:
    sensors, power_w = grace_hopper(1)
    assert node_of(sensors, power_w, lost=("module-0",)).parts == ["module of GPU-0"]
    both = node_of(sensors, power_w, lost=("module-0", "module of GPU-0"))
    assert both.parts == ["grace-0", "GPU-0"]
    assert both.power_w == pytest.approx(750.0)


def test_a_blades_meter_of_gpus_has_those_of_the_driver_inside() -> None:
    accel = made_sensor("accel-0", scope="gpu", reader="cray", contains=("gpus-of-accel-0",))
    cpu = made_sensor("cpu", scope="package", reader="cray", contains=("package-0", "package-1"))
    driver = made_sensor(GPU, reader="amd")
    assert contained([accel, cpu, driver, *PACKAGES]) == {"gpus-of-accel-0", "package-0", "package-1", GPU}
    power_w = {**RAPL_W, "accel-0": 500.0, "cpu": 320.0, GPU: 480.0}
    assert node_of([accel, cpu, driver, *PACKAGES], power_w).parts == ["accel-0", "cpu"]


def test_two_dies_of_a_card_are_one_part() -> None:
    card = made_sensor("die-0", contains=("die-1",))
    assert node_of([card, made_sensor("die-1")], {"die-0": 500.0, "die-1": 500.0}).power_w == 500.0


def test_nothing_measured_is_no_node() -> None:
    assert node_of([COUNTER], {}, lost=(GPU,)) is None
    assert node_energy([], []) is None
    assert node_of([PSYS, COUNTER], {"psys": 300.0}, lost=(GPU,)) is None


@given(st.integers(1, 3), st.data())
def test_on_grace_hopper_nothing_is_added_twice_whatever_is_there_and_whatever_is_lost(
    sockets: int, data: st.DataObject
) -> None:
    sensors, _ = grace_hopper(sockets)
    watts = st.floats(1.0, 1000.0)
    power_w: dict[str, float] = {}
    for n in range(sockets):  # what really lies in it, each piece once
        cpu_w, sysio_w, memory_w, gpu_w, regulator_w = (data.draw(watts) for _ in range(5))
        grace_w = cpu_w + sysio_w + memory_w
        module_w = grace_w + gpu_w + regulator_w
        power_w |= {f"cpu-{n}": cpu_w, f"sysio-{n}": sysio_w, f"grace-{n}": grace_w, f"module-{n}": module_w}
        power_w |= {f"GPU-{n}": gpu_w, f"module of GPU-{n}": module_w}
    check_never_too_much(sensors, power_w, sum(power_w[f"module-{n}"] for n in range(sockets)), data)


@given(st.data())
def test_with_rapl_nothing_is_added_twice_whatever_is_there_and_whatever_is_lost(data: st.DataObject) -> None:
    watts = st.floats(1.0, 1000.0)
    power_w = {of.part: data.draw(watts) for of in (*PACKAGES, *DRAMS)}
    board_w = sum(power_w.values()) + data.draw(watts)
    gpus = [made_sensor(f"GPU-{n}") for n in range(data.draw(st.integers(0, 2)))]
    power_w |= {of.part: data.draw(watts) for of in gpus} | {"psys": board_w}
    gpus_w = sum(power_w[of.part] for of in gpus)
    check_never_too_much([*RAPL, *gpus], power_w, board_w + gpus_w, data)


def check_never_too_much(sensors: list[Sensor], power_w: dict[str, float], total_w: float, data: st.DataObject) -> None:
    there = data.draw(st.lists(st.sampled_from(sensors), min_size=1, unique=True))
    lost = tuple(data.draw(st.lists(st.sampled_from([of.part for of in there]), unique=True)))
    node = node_of(there, power_w, lost)
    if node is None:
        assert set(lost) | {"psys"} >= {of.part for of in there}, "something was measured and is not told"
        return
    assert node.power_w <= total_w * (1.0 + 1e-9)
    assert node.energy_j == pytest.approx(node.power_w * node.seconds)

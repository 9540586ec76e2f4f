"""If these fail, a run's energy is wrong, is told where it was not measured, or costs the run itself."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import files
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.metrics import METRICS
from prony_node.contract.record import ParallelWork, RankWork, WorkDone
from prony_node.contract.run_folder import Energy, Parts, RankResult, assemble
from prony_node.contract.trial import Plan, Trial
from prony_node.contract.typed import decode, encode
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor
from prony_node.run.energy import ENERGY_METRICS, LEAST_WINDOW_S, Work, energy_of_run, with_energy
from prony_node.stats import StopRule

GPU = "GPU-5f1c0a3e-0000-4000-8000-000000000001"
UUID = GPU.removeprefix("GPU-")
FROM_S, BEGIN_S, END_S = 100.0, 103.0, 115.0  # the sampler, the loop, and the end of both
POWER_W = 300.0
STEP_S, UNITS_A_STEP = 0.025, 8  # 320 units a second: 0.9375 J each


def sensor(part: str = GPU, kind: str = "counter", scope: str = "gpu", name: str = "", **stated: Any) -> Sensor:
    stated = {"period_s": 0.1, **stated}
    return Sensor(f"made.{name or kind} {part}", "made", kind, scope, part, f"Made {part}, {kind}", **stated)


COUNTER = sensor()
POWER = sensor(kind="instantaneous", name="power", period_s=0.05)


def readings_of(of: Sensor, power_w: float, until_s: float = END_S + 1.0) -> list[Reading]:
    """Constant power, every 50 ms; a counter ticks at every second of them."""
    found = []
    for number in range(round((until_s - FROM_S) / 0.05)):
        at_s = FROM_S + 0.05 * number
        value = power_w * 0.1 * (number // 2) if of.kind == "counter" else power_w
        found.append(Reading(at_s, at_s, value))
    return found


def record_power(
    folder: Path, traces: dict[Sensor, float], until_s: dict[str, float] | None = None, **about: Any
) -> None:
    """What the sampler would have left."""
    known = {"started_monotonic_s": FROM_S, "busy_at_start": {GPU: ""}, "limits_w": {GPU: 700.0}, "reasons": {}}
    writer = Writer(folder, list(traces), {**known, **about})
    for of, power_w in traces.items():
        end_s = (until_s or {}).get(of.part)
        writer.add(of, readings_of(of, power_w, *([] if end_s is None else [end_s])))
        if end_s is not None:
            writer.note(of, end_s, "it does not answer: gone")
    writer.close()


def parts_of(folder: Path, **device: Any) -> Parts:
    """A steady run on this device, its first half second the transient, as the rank leaves it."""
    steps = round((END_S - BEGIN_S) / STEP_S)
    with (folder / files.STEPS).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
        for number in range(steps // 10):
            end_s = f"{10 * STEP_S * (number + 1):.6f}"
            writer.writerow((number, 10, end_s, f"{10 * STEP_S:.9f}", "0.0"))
    result = {
        "status": "ok", "unit": "images", "work": {"units": steps * UNITS_A_STEP, "steps": steps},
        "loop_monotonic": [BEGIN_S, END_S], "window_monotonic": [BEGIN_S + 0.5, END_S],
        "device_from_monotonic": BEGIN_S - 1.0,
    }  # fmt: skip
    return Parts(
        result=decode(RankResult, result), device=decode(DeviceFacts, {"kind": "cuda", "uuid": UUID, **device})
    )


def plan(*, energy: bool = True) -> Plan:
    return Plan("wideresnet-20260101T000000-aaaaaa", Trial("wideresnet", {}), energy=energy)


def judged(folder: Path, parts: Parts | None = None, *, energy: bool = True) -> Energy:
    found = energy_of_run(plan(energy=energy), folder, parts_of(folder) if parts is None else parts)
    assert set(found.metrics) == set(ENERGY_METRICS)
    assert set(found.metrics) <= set(METRICS)
    assert all(one.value is not None or one.reason for one in found.metrics.values())
    json.dumps(encode([found.metrics, found.checks, found.detail]), allow_nan=False)
    return found


def value(found: Energy, name: str) -> float:
    return float(found.metrics[name].value or 0.0)


def reasons(found: Energy) -> set[str]:
    assert all(one.value is None for one in found.metrics.values())
    return {str(one.reason) for one in found.metrics.values()}


# --- figures


@pytest.mark.parametrize("traces", [{COUNTER: POWER_W, POWER: POWER_W}, {COUNTER: POWER_W}, {POWER: POWER_W}])
def test_at_constant_power_the_energy_of_a_unit_is_power_times_time_over_work(
    tmp_path: Path, traces: dict[Sensor, float]
) -> None:
    record_power(tmp_path, traces)
    found = judged(tmp_path)
    (part,) = found.detail.parts
    seconds = part.window_s[1] - part.window_s[0]
    assert BEGIN_S + 0.5 <= part.window_s[0] < part.window_s[1] <= END_S
    assert value(found, "energy") == pytest.approx(POWER_W * seconds, rel=1e-9)
    assert value(found, "power") == pytest.approx(value(found, "energy") / seconds, rel=1e-12)
    assert value(found, "energy_per_sample") == pytest.approx(POWER_W * STEP_S / UNITS_A_STEP, rel=1e-6)
    assert value(found, "samples_per_wh") * value(found, "energy_per_sample") == pytest.approx(3600.0, rel=1e-12)
    units = {name: found.metrics[name].unit for name in ("energy", "energy_per_sample", "samples_per_wh", "power")}
    assert units == {"energy": "J", "energy_per_sample": "J/image", "samples_per_wh": "images/Wh", "power": "W"}
    assert {one.level for one in found.checks} <= {"pass", "unknown"}
    assert {one.name for one in found.checks} >= {
        "energy-window", "energy-agreement", "energy-gap", "energy-drift", "energy-limit", "energy-devices",
    }  # fmt: skip


def test_every_figure_has_an_interval_around_it_its_scope_and_its_source(tmp_path: Path) -> None:
    record_power(tmp_path, {COUNTER: POWER_W, POWER: POWER_W})
    found = judged(tmp_path)
    for name in ("energy", "energy_per_sample", "samples_per_wh", "power"):
        metric = found.metrics[name]
        assert metric.low < metric.value < metric.high
        assert metric.scope == "gpu"
        assert metric.source.startswith("made.counter, counter, ")
    assert value(found, "power_peak") == POWER_W
    assert found.metrics["power_peak"].source == "made.power"
    assert value(found, "power_idle") == pytest.approx(POWER_W)
    assert found.metrics["node_energy"].source == "sum of devices, a lower bound"


def test_a_counter_alone_tells_no_peak(tmp_path: Path) -> None:
    record_power(tmp_path, {COUNTER: POWER_W}, busy_at_start={GPU: "1 process on it"})
    found = judged(tmp_path)
    assert found.metrics["power_peak"].reason == "a counter alone tells no peak"
    assert found.metrics["power_idle"].reason == "it was not idle before the run: 1 process on it"


def test_packages_and_memory_add_up_and_the_platform_is_the_node(tmp_path: Path) -> None:
    package, memory = sensor("package-0", scope="package"), sensor("dram-0", scope="dram")
    psys = sensor("psys", scope="node", contains=("package-0", "dram-0"))
    record_power(tmp_path, {package: 100.0, memory: 20.0, psys: 150.0})
    found = judged(tmp_path, parts_of(tmp_path, kind="cpu", uuid=None))
    assert value(found, "power") == pytest.approx(120.0, rel=1e-9)
    assert value(found, "energy_per_sample") == pytest.approx(120.0 * STEP_S / UNITS_A_STEP, rel=1e-6)
    assert found.metrics["energy"].scope == "package+dram"
    assert value(found, "node_power") == pytest.approx(150.0, rel=1e-9)
    assert found.metrics["node_power"].source == "measured"


def test_the_rails_of_a_socket_are_not_added_to_it(tmp_path: Path) -> None:
    socket = sensor("grace-0", "instantaneous", "package", contains=("cpu-0", "sysio-0"))
    rails = [sensor(part, "instantaneous", "package") for part in ("cpu-0", "sysio-0")]
    record_power(tmp_path, {socket: 200.0, rails[0]: 120.0, rails[1]: 30.0})
    found = judged(tmp_path, parts_of(tmp_path, kind="cpu"))
    assert value(found, "power") == pytest.approx(200.0)
    assert value(found, "node_power") == pytest.approx(200.0)


def test_a_part_lost_midway_does_not_make_a_unit_cheaper(tmp_path: Path) -> None:
    packages = [sensor(f"package-{n}", scope="package") for n in range(2)]
    record_power(tmp_path, dict.fromkeys(packages, 100.0), {"package-1": 109.0})
    found = judged(tmp_path, parts_of(tmp_path, kind="cpu"))
    assert value(found, "energy_per_sample") == pytest.approx(200.0 * STEP_S / UNITS_A_STEP, rel=1e-6)
    assert value(found, "power") == pytest.approx(200.0, rel=1e-9)
    assert [one.level for one in found.checks if one.name == "energy-sensor"] == ["warn"]


def test_the_device_is_known_by_its_address_or_as_a_die_of_a_card(tmp_path: Path) -> None:
    card = sensor("0000:c1:00.0", contains=(GPU,))
    record_power(tmp_path, {card: POWER_W})
    assert value(judged(tmp_path), "power") == pytest.approx(POWER_W, rel=1e-9)
    by_address = parts_of(tmp_path, uuid=None, pci={"address": "0000:C1:00.0"})
    assert value(judged(tmp_path, by_address), "power") == pytest.approx(POWER_W, rel=1e-9)


def test_a_neighbours_energy_is_not_ours(tmp_path: Path) -> None:
    other = sensor("GPU-00000000-0000-4000-8000-000000000002")
    record_power(tmp_path, {COUNTER: POWER_W, other: 700.0})
    found = judged(tmp_path)
    assert value(found, "power") == pytest.approx(POWER_W, rel=1e-9)
    assert value(found, "node_power") == pytest.approx(POWER_W + 700.0, rel=1e-9)


# --- null, with its reason


def test_energy_that_was_not_asked_for(tmp_path: Path) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    found = judged(tmp_path, energy=False)
    assert reasons(found) == {"energy was not requested (--no-energy)"}
    assert (found.checks, found.detail) == ([], None)


@pytest.mark.parametrize("window", [None, (), (1.0,)])
def test_a_run_without_a_steady_window(tmp_path: Path, window: Any) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    parts = parts_of(tmp_path)
    parts = replace(parts, result=replace(parts.result, window_monotonic=window))
    assert reasons(judged(tmp_path, parts)) == {"the run has no steady window"}
    assert reasons(judged(tmp_path, Parts())) == {"the run has no steady window"}


def test_a_window_of_a_second(tmp_path: Path) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    parts = parts_of(tmp_path)
    parts = replace(parts, result=replace(parts.result, window_monotonic=(BEGIN_S, BEGIN_S + 1.0)))
    found = judged(tmp_path, parts)
    assert "the window of 1 s is shorter than 2 s" in found.metrics["energy"].reason
    assert [one.level for one in found.checks] == ["unknown"]


def test_a_slice_of_a_gpu(tmp_path: Path) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    found = judged(tmp_path, parts_of(tmp_path, uuid="MIG-5f1c0a3e-0000-4000-8000-000000000009"))
    assert found.metrics["energy"].reason == "a MIG slice has no energy of its own, only the whole GPU does"
    assert value(found, "node_power") == pytest.approx(POWER_W, rel=1e-9), "the node is measured all the same"
    assert found.checks == [], "that is no doubt about the run"


def test_a_device_without_a_sensor(tmp_path: Path) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    found = judged(tmp_path, parts_of(tmp_path, uuid="00000000-0000-4000-8000-000000000003"))
    assert found.metrics["energy"].reason.startswith("none of the parts with a sensor is the device of this run")
    on_cpu = judged(tmp_path, parts_of(tmp_path, kind="cpu"))
    assert on_cpu.metrics["energy"].reason == "no sensor of the CPU answers here"


def test_a_machine_without_a_sensor(tmp_path: Path) -> None:
    record_power(tmp_path, {}, reasons={"rapl": "only root may read it"})
    found = judged(tmp_path)
    assert found.metrics["energy"].reason == "no power sensor answers here; `prony doctor` says why"
    assert found.metrics["node_energy"].reason == "nothing of the node was measured"
    assert found.detail.reasons == {"rapl": "only root may read it"}
    assert found.checks == []


def test_one_of_two_parts_that_is_gone_is_named_alone(tmp_path: Path) -> None:
    packages = [sensor(f"package-{n}", scope="package") for n in range(2)]
    record_power(tmp_path, dict.fromkeys(packages, 100.0), {"package-1": FROM_S + 0.5})
    found = judged(tmp_path, parts_of(tmp_path, kind="cpu"))
    assert found.metrics["energy"].reason == (
        "made.counter: the counter ticked 0 times in the window; 8 are required; it does not answer: gone"
    )
    assert value(found, "node_power") == pytest.approx(100.0, rel=1e-9)


def test_a_sampler_that_did_not_start(tmp_path: Path) -> None:
    assert reasons(judged(tmp_path)) == {"the sampler did not start"}


def test_samples_that_are_gone_or_broken(tmp_path: Path) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    (tmp_path / files.POWER_SAMPLES).write_bytes(b"\x00\xff,,,\n1,2\n")
    broken = judged(tmp_path).metrics["energy"].reason
    (tmp_path / files.POWER_SAMPLES).unlink()
    assert judged(tmp_path).metrics["energy"].reason == broken
    assert "ticked 0 times" in broken


BREAKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "newer": lambda document: {**document, "schema": "prony.power/9"},
    "other": lambda document: [document],
    "no sensors": lambda document: {**document, "sensors": 5},
    "odd sensor": lambda document: {**document, "sensors": [{"id": "x"}]},
    "odd limits": lambda document: {**document, "limits_w": [1]},
    "odd busy": lambda document: {**document, "busy_at_start": "x"},
    "odd start": lambda document: {**document, "started_monotonic_s": "x"},
    "no number": lambda document: {**document, "notes": [math.nan]},
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_description_costs_the_figure_and_not_the_run(tmp_path: Path, how: str) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    path = tmp_path / files.POWER
    path.write_text(json.dumps(BREAKS[how](json.loads(path.read_text()))))
    found = judged(tmp_path)
    (reason,) = reasons(found)
    assert reason.startswith("the samples could not be judged: ")
    assert [one.level for one in found.checks] == ["unknown"]
    with_energy(StopRule(), tmp_path, "cuda")
    record = assemble(plan(), parts_of(tmp_path), started="", ended="", energy=found)
    assert record["status"] == "ok"
    path.write_text("{")
    assert reasons(judged(tmp_path)) == {"the sampler did not start"}


@pytest.mark.parametrize("spoil", ["work", "loop_monotonic", "steps.csv"])
def test_without_its_work_a_run_has_no_energy_of_a_unit(tmp_path: Path, spoil: str) -> None:
    record_power(tmp_path, {COUNTER: POWER_W})
    parts = parts_of(tmp_path)
    if spoil == "steps.csv":
        (tmp_path / files.STEPS).unlink()
    else:
        parts = replace(parts, result=replace(parts.result, **{spoil: None}))
    assert judged(tmp_path, parts).metrics["energy_per_sample"].value is None


# --- the stop rule


def described(folder: Path, *sensors: Sensor) -> Path:
    Writer(folder, sensors, {}).close()
    return folder


def test_where_energy_is_measured_a_window_lasts_ten_seconds(tmp_path: Path) -> None:
    rule = StopRule(min_time_s=3.0)
    assert with_energy(rule, described(tmp_path, COUNTER), "cuda").min_time_s == LEAST_WINDOW_S == 10.0
    assert with_energy(rule, described(tmp_path, POWER), "cuda").min_time_s == 10.0
    assert with_energy(StopRule(min_time_s=20.0), tmp_path, "cuda").min_time_s == 20.0


def test_a_slow_counter_is_given_a_hundred_ticks_for_one_percent(tmp_path: Path) -> None:
    slow = sensor(period_s=0.5)
    folder = described(tmp_path, slow)
    assert with_energy(StopRule(tolerance=0.01), folder, "cuda").min_time_s == pytest.approx(50.0)
    assert with_energy(StopRule(tolerance=0.05), folder, "cuda").min_time_s == pytest.approx(10.0)
    assert with_energy(StopRule(tolerance=0.005, max_time_s=60.0), folder, "cuda").min_time_s == 60.0
    assert with_energy(StopRule(min_time_s=3.0, max_time_s=4.0), folder, "cuda").min_time_s == 4.0
    quick = sensor(name="quick", period_s=0.02)
    assert with_energy(StopRule(), described(tmp_path, slow, quick), "cuda").min_time_s == pytest.approx(10.0)


def test_without_a_sensor_of_the_device_the_rule_is_as_it_was(tmp_path: Path) -> None:
    rule = StopRule(min_time_s=3.0)
    assert with_energy(rule, tmp_path, "cuda") == rule, "nothing is sampled"
    assert with_energy(rule, described(tmp_path), "cuda") == rule
    assert with_energy(rule, described(tmp_path, COUNTER), "cpu") == rule
    package = described(tmp_path, sensor("package-0", scope="package"))
    assert with_energy(rule, package, "cuda") == rule
    assert with_energy(rule, package, "cpu").min_time_s == 10.0


@given(st.recursive(st.none() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=2)))
def test_whatever_the_sampler_wrote_the_run_goes_on(tmp_path_factory: pytest.TempPathFactory, odd: Any) -> None:
    folder = tmp_path_factory.mktemp("odd")
    entry = {"scope": "gpu", "kind": "counter", "period_s": odd}
    for document in (odd, {"sensors": odd}, {"sensors": [odd]}, {"sensors": [entry]}):
        (folder / files.POWER).write_text(json.dumps(document))
        assert with_energy(StopRule(), folder, "cuda").min_time_s <= StopRule().max_time_s


# --- work

blocks = st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 2.0)), min_size=1, max_size=30)
instants = st.floats(90.0, 170.0)


def work_of(folder: Path, series: list[tuple[int, float]]) -> Work:
    with (folder / files.STEPS).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
        end_s = 0.0
        for number, (steps, duration_s) in enumerate(series):
            end_s += duration_s
            writer.writerow((number, steps, f"{end_s:.6f}", duration_s, 0.0))
    return Work(folder, RankResult(work=WorkDone(units=30, steps=10), loop_monotonic=(100.0, 100.0 + end_s)))


@given(blocks, instants, instants, instants)
def test_work_adds_up_grows_with_time_and_is_never_more_than_was_done(
    tmp_path_factory: pytest.TempPathFactory, series: list[tuple[int, float]], a_s: float, b_s: float, c_s: float
) -> None:
    work = work_of(tmp_path_factory.mktemp("work"), series)
    a_s, b_s, c_s = sorted((a_s, b_s, c_s))
    left, right, whole = work.between(a_s, b_s), work.between(b_s, c_s), work.between(a_s, c_s)
    assert left >= 0.0
    assert right >= 0.0
    assert left + right == pytest.approx(whole, abs=1e-6)
    done = 3.0 * sum(steps for steps, _ in series)
    assert whole <= done + 1e-6
    assert work.between(-1e9, 1e9) == pytest.approx(done)
    assert work.between(b_s, b_s) == 0.0


def test_a_step_of_the_first_copy_stands_for_what_all_copies_did_in_their_common_window(tmp_path: Path) -> None:
    """The first took 100 steps of 5 units, the other 30 in the half of that time that both shared: 400 of its own."""
    work_of(tmp_path, [(100, 10.0)])
    ranks = (RankWork(common_steps=50.0), RankWork(common_steps=30.0))
    work = WorkDone(units=400, steps=50)
    result = RankResult(work=work, parallel=ParallelWork(ranks=ranks), loop_monotonic=(100.0, 110.0))
    done = Work(tmp_path, result)
    assert done.between(105.0, 110.0) == pytest.approx(400.0)
    few = replace(result, work=WorkDone(units=27, steps=3), parallel=ParallelWork(ranks=(RankWork(common_steps=2.5),)))
    assert Work(tmp_path, few).between(100.0, 110.0) == pytest.approx(27 / 2.5 * 100), "parts of a step count as such"


def test_half_a_block_is_half_its_work(tmp_path: Path) -> None:
    work = work_of(tmp_path, [(4, 1.0), (10, 2.0)])
    assert work.between(100.0, 101.0) == pytest.approx(12.0)
    assert work.between(101.0, 102.0) == pytest.approx(15.0)
    assert work.between(100.5, 103.0) == pytest.approx(36.0)

"""If these fail, energies are wrong, or claim to be surer than they are."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.power.recording import Trace
from prony_node.power.sensor import KINDS, Reading, Sensor
from prony_node.power.window import NoEnergy, distinct, energy_of, integrated, ticks

RAPL_RANGE_J = 262143.328850


def sensor(kind: str, period_s: float | None = 0.1, **stated: float) -> Sensor:
    return Sensor("s", "test", kind, "gpu", "part", "s", period_s=period_s, **stated)  # type: ignore[arg-type]


def read_times(seed: int, seconds: float) -> list[tuple[float, float]]:
    """Read about every 50 ms, each read taking up to 5 ms."""
    rng, now_s, found = random.Random(seed), 0.0, []
    while now_s < seconds:
        before_s = now_s + rng.uniform(0.0375, 0.0625)
        now_s = before_s + rng.uniform(0.0001, 0.005)
        found.append((before_s, now_s))
    return found


def counter_trace(power_w: float, seconds: float = 14.0, seed: int = 1, *, period_s: float = 0.1) -> Trace:
    """A counter that ticks every `period_s` at constant power."""
    readings = [Reading(b, a, power_w * period_s * (0.5 * (a + b) // period_s)) for b, a in read_times(seed, seconds)]
    return Trace(sensor("counter", period_s, resolution=0.001), readings)


def power_trace(power_w: float, seconds: float = 14.0, seed: int = 1, kind: str = "instantaneous") -> Trace:
    window_s = 1.0 if kind == "average" else None
    readings = [Reading(before_s, after_s, power_w) for before_s, after_s in read_times(seed, seconds)]
    return Trace(sensor(kind, window_s=window_s), readings)  # type: ignore[arg-type]


def changed(trace: Trace, change: dict[int, float]) -> Trace:
    """With other values from these readings on."""
    readings, added = [], 0.0
    for number, r in enumerate(trace.readings):
        added += change.get(number, 0.0)
        readings.append(Reading(r.before_s, r.after_s, r.value + added))
    return Trace(trace.sensor, readings)


@given(
    st.floats(1.0, 2000.0), st.integers(0, 1000), st.floats(2.0, 10.0), st.sampled_from(["instantaneous", "average"])
)
def test_constant_power_is_power_times_time_whatever_the_read_times(
    power_w: float, seed: int, length_s: float, kind: str
) -> None:
    found = energy_of(power_trace(power_w, seed=seed, kind=kind), 2.0, 2.0 + length_s)
    assert found.energy_j == pytest.approx(power_w * length_s, rel=1e-9)
    assert (found.start_s, found.end_s, found.method) == (2.0, 2.0 + length_s, "integral")
    assert found.uncertainty_j <= 1e-9 * found.energy_j


def test_identical_readings_are_not_dropped() -> None:
    found = energy_of(power_trace(300.0), 2.0, 12.0)
    assert found.readings >= 80  # a reading each period of 0.1 s, though all are the same
    assert found.largest_gap_s < 0.2


def test_a_sensor_read_more_often_than_it_updates_counts_its_updates() -> None:
    values = [Reading(b, a, 300.0 + (a // 0.1) % 7) for b, a in read_times(1, 14.0)]
    updates, period_s = distinct(values, sensor("instantaneous"), 2.0, 12.0)
    assert period_s == pytest.approx(0.1, abs=0.02)
    assert 120 <= len(updates) <= 150


@given(st.floats(1.0, 2000.0), st.integers(0, 1000), st.floats(4.0, 11.0))
def test_a_counter_at_constant_power_is_right_within_its_uncertainty(
    power_w: float, seed: int, length_s: float
) -> None:
    found = energy_of(counter_trace(power_w, seed=seed), 1.5, 1.5 + length_s)
    worst_j = 2.0 * 0.5 * power_w * 0.08  # each edge is known to half of the time between two reads
    assert abs(found.energy_j - power_w * found.seconds) <= worst_j
    assert 0.0 < found.uncertainty_j <= 1.2 * worst_j
    assert found.start_s >= 1.5
    assert found.end_s <= 1.5 + length_s
    assert found.period_s == pytest.approx(0.1, abs=0.02)


@given(st.sampled_from(["counter", "instantaneous"]), st.floats(0.01, 100.0), st.integers(0, 100))
def test_energy_and_its_uncertainty_scale_with_power(kind: str, factor: float, seed: int) -> None:
    rng = random.Random(seed)
    if kind == "counter":
        one = counter_trace(100.0, seed=seed)
    else:
        one = Trace(sensor(kind), [Reading(b, a, rng.uniform(90, 110)) for b, a in read_times(seed, 14.0)])
    one = Trace(sensor(kind), one.readings)  # without a resolution, which would not scale
    other = Trace(one.sensor, [Reading(r.before_s, r.after_s, factor * r.value) for r in one.readings])
    found, scaled = energy_of(one, 2.0, 12.0), energy_of(other, 2.0, 12.0)
    assert scaled.energy_j == pytest.approx(factor * found.energy_j, rel=1e-6)
    assert scaled.relative_uncertainty == pytest.approx(found.relative_uncertainty, rel=1e-6)


@given(st.integers(0, 1000), st.floats(4.5, 9.5))
def test_a_window_cut_in_two_adds_up(seed: int, cut_s: float) -> None:
    rng = random.Random(seed)
    levels_w = [rng.uniform(100, 700) for _ in range(30)]
    readings = [Reading(b, a, levels_w[int(a)] + rng.uniform(-5, 5)) for b, a in read_times(seed, 14.0)]
    trace = Trace(sensor("instantaneous"), readings)
    whole, left, right = (integrated(trace, *span) for span in ((2.0, 12.0), (2.0, cut_s), (cut_s, 12.0)))
    allowed_j = math.hypot(whole.uncertainty_j, left.uncertainty_j, right.uncertainty_j)
    assert abs(whole.energy_j - left.energy_j - right.energy_j) <= allowed_j


def test_a_counter_cut_at_one_of_its_ticks_adds_up_exactly() -> None:
    trace = counter_trace(400.0)
    middle = next(tick for tick in ticks(trace.readings, trace.sensor)[0] if tick.before_s > 7.0)
    left, right = energy_of(trace, 2.0, middle.after_s), energy_of(trace, middle.before_s, 12.0)
    assert left.end_s == right.start_s == middle.middle_s
    assert energy_of(trace, 2.0, 12.0).energy_j == pytest.approx(left.energy_j + right.energy_j, rel=1e-12)


@given(st.integers(0, 100), st.floats(0.0, 4000.0))
def test_a_wrap_is_undone(seed: int, before_wrap_j: float) -> None:
    plain = counter_trace(250.0, seed=seed, period_s=0.001)
    wrapping = sensor("counter", 0.001, wraps_at_j=RAPL_RANGE_J, resolution=0.001)
    start_j = RAPL_RANGE_J - before_wrap_j
    wrapped = [Reading(r.before_s, r.after_s, (start_j + r.value) % RAPL_RANGE_J) for r in plain.readings]
    found, expected = energy_of(Trace(wrapping, wrapped), 2.0, 12.0), energy_of(plain, 2.0, 12.0)
    assert found.energy_j == pytest.approx(expected.energy_j, abs=1e-3)
    assert found.uncertainty_j == pytest.approx(expected.uncertainty_j, rel=1e-3)


def test_a_reset_is_refused() -> None:
    trace = counter_trace(250.0)
    with pytest.raises(NoEnergy, match="the counter was reset within the window"):
        energy_of(changed(trace, {100: -trace.readings[99].value}), 2.0, 12.0)


@pytest.mark.parametrize("hole_s", [0.0, 4.0])
def test_a_reset_is_no_wrap_even_behind_a_hole_long_enough_for_one(hole_s: float) -> None:
    plain = counter_trace(250.0, period_s=0.001)
    readings = []
    for r in plain.readings:
        if not 6.0 < r.after_s < 6.0 + hole_s:
            readings.append(Reading(r.before_s, r.after_s, r.value + (150e3 if r.after_s <= 6.0 else -1500.0)))
    with pytest.raises(NoEnergy, match="the counter was reset"):
        energy_of(Trace(sensor("counter", 0.001, wraps_at_j=RAPL_RANGE_J), readings), 2.0, 12.0)


def test_a_reset_before_the_window_does_not_matter() -> None:
    trace = counter_trace(250.0)
    found = energy_of(changed(trace, {20: -trace.readings[19].value}), 3.0, 12.0)
    assert found.power_w == pytest.approx(250.0, rel=0.02)


def test_a_counter_that_jumps_is_refused() -> None:
    with pytest.raises(NoEnergy, match=r"the counter jumped by 1e\+06 J"):
        energy_of(changed(counter_trace(250.0), {100: 1e6}), 2.0, 12.0)


def test_a_nonsensical_power_is_refused() -> None:
    with pytest.raises(NoEnergy, match=r"the sensor read 1e\+09 W, which is nonsense"):
        energy_of(changed(power_trace(250.0), {100: 1e9, 101: -1e9}), 2.0, 12.0)


@pytest.mark.parametrize("trace", [counter_trace(250.0), power_trace(250.0)], ids=["counter", "power"])
def test_under_two_seconds_there_is_no_energy(trace: Trace) -> None:
    with pytest.raises(NoEnergy, match=r"the window of 1.9 s is shorter than 2 s"):
        energy_of(trace, 2.0, 3.9)
    energy_of(trace, 2.0, 4.5)


def test_a_counter_is_given_between_its_ticks_and_these_must_cover_two_seconds() -> None:
    with pytest.raises(NoEnergy, match=r"its ticks cover 1.9 s, less than 2 s"):
        energy_of(counter_trace(250.0), 2.0, 4.05)
    with pytest.raises(NoEnergy, match="the counter ticked 0 times in the window; 8 are required"):
        energy_of(counter_trace(0.0), 2.0, 12.0)
    with pytest.raises(NoEnergy, match="the counter ticked 6 times"):
        energy_of(counter_trace(250.0, period_s=1.0), 1.5, 7.5)


def test_too_few_readings_have_no_energy() -> None:
    few = Trace(sensor("instantaneous", 1.0), [Reading(float(i), float(i), 100.0) for i in range(30)])
    with pytest.raises(NoEnergy, match="the sensor gave 5 readings in the window; 8 are required"):
        energy_of(few, 2.5, 7.5)
    with pytest.raises(NoEnergy, match="the sensor gave 0 readings"):
        energy_of(Trace(few.sensor), 2.5, 7.5)


@pytest.mark.parametrize(("from_s", "to_s"), [(1.0, 4.0), (10.0, 13.9)])
def test_a_hole_over_an_edge_is_refused(from_s: float, to_s: float) -> None:
    trace = power_trace(250.0)
    holed = Trace(trace.sensor, [r for r in trace.readings if not from_s < r.after_s < to_s])
    with pytest.raises(NoEnergy, match="no readings at an edge of the window"):
        energy_of(holed, 2.0, 12.0)


def test_a_hole_makes_a_varying_power_unsure_but_not_a_counter() -> None:
    def holed(trace: Trace) -> Trace:
        return Trace(trace.sensor, [r for r in trace.readings if not 5.0 < r.after_s < 8.0])

    counter = counter_trace(250.0)
    assert energy_of(holed(counter), 2.0, 12.0).energy_j == energy_of(counter, 2.0, 12.0).energy_j
    assert energy_of(holed(counter), 2.0, 12.0).largest_gap_s > 2.9
    varying = Trace(sensor("instantaneous"), [Reading(b, a, 500.0 - 300.0 * (a % 2 < 1)) for b, a in read_times(1, 14)])
    sure, unsure = energy_of(varying, 2.0, 12.0), energy_of(holed(varying), 2.0, 12.0)
    assert sure.uncertainty_j < 200.0
    assert unsure.uncertainty_j >= 0.5 * 2.9 * 300.0


def test_a_ramp_read_late_is_within_its_uncertainty() -> None:
    late_s, slope = 0.05, 50.0
    readings = [Reading(b, a, 100.0 + slope * (0.5 * (a + b) - late_s)) for b, a in read_times(1, 14.0)]
    found = energy_of(Trace(sensor("instantaneous"), readings), 2.0, 12.0)
    truth_j = 10.0 * (100.0 + slope * 7.0)
    assert found.energy_j < truth_j - 20.0
    assert abs(found.energy_j - truth_j) <= found.uncertainty_j
    assert found.relative_uncertainty < 0.02


def test_a_part_time_sensor_is_less_sure_than_one_that_looks_all_the_time() -> None:
    readings = [Reading(b, a, 400.0 + 100.0 * math.sin(40.0 * a)) for b, a in read_times(1, 14.0)]
    full, part = (
        energy_of(Trace(sensor("instantaneous", seen_share=share), readings), 2.0, 12.0) for share in (1.0, 0.25)
    )
    assert part.energy_j == full.energy_j
    assert part.uncertainty_j > 1.1 * full.uncertainty_j


def test_what_a_sensor_rounds_is_part_of_its_uncertainty() -> None:
    coarse = Trace(sensor("instantaneous", resolution=8.0), power_trace(200.0).readings)
    assert energy_of(coarse, 2.0, 12.0).uncertainty_j == pytest.approx(0.5 * 8.0 * 10.0)


def test_an_average_is_the_power_of_half_its_window_ago() -> None:
    def averaged_w(at_s: float) -> float:  # of a step from 100 W to 500 W at 7 s
        return 100.0 + 400.0 * min(max(at_s - 7.0, 0.0), 1.0)

    readings = [Reading(b, a, averaged_w(0.5 * (a + b))) for b, a in read_times(1, 14.0)]
    found = energy_of(Trace(sensor("average", window_s=1.0), readings), 2.0, 12.0)
    assert found.energy_j == pytest.approx(500.0 + 2500.0, rel=0.002)


any_value = st.one_of(
    st.floats(0.0, 1000.0),
    st.sampled_from([0.0, 100.0, 65532.0, -1.0]),
    st.floats(allow_nan=False, allow_infinity=False),
)
any_gap = st.one_of(st.just(0.0), st.floats(1e-7, 0.5), st.floats(0.0, 20.0))
any_sensor = st.builds(
    sensor,
    st.sampled_from(KINDS),
    st.one_of(st.none(), st.floats(1e-3, 2.0)),
    window_s=st.one_of(st.none(), st.floats(0.0, 2.0)),
    wraps_at_j=st.one_of(st.none(), st.just(65532.610987)),
    resolution=st.sampled_from([0.0, 0.001, 1.0]),
    seen_share=st.sampled_from([1.0, 0.25]),
)


@given(
    any_sensor,
    st.lists(st.tuples(any_gap, st.floats(0.0, 0.3), any_value), max_size=80),
    st.floats(0, 30),
    st.floats(0, 60),
)
def test_any_readings_give_a_finite_energy_or_the_reason_why_not(
    of: Sensor, steps: list[tuple[float, float, float]], start_s: float, length_s: float
) -> None:
    readings, now_s = [], 0.0
    for gap_s, takes_s, value in steps:
        now_s += gap_s + takes_s
        readings.append(Reading(now_s - takes_s, now_s, value))
    try:
        found = energy_of(Trace(of, readings), start_s, start_s + length_s)
    except NoEnergy:
        return
    assert math.isfinite(found.energy_j)
    assert math.isfinite(found.uncertainty_j)
    assert found.uncertainty_j >= 0.0
    assert math.isfinite(found.power_w)
    assert start_s <= found.start_s < found.end_s <= start_s + length_s
    assert not math.isnan(found.relative_uncertainty)


@given(any_sensor, st.integers(0, 50), st.lists(st.tuples(st.integers(20, 250), any_value), max_size=6))
def test_a_good_recording_with_some_nonsense_in_it_gives_a_finite_energy_or_a_reason(
    of: Sensor, seed: int, nonsense: list[tuple[int, float]]
) -> None:
    readings = (
        counter_trace(300.0, seed=seed).readings if of.kind == "counter" else power_trace(300.0, seed=seed).readings
    )
    for place, value in nonsense:
        readings[place] = Reading(readings[place].before_s, readings[place].after_s, value)
    try:
        found = energy_of(Trace(of, readings), 2.0, 12.0)
    except NoEnergy:
        return
    assert math.isfinite(found.energy_j)
    assert math.isfinite(found.uncertainty_j)

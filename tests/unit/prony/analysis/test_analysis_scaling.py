"""A scaling study that hides what else changed, what was lost, or that it cannot be true, is not believable."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from documents import of_documents, typed
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_records import ONE_DEVICE_RATE, metric, scaled_record, series

from prony.analysis.scaling import COMMUNICATION, IMBALANCE, INPUT, REST, Losses, Scaling, ScalingPoint, scaling
from prony.analysis.scaling_series import find_series
from prony.analysis.variation import PRIOR_DEVIATION
from prony_node.contract.errors import RequestError
from prony_node.contract.facts import ConditionSample, DeviceFacts
from prony_node.facts.watch import watch_checks

scaling, find_series = map(of_documents, (scaling, find_series))

Record = dict[str, Any]
COUNTS = (1, 2, 4, 8)


def at(found: Scaling, devices: int) -> ScalingPoint:
    return next(point for point in found.points if point.devices == devices)


def share(lost: Losses, name: str) -> float:
    part = next(part for part in lost.parts if part.name == name)
    assert part.share is not None
    return part.share.value


def losses_of(found: Scaling, devices: int) -> Losses:
    lost = at(found, devices).losses
    assert lost is not None
    return lost


@settings(max_examples=20)
@given(kind=st.sampled_from(["weak", "strong"]), half=st.floats(0.0001, 0.05))
def test_perfect_scaling_loses_nothing(kind: str, half: float) -> None:
    records = series({count: count for count in COUNTS}, kind, half)
    records += [scaled_record(n, n * ONE_DEVICE_RATE, kind=kind, sync=False, half=half) for n in (2, 4, 8)]
    found = scaling(records, kind)
    for point in found.points:
        assert point.efficiency is not None
        assert point.efficiency.value == pytest.approx(1.0)
        assert point.efficiency.low is not None
        assert point.efficiency.low <= 1.0 + 1e-9
    assert all(part.share is None or part.share.value == 0.0 for part in losses_of(found, 8).parts)
    assert found.alarms == []
    assert found.fit is not None
    assert found.fit.sigma.value == pytest.approx(0.0, abs=1e-9)


rates = st.floats(50.0, 20_000.0)
shares = st.floats(0.0, 0.9)


@given(one=rates, many=rates, free=st.none() | rates, waits=st.none() | st.tuples(shares, shares, shares),
       times=st.none() | st.lists(st.floats(0.001, 1.0), min_size=4, max_size=4))  # fmt: skip
def test_losses_are_never_negative_and_sum_to_the_whole(
    one: float, many: float, free: float | None, waits: tuple[float, float, float] | None, times: list[float] | None
) -> None:
    wait_one, wait_many, wait_free = waits or (None, None, None)
    records = [scaled_record(1, one, wait=wait_one), scaled_record(4, many, wait=wait_many, paces=times)]
    if free is not None:
        records.append(scaled_record(4, free, sync=False, wait=wait_free, paces=times))
    found = scaling(records, "weak")
    lost, efficiency = losses_of(found, 4), at(found, 4).efficiency
    assert efficiency is not None
    assert lost.lost.value == max(0.0, 1.0 - efficiency.value)
    known = [part.share for part in lost.parts if part.share is not None]
    assert all(one.value >= 0.0 for one in known)
    assert all(one.low is None or one.high is None or one.low <= one.value <= one.high for one in known)
    assert sum(one.value for one in known) == pytest.approx(lost.lost.value, abs=1e-9)
    assert all(part.reason for part in lost.parts if part.share is None)


@settings(max_examples=20)
@given(order=st.randoms(use_true_random=False))
def test_the_order_of_the_records_does_not_matter(order: random.Random) -> None:
    records = [scaled_record(n, ONE_DEVICE_RATE * n**0.9 * (1 + 0.01 * repeat), repeat=repeat, sync=sync)
               for n in COUNTS for repeat in range(2) for sync in (True, False) if n > 1 or sync]  # fmt: skip
    expected = scaling(records, "weak").to_json()
    order.shuffle(records)
    assert scaling(records, "weak").to_json() == expected


def test_speedup_and_efficiency_include_the_variation_between_runs() -> None:
    found = scaling(series({1: 1.0, 4: 3.6}, half=0.0001), "weak")
    point = at(found, 4)
    assert point.speedup is not None
    assert point.efficiency is not None
    assert point.speedup.value == pytest.approx(3.6)
    assert point.speedup.high == pytest.approx(3.6 * math.exp(2**0.5 * 12.706 * PRIOR_DEVIATION), rel=1e-3)
    assert point.efficiency.low == pytest.approx((point.speedup.low or 0.0) / 4)
    assert point.side.interval == "between-run SD from the prior"
    assert at(found, 1).efficiency is not None


def test_a_count_that_was_run_once_varies_as_the_others_do() -> None:
    records = [scaled_record(1, 1000.0 * by, repeat=r) for r, by in enumerate((0.99, 1.0, 1.01))]
    point = at(scaling([*records, scaled_record(2, 1900.0)], "weak"), 2)
    assert point.side.interval.startswith("between-run SD from 3 repeats of the nearest settings")
    assert point.efficiency is not None
    assert point.efficiency.low == pytest.approx(0.95 * math.exp(-4.303 * 0.01 * (4 / 3) ** 0.5), rel=1e-3)


def test_repeats_have_the_interval_between_runs() -> None:
    records = [scaled_record(n, 1000.0 * n * by, repeat=r) for n in (1, 2) for r, by in enumerate((0.99, 1.0, 1.01))]
    assert [point.side.interval for point in scaling(records, "weak").points] == ["between 3 runs"] * 2


@pytest.mark.parametrize("free", ["first", "held up", "summed"])
@pytest.mark.parametrize("slow_first", [False, True])
def test_the_parts_are_those_that_were_put_in(free: str, slow_first: bool) -> None:
    """Of a step of 100 on 2 devices: 80 of work and its own wait, 4 of further wait, 3 of whatever else, 3 for the slow
    rank, 10 for the network. The mean of the ranks that counts is the harmonic one, 87, and the slow one takes 90.

    The rate with sync=off is that of the first rank, which may go its own pace or be held up, or that of all."""
    slow_s = 0.090
    fast_s = 1.0 / (2.0 / 0.087 - 1.0 / slow_s)
    paces = [slow_s, fast_s] if slow_first else [fast_s, slow_s]
    steps_s = [slow_s, slow_s] if free == "held up" else paces
    free_s = 0.087 if free == "summed" else steps_s[0]
    records = [
        scaled_record(1, 1.0 / 0.080, wait=0.10),
        scaled_record(2, 2.0 / 0.100, wait=0.05, paces=paces),
        scaled_record(
            2, 2.0 / free_s, sync=False, wait=12.0 / 87.0, paces=paces, steps_s=steps_s, summed=free == "summed"
        ),
    ]
    lost = losses_of(scaling(records, "weak"), 2)
    assert lost.lost.value == pytest.approx(0.20)
    assert share(lost, COMMUNICATION) == pytest.approx(0.10)
    assert share(lost, IMBALANCE) == pytest.approx(0.03)
    assert share(lost, INPUT) == pytest.approx(0.04)
    assert share(lost, REST) == pytest.approx(0.03)
    communication = lost.parts[0].share
    assert communication is not None
    assert communication.low is not None
    assert communication.low < 0.10 < (communication.high or 0.0)


def test_ranks_whose_order_changes_from_run_to_run_are_no_imbalance() -> None:
    paces = [0.100, 0.104]
    records = [
        scaled_record(1, 1000.0),
        scaled_record(2, 1800.0, paces=paces),
        scaled_record(2, 1900.0, sync=False, paces=paces[::-1]),
    ]
    assert share(losses_of(scaling(records, "weak"), 2), IMBALANCE) == pytest.approx(0.0)


@pytest.mark.parametrize("ranks", [None, [], [{"rank": 0, "pace": None}, {"rank": 1}]])
def test_a_record_without_paces_leaves_imbalance_unknown(ranks: Any) -> None:
    records = [scaled_record(1, 1000.0), scaled_record(2, 1800.0), scaled_record(2, 1900.0, sync=False)]
    records[1]["parallel"] = records[2]["parallel"] = {"ranks": ranks}
    part = next(part for part in losses_of(scaling(records, "weak"), 2).parts if part.name == IMBALANCE)
    assert part.share is None
    assert part.reason == "the records do not hold how long each rank takes by itself"


@pytest.mark.parametrize("ranks", ["two", [1, 2], [{"rank": 0, "pace": "fast"}]])
def test_ranks_of_another_kind_are_refused_by_their_name(ranks: Any) -> None:
    records = [scaled_record(1, 1000.0), scaled_record(2, 1800.0), scaled_record(2, 1900.0, sync=False)]
    records[1]["parallel"] = records[2]["parallel"] = {"ranks": ranks}
    with pytest.raises(RequestError, match=r"the record's parallel\.ranks"):
        scaling(records, "weak")


def test_a_straggler_is_named() -> None:
    late = scaled_record(
        2, 1500.0, checks={"ranks": ("warn", "straggler: rank 1 (node017, cuda:1) takes 20.0% longer")}
    )
    (doubt,) = losses_of(scaling([scaled_record(1, 1000.0), late], "weak"), 2).doubts
    assert doubt.startswith("straggler: rank 1 (node017, cuda:1)")


def test_what_was_not_measured_is_in_the_rest_with_its_reason() -> None:
    lost = losses_of(scaling(series({1: 1.0, 2: 1.8}), "weak", no_free="--no-diagnose was given"), 2)
    reasons = {part.name: part.reason for part in lost.parts}
    assert reasons[COMMUNICATION] == "--no-diagnose was given"
    assert share(lost, REST) == pytest.approx(0.1)
    failed = scaled_record(2, 0.0, sync=False, failed="rank 1 ran out of memory")
    lost = losses_of(scaling([*series({1: 1.0, 2: 1.8}), failed], "weak"), 2)
    assert "rank 1 ran out of memory" in str(lost.parts[0].reason)


def test_copies_lose_nothing_to_an_exchange_that_they_do_not_have() -> None:
    records = [scaled_record(1, 1000.0), scaled_record(2, 1600.0)]
    records[1]["trial"]["effective"]["parallel"] = "independent"
    lost = losses_of(scaling(records, "weak", no_free="sync has no meaning with parallel=independent"), 2)
    assert [share(lost, name) for name in (COMMUNICATION, IMBALANCE)] == [0.0, 0.0]
    assert share(lost, REST) == pytest.approx(0.2)


def test_a_free_run_that_is_slower_raises_a_doubt() -> None:
    records = [*series({1: 1.0, 2: 1.8}), scaled_record(2, 1500.0, sync=False)]
    (doubt,) = losses_of(scaling(records, "weak"), 2).doubts
    assert "something other than synchronisation" in doubt


def test_nothing_else_changed_in_a_series_that_is_one() -> None:
    for kind in ("weak", "strong"):
        records = [*series({1: 1.0, 2: 1.8}, kind), scaled_record(2, 1900.0, kind=kind, sync=False)]
        assert scaling(records, kind).changes == []


def test_what_else_changed_is_named_with_its_values() -> None:
    records = series({1: 1.0, 2: 1.8, 4: 3.0})
    records[1]["trial"]["effective"]["workers"] = records[2]["trial"]["effective"]["workers"] = 4
    records[0]["trial"]["effective"]["workers"] = 8
    records[2]["facts"]["devices"][3]["name"] = "NVIDIA H100"
    records[2]["facts"]["software"]["torch"] = "2.12.0"
    found = {change.what: change for change in scaling(records, "weak").changes}
    assert set(found) == {"workers", "devices.0.name", "software.torch"}
    assert found["workers"].others == {"2": 4, "4": 4}
    assert found["workers"].sentence == "workers: 8 on one device, 4 on 2, 4 on 4"


def test_cores_are_compared_as_those_of_a_rank() -> None:
    """A node's cores are shared out: the same list of cores is fewer for each rank."""
    records = series({1: 1.0, 2: 1.8, 4: 3.0})
    for record, cores in zip(records, ("2", "4", "8"), strict=True):
        record["trial"]["settings"]["cores"] = record["trial"]["effective"]["cores"] = cores
    assert scaling(records, "weak").changes == []
    assert len(find_series(records)) == 1
    for record in records:
        record["trial"]["settings"]["cores"] = record["trial"]["effective"]["cores"] = "0-2,8"
    (change,) = scaling(records, "weak").changes
    assert change.sentence == "cores of a rank: 4 on one device, 2 on 2, 1 on 4"
    records[2]["trial"]["effective"]["nodes"] = 2
    (change,) = scaling(records, "weak").changes
    assert change.sentence == "cores of a rank: 4 on one device, 2 on 2, 2 on 4", "two nodes have four each"


def test_a_share_of_the_cores_is_divided_among_the_ranks_too() -> None:
    records = series({1: 1.0, 2: 1.8, 4: 3.0})
    for record in records:
        record["trial"]["settings"]["cores"] = record["trial"]["effective"]["cores"] = "50%"
    (change,) = scaling(records, "weak").changes
    assert change.sentence == "cores of a rank: 50% on one device, 25% on 2, 12.5% on 4"


def test_a_batch_that_changed_is_a_change_in_weak_scaling_alone() -> None:
    records = series({1: 1.0, 2: 1.8}, "strong")
    assert [change.what for change in scaling(records, "weak").changes] == ["batch_size"]
    assert scaling(records, "strong").changes == []


def test_another_machine_by_its_fingerprint() -> None:
    records = series({1: 1.0, 2: 1.8})
    records[1]["fingerprint"]["machine"] = "other"
    (change,) = scaling(records, "weak").changes
    assert change.what == "fingerprint of the machine"


def test_what_counts_as_a_device_is_said() -> None:
    records = series({1: 1.0, 2: 1.8})
    assert scaling(records, "weak").device == "NVIDIA H200 (one GPU)"
    for device in (device for record in records for device in record["facts"]["devices"]):
        device |= {"kind": "cpu", "name": "Xeon", "counts_as": "the host's CPUs"}
    assert scaling(records, "weak").device == "a process on Xeon"


def test_failed_runs_leave_a_gap_with_its_reason() -> None:
    records = [*series({1: 1.0, 2: 1.8}), scaled_record(4, 0.0, failed="rank 3 ran out of memory")]
    found = scaling(records, "weak")
    assert at(found, 4).speedup is None
    assert at(found, 4).reason == "no run on 4 devices ended well"
    assert "rank 3 ran out of memory" in found.left_out[0]
    assert found.fit is not None
    assert found.fit.counts == [2]


def test_without_one_device_there_is_no_efficiency() -> None:
    records = [scaled_record(1, 0.0, failed="out of memory"), scaled_record(2, 1800.0)]
    found = scaling(records, "weak")
    assert found.fit is None
    assert "against one device" in str(at(found, 2).reason)


def test_a_diagnostic_alone_gives_a_point_without_a_rate() -> None:
    found = scaling([scaled_record(1, 1000.0), scaled_record(2, 1900.0, sync=False)], "weak")
    assert at(found, 2).reason == "no run on 2 devices ended well"


def test_nodes_are_points_of_their_own() -> None:
    records = [*series({1: 1.0, 2: 1.9}), scaled_record(2, 1500.0, repeat=1, settings={"nodes": 2})]
    found = scaling(records, "weak")
    assert [(point.devices, point.nodes) for point in found.points] == [(1, 1), (2, 1), (2, 2)]
    assert [point.speedup.value for point in found.points if point.speedup] == pytest.approx([1.0, 1.9, 1.5])
    assert found.changes == []


# Above 100 %


def alarm_of(one: Record, many: Record, kind: str = "weak") -> list[str]:
    (alarm,) = scaling([one, many], kind).alarms
    assert alarm.shown
    return alarm.causes


def test_above_ideal_is_an_alarm_with_what_changed() -> None:
    causes = alarm_of(
        scaled_record(1, 1000.0, settings={"workers": 1}), scaled_record(2, 2200.0, settings={"workers": 8})
    )
    assert causes[0] == "not only the devices changed: workers: 1 on one device, 8 on 2"


def test_a_throttled_run_on_one_device_is_the_cause() -> None:
    hot = scaled_record(1, 1000.0, checks={"throttled": ("warn", "the device was throttled: heat")})
    assert alarm_of(hot, scaled_record(2, 2200.0)) == [
        "the run on one device was slowed down (throttled): the device was throttled: heat"
    ]


def test_a_lower_clock_on_one_device_is_the_cause() -> None:
    one, two = (
        next(one.message for one in watch_checks(samples, None, DeviceFacts(kind="cuda")) if one.name == "clocks")
        for samples in ([ConditionSample(t, sm_clock_mhz=clock) for t in range(4)] for clock in (1400, 1900))
    )
    causes = alarm_of(
        scaled_record(1, 1000.0, checks={"clocks": ("pass", one)}),
        scaled_record(2, 2200.0, checks={"clocks": ("pass", two)}),
    )
    assert causes == ["the clock was lower on one device: 1400 MHz at most, against 1900 MHz at least"]


def test_input_that_one_device_waited_for_is_the_cause() -> None:
    (cause,) = alarm_of(scaled_record(1, 1000.0, wait=0.3), scaled_record(2, 2200.0, wait=0.1))
    assert "waited for input, 30.0 % of the step against 10.0 %" in cause


def test_memory_and_caches_are_causes() -> None:
    full = scaled_record(1, 1000.0, metrics={"peak_memory_reserved": metric(145e9, "B")})
    assert "97 % of the device's was in use" in alarm_of(full, scaled_record(2, 2200.0))[0]
    one = scaled_record(1, 1000.0, kind="strong", metrics={"peak_memory": metric(80e6, "B")})
    two = scaled_record(2, 2200.0, kind="strong", metrics={"peak_memory": metric(40e6, "B")})
    assert alarm_of(one, two, "strong")[0].startswith("a cache: what a device works on fits its 57 MiB")
    unknown = [scaled_record(count, rate, kind="strong") for count, rate in ((1, 1000.0), (2, 2200.0))]
    assert "the records do not show" in alarm_of(*unknown, "strong")[0]


def test_no_cause_in_the_records_is_said() -> None:
    (cause,) = alarm_of(scaled_record(1, 1000.0), scaled_record(2, 2200.0))
    assert cause.startswith("the records name none")


def test_an_interval_that_holds_ideal_shows_nothing() -> None:
    (alarm,) = scaling([scaled_record(1, 1000.0), scaled_record(2, 2004.0)], "weak").alarms
    assert not alarm.shown
    assert alarm.causes[0].startswith("chance")


# Series found among records


def test_series_are_found_among_other_records() -> None:
    weak, strong = series({1: 1.0, 2: 1.8}), series({1: 1.0, 2: 1.6, 4: 2.5}, "strong")
    other = scaled_record(4, 3000.0, batch=32)
    found = find_series([other, *strong[::-1], *weak[1:]])
    assert [(kind, {record.id for record in group}) for kind, group in found] == [
        ("weak", {strong[0]["id"], weak[1]["id"]}),
        ("strong", {record["id"] for record in strong}),
    ]
    assert find_series([other]) == []


def test_one_device_stands_beside_each_form_of_parallel_work() -> None:
    one, two, sharded = scaled_record(1, 1000.0), scaled_record(2, 1900.0), scaled_record(2, 1700.0, repeat=1)
    sharded["trial"]["settings"]["parallel"] = "fsdp"
    assert find_series([one, two, sharded]) == typed([("weak", [one, many]) for many in (two, sharded)])


def test_counts_on_other_machines_of_one_kind_are_one_series_beside_that_of_a_machine() -> None:
    here = series({1: 1.0, 2: 1.8, 4: 3.2})
    for record, machine in zip(here, "abc", strict=True):
        record["fingerprint"]["machine"] = machine
    assert find_series(here) == typed([("weak", here)])
    another = series({1: 1.0, 2: 1.8})
    for record in another:
        record["fingerprint"]["machine"] = "d"
    assert find_series([*here, *another]) == typed([("weak", another), ("weak", here)])
    assert find_series([*another, here[2]]) == typed([("weak", another), ("weak", [*another, here[2]])]), (
        "4 need their 1"
    )
    failed = scaled_record(8, 1.0, failed="out of memory")
    assert find_series([*another, here[0], failed]) == typed([("weak", another)]), "nothing that it does not have"
    here[0]["facts"]["devices"][0]["name"] = "NVIDIA A100-SXM4-80GB"
    assert find_series(here) == [], "another kind of device on one"

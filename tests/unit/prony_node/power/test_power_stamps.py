"""Driver's stamps on the monotonic clock, whatever is done to the wall clock."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prony_node.power.readers.nvidia import DriverStamps, clocks

WALL_S = 1.8e9


def test_both_clocks_are_of_one_instant() -> None:
    first, second = clocks(), clocks()
    assert second[0] - first[0] == pytest.approx(second[1] - first[1], abs=0.01)


def test_a_first_look_at_old_stamps_waits_for_a_second_one() -> None:
    """A driver that has stopped and a driver whose clock is off look alike at first; only the second goes on."""
    stamps = DriverStamps()
    assert stamps.place([int((WALL_S - 100) * 1e6)], WALL_S, 0.0) == [None]
    placed = stamps.place([int((WALL_S - 100 + 0.5) * 1e6)], WALL_S + 0.5, 0.5)
    assert placed == [0.5], "a clock of its own: the newest is now"


def test_a_stamp_slightly_ahead_is_clipped() -> None:
    stamps = DriverStamps()
    assert stamps.place([int((WALL_S + 0.01) * 1e6)], WALL_S, 5.0) == [5.0]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2**64 - 1) | st.integers(int(1.79e15), int(1.81e15)), max_size=6),
            st.floats(-1e6, 1e10),
            st.floats(0.0, 10.0),
        ),
        max_size=8,
    )
)
def test_no_stamp_and_no_clock_makes_time_run_backwards(
    calls: list[tuple[list[int], float, float]],
) -> None:
    stamps, now_s, last_s = DriverStamps(), 0.0, float("-inf")
    for stamps_us, wall_s, later_s in calls:
        now_s += later_s
        assert stamps.since_us(wall_s, now_s) >= 0
        placed = stamps.place(stamps_us, wall_s, now_s)
        assert len(placed) == len(stamps_us)
        for at_s in placed:
            if at_s is not None:
                assert last_s < at_s <= now_s
                last_s = at_s


@example([-2.0])  # the same stamps once more
@given(st.lists(st.floats(-5000.0, 5000.0), min_size=1, max_size=6))
def test_after_steps_readings_come_again(steps_s: list[float]) -> None:
    """A driver that stamps with the wall clock, every 20 ms, asked every 0.5 s; the clock is stepped in between."""
    stamps, buffer = DriverStamps(), []
    offset_s, counts = WALL_S, []
    for call in range(len(steps_s) * 4 + 4):
        if call % 4 == 2 and call // 4 < len(steps_s):
            offset_s += steps_s[call // 4]
        for tick in range(25):
            at_s = call * 0.5 + tick * 0.02
            buffer.append((round((at_s + offset_s) * 1e6), at_s))
        buffer, now_s = buffer[-120:], call * 0.5 + 0.495
        since_us = stamps.since_us(now_s + offset_s, now_s)
        new = [row for row in buffer if row[0] > since_us]
        placed = stamps.place([us for us, _ in new], now_s + offset_s, now_s)
        found = [(at_s, true_s) for at_s, (_, true_s) in zip(placed, new, strict=True) if at_s is not None]
        counts.append(len(found))
        if call % 4 == 1:  # long enough after a step
            assert all(at_s == pytest.approx(true_s, abs=0.001) for at_s, true_s in found)
            assert len(found) == 25

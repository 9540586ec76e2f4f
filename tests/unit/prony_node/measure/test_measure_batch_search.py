"""batch_size=auto finds the largest batch that fits, on any device whose need grows with the batch, in few tries."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from prony_node.measure.batch_search import MOST_TRIES, OutOfMemory, Tried, largest_that_fits, next_batch

GIB, MIB = 2**30, 2**20
ROOMS = st.integers(4, 190).map(lambda count: count * GIB)
BASES = st.floats(0.001, 60).map(lambda count: count * GIB)
COSTS = st.floats(0.05, 30_000).map(lambda count: count * MIB)


class Device:
    """Bytes that a batch needs, and what it says to have held, where that is something else."""

    def __init__(
        self, need: Callable[[int], float], room: int, says: Callable[[int], float | None] | None = None
    ) -> None:
        self.need, self.room, self.says = need, room, says or need
        self.tried: list[int] = []

    def try_batch(self, batch: int) -> Tried:
        assert batch >= 1
        assert batch not in self.tried  # a second time it says nothing new
        self.tried.append(batch)
        if self.need(batch) > self.room:
            return Tried(batch, False, room=self.room, reason="no room")
        held = self.says(batch)
        return Tried(batch, True, None if held is None else int(held), self.room)

    def largest(self, most: int = 2**20) -> int:
        """What is found; the law that holds for it is checked here, for every device."""
        if self.need(1) > self.room:
            reject()
        found = largest_that_fits(self.try_batch, most)
        assert found in self.tried
        assert self.need(found) <= self.room
        more = max(found + 1, math.floor(found * 1.05))
        assert more > most or self.need(more) > self.room, f"{more} would fit too: {self.tried}"
        assert len(self.tried) <= MOST_TRIES
        return found


@given(BASES, COSTS, ROOMS)
def test_a_cost_that_is_a_straight_line(base: float, cost: float, room: int) -> None:
    device = Device(lambda batch: base + cost * batch, room)
    device.largest()
    assert len(device.tried) <= 8


@given(BASES, COSTS, st.floats(0, 1), ROOMS)
def test_a_sample_that_costs_more_in_a_large_batch(base: float, cost: float, bend: float, room: int) -> None:
    device = Device(lambda batch: base + cost * batch * (1 + bend * cost * batch / room), room)
    device.largest()
    assert len(device.tried) <= 20


@given(BASES, COSTS, ROOMS, st.integers(1, 512))
def test_an_allocator_that_takes_memory_in_large_pieces(base: float, cost: float, room: int, piece: int) -> None:
    device = Device(lambda batch: math.ceil((base + cost * batch) / (piece * MIB)) * piece * MIB, room)
    device.largest()
    assert len(device.tried) <= 20


@given(BASES, COSTS, ROOMS, st.integers(0, 2**32))
def test_what_is_held_varies_from_try_to_try(base: float, cost: float, room: int, seed: int) -> None:
    """Which kernel the autotuner picks is chance: what was held predicts badly, and the law holds all the same."""
    chance = random.Random(seed)
    device = Device(
        lambda batch: base + cost * batch, room, lambda batch: (base + cost * batch) * chance.uniform(0.9, 1)
    )
    device.largest()
    assert len(device.tried) <= 24


@given(BASES, COSTS, ROOMS, st.floats(1, 3))
def test_an_allocator_that_takes_what_it_can_get(base: float, cost: float, room: int, greed: float) -> None:
    """Near its limit it lives on less: full memory is no sign that a larger batch does not fit."""
    device = Device(lambda batch: base + cost * batch, room, lambda batch: min(room, greed * (base + cost * batch)))
    device.largest()
    assert len(device.tried) <= 20


@given(BASES, COSTS, ROOMS)
def test_a_device_that_does_not_tell_what_it_holds(base: float, cost: float, room: int) -> None:
    Device(lambda batch: base + cost * batch, room, lambda batch: None).largest()


@given(st.integers(1, 2**20), st.integers(0, 2**32))
def test_nothing_that_is_reported_can_mislead_it(largest: int, seed: int) -> None:
    chance = random.Random(seed)
    device = Device(
        lambda batch: batch, largest, lambda batch: chance.choice([None, 1, largest, chance.randrange(largest)])
    )
    found = device.largest()
    assert found <= largest


@given(st.integers(1, 3000))
def test_where_all_fits_it_ends_at_the_most_that_was_stated(most: int) -> None:
    device = Device(lambda batch: 1000 + batch, 10**12)
    assert device.largest(most) == most


def test_not_even_one_sample() -> None:
    device = Device(lambda batch: 9 * GIB, 8 * GIB)
    with pytest.raises(OutOfMemory, match="not even one sample fits: no room"):
        largest_that_fits(device.try_batch)
    assert device.tried == [8, 1]


@given(st.integers(2, 40), st.integers(2, 12))
def test_no_batch_is_tried_that_a_step_may_not_have(largest: int, least: int) -> None:
    """A batch norm of one value an image has nothing to normalise: such a model cannot be tried with one sample."""
    device = Device(lambda batch: batch, largest)
    if largest < least:
        with pytest.raises(OutOfMemory, match=f"not even {least} samples fit: no room"):
            largest_that_fits(device.try_batch, least=least)
    else:
        assert largest_that_fits(device.try_batch, least=least) <= largest
    assert min(device.tried) >= least


def test_typical_devices_take_five_tries_at_most() -> None:
    """GiB of model and sample as large image models and decoders have: each try is a compilation, so few must do."""
    for base, cost, room in ((1.2, 0.042, 139), (1.2, 0.042, 8), (13.0, 1.9, 79), (0.3, 0.013, 24)):
        device = Device(lambda batch, base=base, cost=cost: (base + cost * batch) * GIB, room * GIB)
        device.largest()
        assert len(device.tried) <= 5, device.tried


def test_large_batches_suit_matrix_units() -> None:
    device = Device(lambda batch: GIB + 40 * MIB * batch, 139 * GIB)
    assert device.largest() % 8 == 0


def test_it_has_ended_when_neighbours_are_known() -> None:
    assert next_batch([Tried(7, True, 7, 8)], 8, 2**20) is None
    assert next_batch([Tried(100, True, 7, 8)], 104, 2**20) is None
    assert next_batch([Tried(100, True, 7, 8)], 106, 2**20) in range(101, 106)

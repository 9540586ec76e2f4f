"""Which node is out of family."""

from __future__ import annotations

import random

from prony.analysis.variation import family


def test_the_one_slow_node_is_named_and_does_not_hide_itself() -> None:
    rates = {f"n{number}": 100.0 + 0.2 * number for number in range(9)} | {"n9": 91.0}
    found = family(rates)
    assert found is not None
    assert [member.name for member in found.members if member.out] == ["n9"]
    assert found.members[0].name == "n9"
    assert "out of family: n9 (-" in found.verdict


def test_small_differences_are_no_reason_to_swap_a_node() -> None:
    found = family({"a": 100.0, "b": 100.0, "c": 100.0, "d": 101.5})
    assert found is not None
    assert not any(member.out for member in found.members)
    assert "within ± 2.0 %" in found.verdict


def test_nodes_that_are_alike_are_seldom_accused() -> None:
    draw = random.Random(1)
    accused = 0
    for _ in range(200):
        found = family({str(node): draw.gauss(100.0, 3.0) for node in range(16)})
        assert found is not None
        accused += any(member.out for member in found.members)
    assert accused < 10


def test_of_a_few_nodes_nobody_can_say() -> None:
    found = family({"a": 100.0, "b": 50.0, "c": 100.0})
    assert found is not None
    assert found.allowed is None
    assert "can be told from 4 on" in found.verdict
    assert family({}) is None

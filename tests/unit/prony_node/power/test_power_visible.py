"""CUDA_VISIBLE_DEVICES in all its forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.power.readers.nvidia import Gpu, visible_gpus

A, B, C = (Gpu(f"GPU-{letter * 4}-{letter}") for letter in "abc")
TWIN = Gpu("GPU-aaab-0")
SLICED = Gpu("GPU-dddd-d", (("MIG-1111-x", "MIG-GPU-dddd-d/1/0"), ("MIG-1122-y", "MIG-GPU-dddd-d/2/0")))
NODE = (A, B, C, SLICED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [A, B, C, SLICED]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,2", [A, C]),
        ("2, 0", [C, A]),
        ("0,9,1", [A]),
        ("0,-1,1", [A]),
        ("1,", [B]),
        ("0,,1", [A]),
        ("0,0", []),
        ("1x", [B]),
        ("GPU-bbbb", [B]),
        ("GPU-bbbb-b,GPU-a", [B, A]),
        ("GPU-", []),
        ("GPU-bbbb,GPU-b", []),
        ("GPU-bbbb,1", [B]),
        ("1,GPU-aaaa", [B]),
        ("GPU-nnnn,GPU-aaaa", []),
        ("MIG-1111-x", [SLICED]),
        ("MIG-112", [SLICED]),
        ("MIG-11", []),
        ("MIG-1111-x,MIG-1122-y", [SLICED]),
        ("MIG-1111-x,MIG-1111", []),
        ("MIG-GPU-dddd-d/2/0", [SLICED]),
        ("MIG-GPU-dddd-d/9/0", []),
        ("MIG-GPU-aaaa-a/1/0", [A]),
        ("3", [SLICED]),
        ("99999999999999999999", []),
        ("٣", []),
    ],
)
def test_what_cuda_shows(text: str | None, expected: list[Gpu]) -> None:
    assert visible_gpus(text, NODE).uuids == tuple(gpu.uuid for gpu in expected)


def test_a_prefix_of_two_gpus_names_none() -> None:
    assert visible_gpus("GPU-aaa", (A, TWIN)).uuids == ()
    assert visible_gpus("GPU-aaaa", (A, TWIN)).uuids == (A.uuid,)


def test_a_slice_is_known_as_one() -> None:
    for text in (None, "3", "GPU-dddd", "MIG-1111-x"):
        assert visible_gpus(text, NODE).sliced == {SLICED.uuid}
    assert visible_gpus("0", NODE).sliced == frozenset()


def test_what_was_passed_over_is_said() -> None:
    assert "from '9' on" in visible_gpus("0,9,1", NODE).note
    assert "twice" in visible_gpus("0,0", NODE).note
    assert visible_gpus("0,1", NODE).note == ""


@given(
    st.one_of(
        st.text(),
        st.lists(
            st.sampled_from(["0", "1", "-1", "GPU-a", "GPU-bbbb-b", "MIG-1111-x", "MIG-GPU-dddd-d/1/0", " 2", ""])
        ).map(",".join),
    )
)
def test_any_text_shows_devices_of_the_node_once_each(text: str) -> None:
    visible = visible_gpus(text, NODE)
    assert set(visible.uuids) <= {gpu.uuid for gpu in NODE}
    assert len(set(visible.uuids)) == len(visible.uuids)
    assert visible.sliced <= set(visible.uuids)
    assert visible.uuids or visible.note, "nothing to see has a reason"
    assert visible_gpus(text, ()).uuids == ()


@given(st.permutations(range(3)), st.integers(0, 3))
def test_a_list_of_good_indices_is_taken_as_it_stands(order: list[int], count: int) -> None:
    text = ",".join(map(str, order[:count]))
    assert visible_gpus(text, NODE).uuids == tuple(NODE[index].uuid for index in order[:count])

"""Frames in a log: what was sent is what arrives, and nothing else is ever taken for one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from prony_node.contract.files import MARK, PART_BYTES, Frame, decode, encode, in_parts, plain

headers = st.dictionaries(
    st.text(max_size=20), st.one_of(st.text(max_size=20), st.integers(), st.booleans()), max_size=4
)


@given(headers, st.binary(max_size=200), st.binary(max_size=50).filter(lambda words: b"\n" not in words))
def test_a_frame_arrives_as_it_was_sent_even_after_words_without_an_end(
    header: dict[str, object], body: bytes, before: bytes
) -> None:
    line = encode(Frame(header, body))
    assert line.count(b"\n") == 1
    assert decode(before + line) == Frame(header, body)


@given(st.binary(max_size=300))
@example(MARK)
@example(MARK + b"0" * 16 + b" e30K")
@example(encode(Frame({"end": 0}))[:-5])
@example(encode(Frame({"end": 0})).replace(b"e", b"f"))
def test_other_lines_are_no_frames(line: bytes) -> None:
    assert decode(line) is None


@given(headers, st.binary(max_size=200))
def test_a_line_that_is_passed_on_is_never_a_frame(header: dict[str, object], body: bytes) -> None:
    assert decode(plain(encode(Frame(header, body)))) is None


def test_no_line_is_as_long_as_container_logs_cut_them() -> None:
    frames = in_parts("run", bytes(range(256)) * 100)
    assert len(frames) == -(-25600 // PART_BYTES)
    assert max(len(encode(frame)) for frame in frames) < 16384

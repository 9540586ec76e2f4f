"""Nodes that come early wait for the first one as long as the plan says, and say why where it did not come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from prony_node.contract import files
from prony_node.parallel.launch import reason_of, until_met


def failing(times: int, tried: list[int]) -> Callable[[], None]:
    """As torch is where nobody listens, so many times."""

    def start() -> None:
        tried.append(len(tried))
        if len(tried) <= times:
            raise RendezvousConnectionError("the connection has failed")

    return start


def test_a_node_tries_again_until_the_first_one_listens(tmp_path: Path) -> None:
    tried: list[int] = []
    until_met(failing(2, tried), 60.0, tmp_path)
    assert len(tried) == 3


def test_it_gives_up_when_the_patience_is_over(tmp_path: Path) -> None:
    tried: list[int] = []
    with pytest.raises(RendezvousConnectionError):
        until_met(failing(9, tried), 0.0, tmp_path)
    assert len(tried) == 1


def test_ranks_that_have_begun_are_not_begun_again(tmp_path: Path) -> None:
    """The first node may be lost later, and that ends the run."""
    tried: list[int] = []
    files.rank_folder(tmp_path, 1).mkdir()
    with pytest.raises(RendezvousConnectionError):
        until_met(failing(1, tried), 60.0, tmp_path)


def test_the_reason_is_the_first_line_of_what_came_first() -> None:
    inner = RuntimeError("the socket has timed out\nframe #1: of many")
    outer = RendezvousConnectionError("see inner exception")
    outer.__cause__ = inner
    assert reason_of(outer) == "RuntimeError: the socket has timed out"
    assert reason_of(RendezvousConnectionError()) == "RendezvousConnectionError"

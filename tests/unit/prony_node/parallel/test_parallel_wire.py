"""Bytes on the wire are those of what is exchanged; blocks, cores and samples are divided without a remainder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prony_node.contract import RequestError
from prony_node.data.dataset import Origin, Pixels
from prony_node.data.source import share_of as samples_of
from prony_node.parallel import place
from prony_node.parallel.place import share_of as cores_of
from prony_node.parallel.replicas import all_reduce, blocks_of, gather_and_scatter


def model() -> nn.Module:
    """A hundred and ten weights of four bytes, ten of which are frozen."""
    whole = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 1, bias=False))
    frozen = nn.Linear(10, 1, bias=False).requires_grad_(False)
    return nn.ModuleDict({"trained": whole, "frozen": frozen})


def test_a_ring_sends_twice_all_but_its_own_part() -> None:
    assert all_reduce(model(), 4).bytes_sent == pytest.approx(2 * 3 / 4 * 440)


def test_weights_in_parts_are_gathered_for_each_pass() -> None:
    assert gather_and_scatter(model(), 4, 1, reshard=True).bytes_sent == pytest.approx(3 / 4 * 440 * 3)
    assert gather_and_scatter(model(), 2, 2, reshard=False).bytes_sent == pytest.approx(1 / 2 * 440 * 3)


def test_blocks_are_the_members_of_the_outermost_lists() -> None:
    inner, last = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2)
    body = nn.ModuleDict({"layers": nn.ModuleList([inner, last])})
    assert blocks_of(nn.ModuleDict({"body": body, "head": nn.Linear(2, 1)})) == [inner, last]
    nested = nn.ModuleDict({"stages": nn.ModuleList(nn.ModuleList([nn.Linear(2, 2)]) for _ in range(2))})
    assert len(blocks_of(nested)) == 2, "a list has no forward pass of its own to gather for"


def test_cores_are_divided_and_nobody_has_none() -> None:
    assert [cores_of([0, 1, 2, 3, 8], number, 2) for number in (0, 1)] == [[0, 1], [2, 3]]
    assert [cores_of([4, 5], number, 4) for number in range(4)] == [[4], [5], [4], [5]]


def test_no_sample_is_two_ranks_own() -> None:
    images = torch.arange(11, dtype=torch.uint8).view(11, 1, 1, 1)
    whole = Pixels(Origin("mnist", "train", None, ()), ["a"], images, torch.zeros(11, dtype=torch.long))  # type: ignore[arg-type]
    shares = [samples_of(whole, rank, 3) for rank in range(3)]
    assert [len(share) for share in shares] == [3, 3, 3]
    seen = [int(share[at][0]) for share in shares for at in range(3)]
    assert len(set(seen)) == 9


def test_a_place_is_counted_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.place_of({}) == place.RankPosition()
    settings = {"devices": 8, "nodes": 2}
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv(place.NODE_RANK, "1")
    with pytest.raises(RequestError, match="needs PRONY_RENDEZVOUS=HOST:PORT"):
        place.place_of(settings)
    monkeypatch.setenv(place.RENDEZVOUS, "node1:29500")
    assert place.place_of(settings) == place.RankPosition(5, 8, 1, 4, 1, 2)
    monkeypatch.setenv(place.NODE_RANK, "2")
    with pytest.raises(RequestError, match="from 0 to 1; found '2'"):
        place.place_of(settings)
    with pytest.raises(RequestError, match=r"devices=6 nodes=4 is not possible: .*; devices=8 would do"):
        place.node_rank({"devices": 6, "nodes": 4})  # a plan that no controller checked


@pytest.mark.parametrize("address", ["node1", ":29500", "node1:", "node1:99999", "node1:http", "http://node1:-1"])
def test_an_address_without_a_port_that_can_be_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv(place.RENDEZVOUS, address)
    with pytest.raises(RequestError, match=f"PRONY_RENDEZVOUS={address} is no HOST:PORT"):
        place.node_rank({"devices": 2})
    assert place.node_rank({}) == 0, "one rank meets nobody"


def test_ranks_of_one_node_meet_at_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(place.RENDEZVOUS, raising=False)
    assert place.meeting_place() == "localhost:0"
    monkeypatch.setenv(place.RENDEZVOUS, "[fd00::1]:29500")
    assert place.meeting_place() == "[fd00::1]:29500"

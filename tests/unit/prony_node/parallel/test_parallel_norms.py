"""Batch norms over several ranks: whose samples they see, and the models and steps that cannot have them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prony_node.contract import RequestError
from prony_node.parallel.replicas import Replicas

SCRIPT = Path(__file__).parent / "norm_groups.py"
CPU = torch.device("cpu")


def tied(**settings: int | str) -> Replicas:
    return Replicas({"devices": 4, "sync": True, **settings}, CPU)


def test_a_span_of_ranks_is_neighbours_and_every_rank_is_in_one(tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    subprocess.run([sys.executable, str(SCRIPT), "4", port, str(out)], check=True, timeout=400)
    told = json.loads(out.read_text())
    assert [seen["2"] for seen in told] == [[[0, 1]] * 2, [[0, 1]] * 2, [[2, 3]] * 2, [[2, 3]] * 2]
    assert [seen["4"] for seen in told] == [seen["synced"] for seen in told] == [[[0, 1, 2, 3]] * 2] * 4


class NormAndActivation(nn.BatchNorm2d):
    """As some libraries have it."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(super().forward(images))


def test_a_norm_that_does_more_is_not_replaced_by_one_that_does_not() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), NormAndActivation(4))
    with pytest.raises(RequestError, match=r"replace its NormAndActivation and leave out what that does besides"):
        tied(batch_norm="synced").prepare_model(model)
    assert tied().prepare_model(model) is model


def test_a_model_without_a_batch_norm_has_none_to_synchronise() -> None:
    with pytest.raises(RequestError, match="batch_norm=2 has no meaning for this model"):
        tied(batch_norm=2).prepare_model(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


def test_no_rank_goes_by_itself_whose_norms_wait_for_others() -> None:
    """Each for a second: the one that takes a step more would wait for the others' statistics for ever."""
    assert tied().stop_exchanging()
    assert not tied(batch_norm="synced").stop_exchanging()
    assert not tied(batch_norm=2).stop_exchanging()

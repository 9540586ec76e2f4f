"""Nodes that come early wait for the first one as long as the plan says, and say why where it did not come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from prony_node.contract import Plan, Trial, files
from prony_node.parallel import place
from prony_node.parallel.launch import launch, main, reason_of, refuse_missing_devices, until_met
from prony_node.run.claim import own_plan


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


def test_a_node_starts_its_part_of_all_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """devices=8 nodes=2 is four processes a node: else a run takes twice what was asked for, or never meets."""
    asked: list[Any] = []
    monkeypatch.setattr(
        "torch.distributed.launcher.api.elastic_launch", lambda config, _: lambda *words: asked.append(config)
    )
    monkeypatch.setenv(place.NODE_RANK, "1")
    monkeypatch.setenv(place.RENDEZVOUS, "node1:29500")
    plan = Plan("run", Trial("gpt-800m", {"devices": 8, "nodes": 2}))
    assert launch(plan, tmp_path / "plan.json", tmp_path) == {"failure": None, "ranks": []}
    (config,) = asked
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (2, 2, 4)
    assert config.rdzv_endpoint == "node1:29500"


def test_one_node_meets_in_a_private_file_and_opens_no_port_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch unpickles what lies at the meeting place: over TCP, any user of the machine could write it."""
    asked: list[Any] = []
    monkeypatch.setattr(
        "torch.distributed.launcher.api.elastic_launch", lambda config, _: lambda *words: asked.append(config)
    )
    plan = Plan("run", Trial("gpt-tiny", {"devices": 2, "device": "cpu"}))
    with own_plan(plan) as plan_file:
        launch(plan, plan_file, tmp_path)
        (config,) = asked
        place = Path(config.rdzv_endpoint)
        assert (config.rdzv_configs["store_type"], place.parent) == ("file", plan_file.parent)
        assert place.parent.stat().st_mode & 0o077 == 0


def test_more_devices_than_a_node_has_are_refused_by_what_falls_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")
    for settings, said in (
        ({"devices": 8, "nodes": 2}, ""),
        ({"devices": 8}, "devices=8 is not possible: torch finds 4"),
        ({"devices": 16, "nodes": 2}, "devices=16 nodes=2, 8 per node, is not possible: torch finds 4"),
    ):
        refused = refuse_missing_devices(Plan("run", Trial("gpt-800m", settings)))
        assert (refused is None) == (not said)
        assert said in (refused.message if refused else "")


@pytest.mark.parametrize("settings", [{"devices": 33, "device": "cpu"}, {"devices": 3, "copies": 11}])
def test_more_processes_than_the_cores_can_take_are_refused(
    settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prony_node.parallel.launch.allowed_cores", lambda: [0, 1])
    said = getattr(refuse_missing_devices(Plan("run", Trial("gpt-tiny", settings))), "message", "")
    assert said.endswith("is not possible: 33 processes, and 32 are the most for the cores of this machine")
    assert refuse_missing_devices(Plan("run", Trial("gpt-tiny", {"devices": 32, "device": "cpu"}))) is None


def test_a_python_without_torch_is_named_as_it_is_for_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    plan = Plan(run_id="one", trial=Trial("gpt-tiny", {"devices": 2}))
    files.write_whole(tmp_path / files.PLAN, plan.to_json())
    assert main([str(tmp_path / files.PLAN), str(tmp_path)]) == 1
    message = "this workload needs torch, which is not installed here: pip install 'prony[node]'"
    said = {"kind": "missing-library", "message": message}
    assert files.read_json(tmp_path / files.LAUNCHER) == {"failure": said, "ranks": []}

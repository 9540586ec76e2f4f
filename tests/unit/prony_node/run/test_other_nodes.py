"""If these fail, a device of another node that was throttled or shared passes for a good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from prony_node.contract import files
from prony_node.contract.facts import ConditionSample, DeviceConditions, DeviceFacts, HostConditions
from prony_node.contract.run_folder import Parts, RankResult, RankTimes
from prony_node.contract.trial import Plan, Trial
from prony_node.contract.typed import encode
from prony_node.run import conditions
from prony_node.run.conditions import conditions_of_run
from prony_node.stats import StopRule

CLOCKS_S = (100.0, 7000.0)  # of two hosts, at the same instant


def watched(node: int, heat: tuple[float, float] = (0.0, 0.0)) -> HostConditions:
    """A GPU seen once a second for twenty seconds, held back by heat between two instants of its host's clock."""
    samples = []
    for second in range(20):
        at_s = CLOCKS_S[node] + second
        words = ("hardware slowdown",) if heat[0] <= at_s <= heat[1] else ()
        samples.append(ConditionSample(at_s, throttle=words, sm_clock_mhz=1980, foreign_pids=(), own_seen=True))
    return HostConditions({f"GPU-{node}": DeviceConditions(DeviceFacts(kind="cuda"), tuple(samples))})


def judge(folder: Path, of_second: object, *, nodes: int = 2) -> dict[str, tuple[str, str]]:
    """Level and message by check, of a window that begins five seconds in and lasts ten."""
    folder.mkdir(exist_ok=True)
    if of_second is not None:
        other = files.node_folder(folder, 1)
        other.mkdir()
        files.write_whole(other / files.NODE, encode(of_second))
    windows = [(clock_s + 5.0, clock_s + 15.0) for clock_s in CLOCKS_S]
    told = tuple(RankTimes(node, node, f"n{node}", window_monotonic=window) for node, window in enumerate(windows))
    plan = Plan(run_id="r", trial=Trial("gpt-tiny", {"devices": 2, "nodes": nodes}), stop=StopRule())
    made = conditions_of_run(
        plan, folder, Parts(RankResult(window_monotonic=windows[0], nodes=told[:nodes])), watched(0)
    )
    return {one.name: (one.level, one.message) for one in made}


def test_heat_on_another_node_counts_within_its_own_window(tmp_path: Path) -> None:
    hot = watched(1, (CLOCKS_S[1] + 7.0, CLOCKS_S[1] + 9.0))
    level, message = judge(tmp_path / "run", {"node": 1, "watched": hot})["throttled"]
    assert level == "fail"
    assert message.startswith("node 1 (n1) GPU-1: the device was throttled: hardware slowdown")


def test_heat_on_another_node_outside_its_window_does_not_count(tmp_path: Path) -> None:
    before = watched(1, (CLOCKS_S[1], CLOCKS_S[1] + 4.0))
    assert judge(tmp_path / "run", {"node": 1, "watched": before})["throttled"][0] == "pass"


@pytest.mark.parametrize("told", [{"node": 1}, [1], {"node": 1, "watched": {"devices": {"a": {}}}}, None])
def test_a_node_that_says_nothing_is_unknown_not_good(
    tmp_path: Path, told: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "NODES_PATIENCE_S", 0.1)
    level, message = judge(tmp_path / "run", told)["throttled"]
    assert level == "unknown"
    assert message.startswith("node 1 (n1): conditions could not be judged")


def test_one_node_is_not_named(tmp_path: Path) -> None:
    assert judge(tmp_path / "run", None, nodes=1)["foreign-processes"] == ("pass", "no other process on the device")

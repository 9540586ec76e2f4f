"""A walk on this machine's CPU: several batch sizes of one configuration, each screened in the same process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prony.sites.local import LocalRun
from prony.store import Store
from prony.study.request import make_plan, parse_trial
from prony_node.contract import files
from prony_node.contract.trial import Plan, Stop
from prony_node.parallel.place import RankPosition
from prony_node.run import rank
from prony_node.run.journal import Journal


def test_one_process_screens_the_sizes_in_order_and_none_becomes_a_record(tmp_path: Path) -> None:
    trial = parse_trial("gpt-tiny", ["size=tiny", "sequence=32", "cores=1", "device=cpu"])
    plan = make_plan(trial, Stop(min_time_s=0.5, max_time_s=0.5), (), energy=False)
    plan = replace(plan, walk=(2, 4))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    run = LocalRun(plan, tmp_path / ".screening")
    run.start()
    for _ in run.follow():
        pass
    whole = run.collect()
    assert whole.status == "ok"
    assert "throughput" not in whole.metrics
    found = {path.parent.name: json.loads(path.read_text()) for path in run.folder.glob("walk/*/screening.json")}
    assert set(found) == {"2", "4"}
    for size, screening in found.items():
        assert screening["screening"] is True
        assert screening["trial"]["effective"]["batch_size"] == int(size)
        assert screening["metrics"]["throughput"]["value"] > 0.0
        assert set(screening["phases"]) >= {"build", "cold_start", "warm_up", "steady"}
        assert not [check for check in screening["checks"] if check["level"] == "fail"]
        assert (run.folder / "walk" / size / "steps.csv").exists()
    assert not list((run.folder / "walk").glob("*/record.json"))
    store = Store(tmp_path)
    store.refresh()
    assert store.runs() == []


def test_no_size_finds_the_cold_compile_cache_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = parse_trial("gpt-tiny", ["size=tiny", "device=cpu", "compile=default", "compile_cache=cold"])
    plan = replace(make_plan(trial, Stop(min_time_s=0.5, max_time_s=0.5), (), energy=False), walk=(2, 4, 8))
    sizes = []

    def compile_only(plan: Plan, journal: Journal, place: RankPosition) -> None:
        (journal.folder / files.COMPILE_CACHE).mkdir()  # fails where one is there
        sizes.append(plan.trial.settings["batch_size"])

    monkeypatch.setattr(rank, "run", compile_only)
    rank.walk(plan, Journal(tmp_path), RankPosition(), rank.describe)
    assert sizes == [2, 4, 8]
    assert not (tmp_path / files.COMPILE_CACHE).exists()

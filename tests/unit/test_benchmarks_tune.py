"""benchmarks/tune.py: the replay is what it says, and the search ends near the best of made and recorded surfaces."""

from __future__ import annotations

import errno
import gzip
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prony.plan.search_space import Candidate, make_space, split_searched
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "replay" / "records" / "wideresnet-20260301T100000-a00200"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), str(ROOT / "scripts"), *sys.path])
    import record_surface

    import tune
    import tune_methods
    import tune_replay
    import tune_surface

    return SimpleNamespace(
        tune=tune, methods=tune_methods, replay=tune_replay, surface=tune_surface, record=record_surface
    )


@pytest.fixture
def small(bench: Any) -> Any:
    law = bench.surface.IMAGES
    lists = {**law.lists, "batch_size": [128, 512, 2048, 8192]}
    return bench.surface.synthesise(replace(law, lists=lists), seconds=3.0)


def test_a_surface_is_kept_whole_and_says_that_it_is_synthetic(bench: Any, small: Any, tmp_path: Path) -> None:
    bench.surface.write_surface(small, tmp_path / "s.json.gz")
    again = bench.surface.read_surface(tmp_path / "s.json.gz")
    assert again == small
    assert again.synthetic
    assert "no measurement" in again.source


def test_a_surface_that_could_not_be_written_whole_leaves_the_one_before(
    bench: Any, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json.gz"
    bench.surface.write_surface(small, path)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(bench.surface.gzip, "compress", lambda *_, **__: b"half of it")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match="No space"):
        bench.surface.write_surface(replace(small, source="later"), path)
    assert bench.surface.read_surface(path) == small


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (None, "cannot be read"),
        (b"batch_size,rate", "cannot be read"),
        (gzip.compress(b"[]"), "is no surface"),
        (gzip.compress(b'{"schema": "prony.surface/1", "entries": [{"batch_size": 2}]}'), "is no surface"),
        (gzip.compress(b'{"schema": "prony.record/1"}'), "is no surface"),
        (gzip.compress(bytes(999))[:20], "is no surface"),
    ],
    ids=["none", "text", "list", "entries", "schema", "cut"],
)
def test_what_is_no_surface_is_refused_with_a_sentence(
    bench: Any, held: bytes | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = tmp_path / "given.json.gz"
    if held is not None:
        path.write_bytes(held)
    monkeypatch.setattr(sys, "argv", ["tune.py", str(path)])
    assert bench.tune.main() == 2
    assert f"{path} {told}" in capsys.readouterr().err


def test_a_recording_refuses_before_anything_starts(
    bench: Any, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    path = tmp_path / "small.json.gz"
    bench.surface.write_surface(small, path)
    for words, told in ((["widresnet"], "did you mean 'wideresnet'"), (["gpt-117m"], "is of another grid")):
        monkeypatch.setattr(sys, "argv", ["record_surface.py", *words, str(path)])
        assert bench.record.main() == 2
        assert told in capsys.readouterr().err
    assert bench.surface.read_surface(path) == small


def test_the_grids_of_a_recording_have_sixty_trials(bench: Any) -> None:
    for name, words in bench.record.GRIDS.items():
        workload = find_workload(name)
        fixed, lists = split_searched(workload, words)
        assert len(make_space(workload, workload.parse(fixed), lists).candidates) >= 60


def test_a_replayed_run_costs_its_cold_start_and_gives_the_recorded_rate_or_failure(bench: Any, small: Any) -> None:
    replay = bench.replay.Replay(small, seed=3)
    candidates = bench.methods.space_of(small).candidates
    for candidate, entry in zip(candidates, small.entries, strict=True):
        record, cost_s = replay.run(candidate, 2.0)
        if entry.status != "ok":
            assert record["failure"]["kind"] == "out-of-memory"
            continue
        rate = record["metrics"]["throughput"]
        assert abs(rate["value"] / entry.rate - 1.0) < 0.05
        assert rate["low"] <= rate["value"] <= rate["high"]
        assert entry.around_s + 2.0 <= cost_s < entry.around_s + 2.5
    assert any(entry.status != "ok" for entry in small.entries)


def test_the_search_ends_near_the_best_within_its_share(bench: Any, small: Any) -> None:
    scores = [bench.methods.prony(small, seed, 0.5 * small.sweep_s) for seed in range(4)]
    assert all(score.share_of_best >= 0.97 for score in scores)
    assert all(score.total_share <= 0.55 for score in scores)
    drawn = bench.methods.random_alone(small, 0, 0.5 * small.sweep_s)
    assert 0.0 < drawn.share_of_best <= 1.0


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "surfaces").glob("*.json.gz")), ids=lambda one: one.name)
def test_a_recorded_surface_is_a_sweep_in_full_and_the_search_keeps_its_gate_on_it(bench: Any, path: Path) -> None:
    surface = bench.surface.read_surface(path)
    recorded = [Candidate(tuple(entry.settings.items())).key for entry in surface.entries]
    asked = [one.key for one in bench.methods.space_of(surface).candidates]
    assert not surface.synthetic
    assert sorted(recorded) == sorted(asked)
    assert len(asked) >= 60
    assert all(entry.block_us and entry.cold_start_s for entry in surface.entries if entry.status == "ok")
    scores = [bench.methods.prony(surface, seed, 0.25 * surface.sweep_s) for seed in range(10)]
    assert sum(bench.tune.is_success(score, 0.25) for score in scores) >= 9


def test_a_run_folder_becomes_an_entry(bench: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    record = json.loads((folder / "record.json").read_text())
    entry = bench.record.entry_of(Candidate((("batch_size", 32),)), record, folder, 30.0)
    assert entry.status == "ok"
    assert abs(entry.rate / record["metrics"]["throughput"]["value"] - 1.0) < 0.05
    assert abs(entry.cost_s - 30.0) < 0.01
    failed = {**record, "status": "failed", "failure": {"kind": "out-of-memory", "message": "no\nmore"}}
    entry = bench.record.entry_of(Candidate((("batch_size", 32),)), failed, folder, 9.0)
    assert (entry.kind, entry.message, entry.rate) == ("out-of-memory", "no", 0.0)


def test_a_surface_is_of_one_device(bench: Any, small: Any) -> None:
    """Two of a kind differ by more than the search is asked to tell apart."""
    entry, options = small.entries[0], SimpleNamespace(seconds=4.0, warm=0, out="s.json.gz")
    made = {"started": "2026-11-17", "facts": {"devices": [{"name": "a GPU", "uuid": "GPU-1"}], "software": {}}}
    empty = replace(small, entries=[], source="")
    begun = bench.record.with_entry(empty, entry, made, options)
    assert begun.device == "GPU-1"
    assert len(bench.record.with_entry(begun, entry, made, options).entries) == 2
    made["facts"]["devices"][0]["uuid"] = "GPU-2"
    with pytest.raises(RequestError, match="another device, GPU-1"):
        bench.record.with_entry(begun, entry, made, options)


def test_what_shares_its_compiled_code_is_compiled_once(bench: Any) -> None:
    """A device's time is short: two processes that compile the same beside each other cost as much as two codes."""
    record = bench.record
    workload = record.find_workload("wideresnet")
    words, lists = record.split_searched(workload, record.GRIDS["wideresnet"])
    space = record.make_space(workload, workload.parse(words), lists)
    apart = record.compiled_apart({}, list(space.candidates))
    assert len(space.candidates) == 64
    assert len(apart) == 16
    assert {one.settings["compile"] for one in apart} == {"default"}
    assert len({(one.settings["batch_size"], one.settings["memory_format"]) for one in apart}) == 16

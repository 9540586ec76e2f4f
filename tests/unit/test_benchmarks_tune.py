"""benchmarks/tune.py: the replay is what it says, and the search ends near the best of made and recorded surfaces."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prony.study.search_space import GOALS, Candidate, PairRun, Screening, make_space, split_searched
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
        made = replay.run(PairRun(candidate, 2.0, "", 0))
        if entry.status != "ok":
            assert made.record.failure_kind == "out-of-memory"
            continue
        rate = made.record.metrics["throughput"]
        assert abs(rate.value / entry.rate - 1.0) < 0.05
        assert rate.low <= rate.value <= rate.high
        assert entry.around_s + 2.0 <= made.cost_s < entry.around_s + 2.5
    assert any(entry.status != "ok" for entry in small.entries)


def test_a_replayed_walk_pays_its_process_once_and_every_size_in_full(bench: Any, small: Any) -> None:
    replay = bench.replay.Replay(small, seed=3, exact=True)
    start = bench.methods.default_start(small).replaced("batch_size", 128)
    sizes = tuple(start.replaced("batch_size", batch) for batch in (128, 512, 2048, 8192))
    made = replay.screen(Screening(sizes, 2.0, ""))
    entries = [replay.entry(one) for one in sizes]
    assert [one.fresh for one in made] == [True, False, False, False]
    assert [one.record.status for one in made] == ["ok", "ok", "ok", "failed"]
    for one, entry in zip(made[1:3], entries[1:3], strict=True):
        assert one.cost_s >= entry.cold_start_s + bench.surface.BUILD_AND_WARM_UP_S + 2.0
        assert one.cost_s < entry.around_s + 2.0
    assert made[0].cost_s >= entries[0].around_s + 2.0
    assert replay.processes == 1


def test_the_search_ends_near_the_best_within_its_share(bench: Any, small: Any) -> None:
    goal = GOALS["throughput"]
    scores = [bench.methods.prony(small, seed, 0.5 * small.sweep_s, goal) for seed in range(4)]
    assert all(score.share_of_best >= 0.97 for score in scores)
    assert all(score.total_share <= 0.5 for score in scores)
    for other in (bench.methods.by_chance, bench.methods.ladder):
        assert 0.0 < other(small, 0, 0.5 * small.sweep_s, goal).share_of_best <= 1.0


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "surfaces").glob("*.json.gz")), ids=lambda one: one.name)
def test_a_recorded_surface_is_a_full_sweep_and_the_search_keeps_its_gate_on_it(bench: Any, path: Path) -> None:
    surface = bench.surface.read_surface(path)
    recorded = [tuple(entry.settings[name] for name in surface.lists) for entry in surface.entries]
    asked = list(itertools.product(*surface.lists.values()))
    assert not surface.synthetic
    assert sorted(recorded, key=str) == sorted(asked, key=str)
    assert len(asked) >= (60 if surface.goal == "throughput" else 8)
    assert all(entry.block_us and entry.cold_start_s for entry in surface.entries if entry.status == "ok")
    row = bench.tune.measure(path.name, surface, "prony", bench.methods.prony, 10, 0.25)
    assert bench.tune.holds(row), row
    assert row.wrong == 0


def test_a_surface_for_energy_is_searched_for_work_per_joule(bench: Any, small: Any) -> None:
    """The fastest setting draws so much power here that a slower one does more work per joule."""
    fastest = max(small.entries, key=lambda one: one.rate)
    entries = [replace(one, power_w=3.0 * (one.power_w or 1.0)) if one is fastest else one for one in small.entries]
    surface = replace(small, entries=entries, goal="energy")
    assert surface.truth(fastest, "throughput") == surface.best("throughput")
    score = bench.methods.prony(surface, 1, 5000.0, GOALS["energy"])
    assert score.share_of_best >= 0.97
    hungry = next(one for one in surface.entries if one.settings == fastest.settings)
    assert surface.truth(hungry, "energy") < 0.5 * surface.best("energy")


def test_runs_of_a_trial_differ_as_those_did_that_were_repeated(bench: Any, small: Any) -> None:
    """One figure for all would blur the best by what the slowest, which wait for their host, differ by."""
    good = sorted((one for one in small.entries if one.status == "ok"), key=lambda one: one.rate)
    first, second, third, last = good[1], good[3], good[5], good[-1]
    for once in (first, last):
        assert small.deviation_of(once) == small.between_runs
    repeated = {first.rate: [0.8 * first.rate], third.rate: [third.rate, third.rate]}
    surface = replace(small, entries=[replace(one, repeats=repeated.get(one.rate, [])) for one in small.entries])
    slow, quick = surface.deviation_of(first), surface.deviation_of(third)
    assert abs(slow - math.log(1.25) / math.sqrt(2.0)) < 1e-9
    assert quick == 0.0
    assert quick < surface.deviation_of(second) < slow
    assert surface.deviation_of(good[0]) == slow
    assert surface.deviation_of(last) == quick
    alike = surface.spread_alike(0.02)
    assert {alike.deviation_of(one) for one in alike.entries if one.status == "ok"} == {0.02}
    assert (alike.best("throughput"), alike.sweep_s) == (surface.best("throughput"), surface.sweep_s)
    replay = bench.replay.Replay(surface, seed=1)
    ends = {}
    for one in (first, third):
        candidate = Candidate(tuple(one.settings.items()))
        made = [replay.run(PairRun(candidate, 1.0, "", 0)).record for _ in range(8)]
        ends[one.rate] = [record.value("throughput") for record in made]
    assert max(ends[third.rate]) / min(ends[third.rate]) < 1.05
    assert max(ends[first.rate]) / min(ends[first.rate]) > 1.1


def test_repeats_are_kept_with_their_trials(bench: Any, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = sorted((one for one in small.entries if one.status == "ok"), key=lambda one: one.rate)
    slower = [replace(good[0], block_us=[2 * one for one in good[0].block_us]), replace(good[0], status="failed")]

    def run_again(_workload: Any, _fixed: Any, candidate: Candidate, *_rest: Any) -> tuple[Any, Any]:
        if candidate.settings == good[0].settings:
            return slower.pop(0), {}
        return next(one for one in good if one.settings == candidate.settings), {}

    monkeypatch.setattr(bench.record, "record_one", run_again)
    options, once = SimpleNamespace(repeats=2, seconds=4.0), replace(small, between_runs=0.0)
    surface = bench.record.repeat(once, None, {}, Path(), options, math.inf)
    counts = {one.rate: len(one.repeats) for one in surface.entries if one.repeats}
    assert counts == {good[0].rate: 1, good[len(good) // 2].rate: 2, good[-1].rate: 2}
    assert all(len(one.repeats_w) == len(one.repeats) for one in surface.entries)
    assert surface.power_deviation == 0.0
    assert surface.between_runs_source == "8 runs of 3 trials"
    assert abs(surface.between_runs - math.log(2.0) / math.sqrt(2.0 * 5)) < 1e-3
    assert bench.record.repeat(surface, None, {}, Path(), options, math.inf) is surface
    assert bench.record.repeat(once, None, {}, Path(), options, 0.0) == once


def test_a_run_folder_becomes_an_entry(bench: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    record = json.loads((folder / "record.json").read_text())
    entry = bench.record.entry_of(Candidate((("batch_size", 32),)), record, folder, 30.0)
    assert entry.status == "ok"
    assert abs(entry.rate / record["metrics"]["throughput"]["value"] - 1.0) < 0.05
    assert abs(entry.cost_s - 30.0) < 0.01
    assert entry.size_s is not None
    assert entry.own_s < entry.around_s
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

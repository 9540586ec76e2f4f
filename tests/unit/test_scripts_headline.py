"""The one table of results: made of runs that obey the rules; a row that breaks one is refused with a sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from prony.store.archive import pack
from prony.store.transfer import as_stream, take_tar

ROOT = Path(__file__).parents[2]
Record = dict[str, Any]
Change = Callable[[Record], object]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(ROOT)
    import results_records

    # These runs are made up. Whether a real one verifies is the business of other tests.
    monkeypatch.setattr(results_records, "is_verified", lambda folder: "true" in (folder / "manifest.json").read_text())


def record(number: int, rate: float, workload: str = "vit-l", day: int = 18, **settings: Any) -> Record:
    """A run that obeys every rule."""
    asked = settings or {"batch_size": 128}
    effective = {"mode": "train", "batch_size": 128, "precision": "bf16", **asked}
    checks = [{"name": "steady", "level": "pass"}, {"name": "clocks", "level": "warn" if number == 1 else "pass"},
              {"name": "throttled", "level": "unknown"}]  # fmt: skip
    return {
        "schema": "prony.record/1", "id": f"{workload}-202611{day}T12000{number}-00000{number}", "status": "ok",
        "trial": {"workload": workload, "settings": asked, "effective": effective},
        "started": f"2026-11-{day}T12:00:0{number}+00:00", "ended": f"2026-11-{day}T12:00:4{number}+00:00",
        "metrics": {
            "throughput": {"value": rate, "low": 0.999 * rate, "high": 1.001 * rate, "unit": "images/s"},
            "energy_per_sample": {"value": 690.0 / rate, "low": None, "high": None, "unit": "J/image"},
            "peak_memory_reserved": {"value": 2**35},
        },
        "phases": {
            "cold_start": {"seconds": 6.0, "compile_cache": {"state": "warm"}},
            "warm_up": {"seconds": 6.1}, "steady": {"seconds": 20.4 + number},
        },
        "checks": checks, "fingerprint": {"machine": "m1", "software": "s1"},
        "facts": {"devices": [{"name": "NVIDIA H200", "uuid": "GPU-1"}], "source": {"commit": "abc"}},
    }  # fmt: skip


RATES = (1_190.0, 1_210.0, 1_200.0)


def make_archive(folder: Path, name: str, *records: Record, steps: bool = True) -> Path:
    for one in records:
        place = folder / f"{name}-runs" / one["id"]
        place.mkdir(parents=True)
        (place / "record.json").write_text(json.dumps(one))
        if steps:
            (place / "steps.csv").write_text("seconds,steps\n")
        (place / "manifest.json").write_text(json.dumps(one.get("agrees", True)))
    archive = folder / f"{name}.tar.gz"
    with archive.open("wb") as file:
        pack(sorted((folder / f"{name}-runs").iterdir()), file)
    return archive


def make_table(folder: Path, *sources: Path) -> tuple[str, str]:
    """README and page after the script, from the mark on."""
    import headline_table

    pages = folder / "README.md", folder / "performance.md"
    for page in pages:
        page.write_text("before\n<!-- headline -->\nold\n<!-- /headline -->\nafter\n")
    words = [*map(str, sources), "--readme", str(pages[0]), "--page", str(pages[1])]
    assert headline_table.main(words) == 0
    texts = [page.read_text() for page in pages]
    assert all(text.startswith("before\n<!-- headline -->\n") and text.endswith("-->\nafter\n") for text in texts)
    return texts[0], texts[1]


PEER = {
    "name": "timm benchmark.py, compiled", "version": "1.0.29, commit 8f1cf1a", "workload": "vit-l batch_size=128",
    "settings": "--amp --torchcompile", "rate": 1_000.0, "unit": "images/s", "seconds": 40, "date": "2026-11-18",
}  # fmt: skip


def test_a_row_has_its_interval_energy_checks_and_peers(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, "headline-1", *(record(number, rate) for number, rate in enumerate(RATES)))
    peers = [PEER, {**PEER, "rate": 1_010.0, "device": "GPU-1"}]
    (tmp_path / "headline-1.peers.jsonl").write_text("".join(json.dumps(peer) + "\n" for peer in peers))
    readme, page = make_table(tmp_path, archive)
    row = (
        "| vit-l, train, bf16 | 128 | **1,200 images/s** ± 2.1 % | 0.575 J/image | 3, 20 s | 0 of 3 | 1: clocks (1) "
        "| 3: throttled (3) | timm benchmark.py, compiled: 1,005 ± 6.3 % (2 runs) | headline-1, 2026-11-18 |"
    )
    assert row in page
    short = "| 0.575 J/image | timm benchmark.py, compiled: 1,005 ± 6.3 % (2 runs) | 2026-11-18 |"
    assert f"| vit-l, train, bf16 | 128 | **1,200 images/s** ± 2.1 % {short}" in readme
    assert "commit 8f1cf1a | `--amp --torchcompile` | 1,005 images/s ± 6.3 % | 2, 40 s | 1.19x |" in page
    assert "not shown" not in page


def test_a_run_that_ended_at_its_time_limit_is_a_fact_and_no_doubt(tmp_path: Path) -> None:
    """The tables count the checks of the record, as `prony show` does."""
    records = [record(number, rate) for number, rate in enumerate(RATES)]
    records[0]["stop"] = {"reason": "the maximum time is over, but only 9 blocks are effectively independent"}
    records[2]["stop"] = {"reason": "the interval is within the tolerance"}
    _, page = make_table(tmp_path, make_archive(tmp_path, "headline-1", *records))
    assert "| 3, 20 s | 1 of 3 | 1: clocks (1) |" in page


def test_a_peer_that_was_measured_for_less_than_five_seconds_has_no_ratio(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, "headline-1", *(record(number, rate) for number, rate in enumerate(RATES)))
    peers = [{**PEER, "seconds": 0.52}, {**PEER, "name": "other", "seconds": 5.2}]
    (tmp_path / "headline-1.peers.jsonl").write_text("".join(json.dumps(peer) + "\n" for peer in peers))
    readme, page = make_table(tmp_path, archive)
    assert "1,000 images/s | 1, 0.5 s | no ratio: measured for less than 5 s |" in page
    assert "1,000 images/s | 1, 5.2 s | 1.20x |" in page
    assert "compiled: 1,000 (1 run), measured for 0.5 s; other: 1,000 (1 run) |" in readme


def test_a_folder_of_runs_is_read_like_an_archive(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, "headline-1", *(record(number, rate) for number, rate in enumerate(RATES)))
    (tmp_path / "headline-1-runs" / "peers.jsonl").write_text(json.dumps(PEER))
    from_folder, _ = make_table(tmp_path, tmp_path / "headline-1-runs")
    assert "compiled: 1,000" in from_folder
    same = from_folder.replace("timm benchmark.py, compiled: 1,000 (1 run)", "-")
    assert same == make_table(tmp_path, archive)[0]


def set_in(*path: Any) -> Change:
    """A change of one value of a record, named by the way to it."""

    def change(one: Record) -> None:
        place: Any = one
        for part in path[:-2]:
            place = place[part]
        place[path[-2]] = path[-1]

    return change


def fail(one: Record) -> None:
    one |= {"status": "failed", "failure": {"kind": "out-of-memory", "message": "no room"}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_in("phases", "steady", "seconds", 12.3), "000002 has a steady window of 12.3 s; a row needs 20 s"),
        (set_in("phases", "warm_up", "seconds", 0.3), "000002 was measured after 0.3 s of steps; a warm device needs"),
        (set_in("checks", 0, "level", "fail"), "000002 failed its check steady"),
        (set_in("fingerprint", "machine", "m2"), "its runs are of 2 machines; a row needs one"),
        (set_in("facts", "devices", [{"uuid": "GPU-2"}]), "its runs are of 2 devices; a row needs one"),
        (set_in("fingerprint", "software", "s2"), "its runs are of 2 versions of the software; a row needs one"),
        (set_in("metrics", "energy_per_sample", {"value": None, "reason": "no sensor"}), "000002 has no energy"),
        (fail, "000002 failed"),
        (lambda one: one.update(agrees=False), "000002 does not verify; `prony verify` says why"),
        (set_in("status", "interrupted"), "it has 2 of the 3 runs that a row needs"),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, said: str
) -> None:
    records = [record(number, rate) for number, rate in enumerate(RATES)]
    change(records[2])
    archive = make_archive(tmp_path, "headline-1", *records)
    readme, page = make_table(tmp_path, archive)
    assert "| vit-l" not in readme + page
    assert "No job has been measured under these rules yet." in readme
    sentence = "vit-l batch_size=128 of headline-1 is not shown: "
    for text in (page, capsys.readouterr().err):
        assert sentence in text
        assert said in text


def test_runs_without_a_step_series_are_refused(tmp_path: Path) -> None:
    records = (record(number, rate) for number, rate in enumerate(RATES))
    _, page = make_table(tmp_path, make_archive(tmp_path, "headline-1", *records, steps=False))
    assert "has no step series" in page


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        ({**PEER, "unit": "tokens/s"}, "is given in tokens/s, and the row in images/s"),
        ({**PEER, "device": "GPU-2"}, "ran on another device, GPU-2"),
        ({**PEER, "workload": "vit-l mode=infer"}, "the job has no run of vit-l mode=infer"),
    ],
)
def test_a_peer_of_other_work_or_another_device_is_refused(tmp_path: Path, peer: dict[str, object], said: str) -> None:
    archive = make_archive(tmp_path, "headline-1", *(record(number, rate) for number, rate in enumerate(RATES)))
    (tmp_path / "headline-1.peers.jsonl").write_text(json.dumps(peer))
    assert said in make_table(tmp_path, archive)[1]


def test_a_wrong_line_of_peers_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import headline_table

    archive = make_archive(tmp_path, "headline-1", record(0, 1_000.0))
    (tmp_path / "headline-1.peers.jsonl").write_text(json.dumps(PEER) + "\n" + json.dumps({"name": "timm"}))
    assert headline_table.main([str(archive)]) == 2
    assert "headline-1.peers.jsonl:2: this line is no peer" in capsys.readouterr().err


def test_a_trial_of_two_jobs_has_the_newer_row_and_rows_have_the_order_of_the_list(tmp_path: Path) -> None:
    old = [record(number, 900.0 + number, day=17) for number in range(3)]
    old += [record(number, 90_000.0 + number, "gpt-800m", day=17, batch_size=16) for number in range(3)]
    new = [record(number, rate) for number, rate in enumerate(RATES)]
    readme, _ = make_table(tmp_path, make_archive(tmp_path, "headline-1", *old), make_archive(tmp_path, "h-2", *new))
    rows = [line for line in readme.splitlines() if line.startswith("| ")][2:]
    assert [row.split(" | ")[0] for row in rows] == ["| gpt-800m, train, bf16", "| vit-l, train, bf16"]
    assert ["2026-11-17" in rows[0], "1,200 images/s" in rows[1], "2026-11-18" in rows[1]] == [True] * 3


def test_a_refused_newer_job_leaves_the_older_row_and_says_so(tmp_path: Path) -> None:
    old = [record(number, 900.0 + number, day=17) for number in range(3)]
    archives = [make_archive(tmp_path, "h-1", *old), make_archive(tmp_path, "h-2", record(0, 1_200.0))]
    _, page = make_table(tmp_path, *archives)
    assert "**901 images/s**" in page
    assert "vit-l batch_size=128 of h-2 is not shown: it has 1 of the 3 runs that a row needs." in page


def test_the_lines_of_records_say_what_an_archive_holds(tmp_path: Path) -> None:
    import results_records

    group = deepcopy(record(0, 1_200.0))
    folder = tmp_path / "runs" / f"speed@{group['id']}"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(group))
    (tmp_path / "results").mkdir()
    with (tmp_path / "results" / "old.tar.gz").open("wb") as file:
        pack([folder], file)
    assert results_records.main(["--results", str(tmp_path / "results")]) == 0
    (line,) = results_records.read_lines(tmp_path / "results" / "records.jsonl")
    assert (line.archive, line.group, line.id, line.rate) == ("old.tar.gz", "speed", group["id"], 1_200.0)
    assert (line.window_s, line.outside_s, line.memory_gib) == (20.4, 13.5, 32.0)
    assert (line.doubts, line.unknown, line.step_series, line.verified) == ((), ("throttled",), False, False)
    (tmp_path / "results" / "old.tar.gz").write_bytes(b"no archive")
    assert results_records.main(["--results", str(tmp_path / "results")]) == 2


# What is kept in the repository


def kept_lines() -> list[Any]:
    import results_records

    return results_records.read_lines(ROOT / "results" / "records.jsonl")


def test_the_false_alarms_that_the_page_states_are_those_of_the_records() -> None:
    import false_alarms

    jobs = false_alarms.headline_jobs(kept_lines())
    names = [f"headline-20261118{letter}" for letter in ("", "b", "c", "d", "e")]
    assert list(jobs) == names
    assert [len(jobs[name]) for name in names] == [17, 3, 24, 3, 6]
    assert [sum(bool(run.doubts) for run in jobs[name]) for name in names] == [2, 0, 0, 0, 0]
    assert {doubt for runs in jobs.values() for run in runs for doubt in run.doubts} == {"blocks"}
    limited = [run for runs in jobs.values() for run in runs if run.at_limit]
    assert len(limited) == 11
    assert all((run.rate_high - run.rate_low) / 2 / run.rate < 0.003 for run in limited)


def test_the_studies_page_counts_the_same_doubts_as_the_records() -> None:
    runs = [line for line in kept_lines() if line.archive.startswith("studies-")]
    stated = f"({sum(bool(run.doubts) for run in runs)} of {len(runs)} runs)"
    assert stated in (ROOT / "docs" / "results" / "published-h200.md").read_text()


def test_what_todays_checks_doubt_is_what_the_page_states() -> None:
    """`steady` in each gpt-800m of the first job and nothing else; nothing where the default rule would have ended.

    The other jobs are not judged here: it takes too long.
    """
    import false_alarms
    from page_tables import table_lines

    page = (ROOT / "docs" / "results" / "false-alarms.md").read_text(encoding="utf-8")
    for job, doubted, ended in (("headline-20261118", 6, 11), ("headline-20261118b", 0, 3)):
        runs = list(false_alarms.judge_archive(ROOT / "results" / "h200" / f"{job}.tar.gz"))
        assert all(run.run.startswith("gpt-800m") and run.today == ("steady",) for run in runs if run.today)
        assert (sum(bool(run.today) for run in runs), sum(run.default is not None for run in runs)) == (doubted, ended)
        assert not any(run.default for run in runs)
        assert table_lines(false_alarms.AGAIN_HEAD, [false_alarms.again_cells(job, runs)])[-1] in page


def test_the_table_of_records_is_what_the_archives_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    import results_records

    from prony_node.run.verify import verify_folder

    monkeypatch.setattr(results_records, "is_verified", lambda folder: verify_folder(folder).outcome == "verified")
    kept = results_records.read_lines(ROOT / "results" / "records.jsonl")
    assert kept == results_records.lines_of(ROOT / "results"), "run scripts/results_records.py"
    assert len(kept) >= 300


def test_the_archive_of_older_runs_is_imported_whole(tmp_path: Path) -> None:
    content = (ROOT / "results" / "h200" / "unverified.tar.gz").read_bytes()
    arrived = take_tar(as_stream(content), tmp_path, "unverified.tar.gz")
    assert (len(arrived.new), arrived.refused) == (253, [])
    assert (tmp_path / "gpt-800m-20261115T053342-e6f1e3" / "power.csv").stat().st_size > 10_000


def test_results_are_few_files() -> None:
    """Runs are packed, an archive for each job; the notes are pages of text."""
    kept = [path for path in (ROOT / "results").rglob("*") if path.is_file() and path.parent.name != "notes"]
    assert len(kept) < 50

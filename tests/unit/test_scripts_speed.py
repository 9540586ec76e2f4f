"""The scripts of a job on a device: a wrong word is refused before anything runs, and each rate finds its row."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def results(scripts: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import device_results

    monkeypatch.setattr(device_results, "run", lambda *_: pytest.fail("something was started"))
    return device_results


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sped", "OUT"], "did you mean 'speed'"),
        (["speed", "OUT", "--only", "resnet51"], "no trial of speed has resnet51"),
        (["speed", "OUT", "--part", "4/3"], "--part 4/3 is no part"),
        (["speed", "OUT", "size"], "size is no setting=value"),
        (["speed", "OUT", "batchsize=2"], "did you mean 'batch_size'"),
        (["speed", "OUT", "mode=train", "--only", "decode"], "phase has no meaning with mode=train"),
    ],
)
def test_a_job_with_a_wrong_word_starts_nothing(
    results: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert results.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "scripts/trials").glob("*.txt")), ids=lambda path: path.name)
def test_a_list_of_trials_has_no_word_that_is_refused_and_none_twice(results: ModuleType, path: Path) -> None:
    trials = results.list_trials(str(path))
    assert len(trials) == len({trial.hash for trial in trials}) > 1


def test_a_wrong_line_of_a_list_of_trials_is_named(
    results: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.txt"
    path.write_text("# two\n\nresnet50 batch_size=2\nresnet50 batch_size=two  # no number\n")
    assert results.main([str(path), "OUT"]) == 2
    assert f"{path}:4: batch_size=two" in capsys.readouterr().err
    assert results.main([str(tmp_path / "none.txt"), "OUT"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_setting_that_only_the_chosen_trials_have_is_taken(results: ModuleType) -> None:
    options = results.read_options(["speed", "OUT", "--only", "gpt-117m", "sequence=64"])
    (trial,) = results.trials_of(options)
    assert trial.settings["sequence"] == 64


def test_a_trial_that_fails_says_why_on_its_line(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import device_results

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # its run folders stay
    out = tmp_path / "out"
    words = ["speed", str(out), "--only", "gpt-117m", "size=tiny", "device=mps"]
    assert device_results.main(words) == 1
    assert "device=mps is not here" in capsys.readouterr().out
    assert [json.loads(path.read_text())["status"] for path in out.glob("*/record.json")] == ["failed"]


def record(batch_size: int, rate: float, **settings: Any) -> dict[str, Any]:
    effective = {"mode": "train", "batch_size": batch_size, "precision": "bf16", "data": "device", **settings}
    return {
        "status": "ok", "started": "2026",
        "trial": {"hash": str(settings), "workload": "vit-l", "settings": settings, "effective": effective},
        "metrics": {"throughput": {"value": rate, "unit": "images/s"}, "cold_start": {"value": 9.0}},
        "phases": {"cold_start": {"compile_cache": {"state": "warm"}}},
    }  # fmt: skip


def put(folder: Path, *records: dict[str, Any]) -> None:
    for number, one in enumerate(records):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "record.json").write_text(json.dumps(one))


def test_a_goal_has_its_records_and_its_peers_and_others_a_dash(scripts: None, tmp_path: Path) -> None:
    import speed_table

    rates = {"plain eager": [800.0, 802.0], "timm eager": None, "timm compiled": [990.0]}
    loops = [
        {"workload": "vit-l", "mode": "train", "batch_size": 128, "peer": peer, "rates": found}
        for peer, found in rates.items()
    ]
    put(tmp_path, *(record(128, rate) for rate in (1_190.0, 1_210.0, 1_200.0)))
    (tmp_path / "peers-20261116.json").write_text(json.dumps({"loops": loops}))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed -->\n<!-- /speed -->\nafter\n")
    speed_table.main(["--results", str(tmp_path), "--page", str(page)])
    (row,) = [line for line in page.read_text().splitlines() if "vit-l" in line]
    assert row == ("| vit-l, train | 128 | 1,150 | 1,300 | **1,200 images/s** (3 runs) | 1,190 to 1,210 | yes | 9.0 s "
                   "| 801 | - | 990 |")  # fmt: skip
    assert page.read_text().count("| - | - | - | - | - | - | - |") == len(speed_table.GOALS) - 1


def test_the_loops_of_a_row_are_of_one_job(scripts: None, tmp_path: Path) -> None:
    import speed_table

    def write(day: str, **rates: float) -> None:
        work = {"workload": "vit-l", "mode": "train", "batch_size": 128}
        loops = [{**work, "peer": f"timm {form}", "rates": [rate]} for form, rate in rates.items()]
        (tmp_path / f"peers-{day}.json").write_text(json.dumps({"loops": loops}))

    def found() -> dict[str, float]:
        return speed_table.peers_of(tmp_path)["vit-l", "train", 128]

    write("20261116", eager=800.0, compiled=990.0)
    write("20261117", eager=700.0)
    assert found() == {"eager": 800.0, "compiled": 990.0}  # one machine's ratio, not two machines'
    write("20261118", eager=810.0, compiled=995.0)
    assert found() == {"eager": 810.0, "compiled": 995.0}


def test_two_trials_of_one_goal_are_refused(scripts: None, tmp_path: Path) -> None:
    import speed_table

    put(tmp_path, record(128, 1_200.0), record(128, 1_300.0, parts="own"))
    with pytest.raises(SystemExit, match=r"two trials of vit-l, train .* parts=own"):
        speed_table.main(["--results", str(tmp_path), "--page", str(tmp_path / "page.md")])


def test_every_goal_is_a_trial_of_the_suite_and_has_a_place_on_the_page(scripts: None) -> None:
    import speed_table

    from prony.plan.suites import load_suites
    from prony_node.contract.machine import Machine
    from prony_node.workloads import find_workload

    goals = []
    for entry in load_suites()["speed"].trials:
        workload = find_workload(entry.trial.workload)
        effective = workload.effective(entry.trial.settings, Machine("cuda", 139.0, 16))
        goals.append(speed_table.goal_of({"trial": {"workload": workload.name, "effective": effective}}))
    assert sorted(goals) == sorted(speed_table.GOALS)
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert "<!-- speed -->\n" in page
    assert "<!-- /speed -->" in page
    assert "results/h200/speed/peers-" in page  # where the table looks for them


def test_every_goal_has_a_plain_loop_beside_it(scripts: None) -> None:
    pytest.importorskip("torch")
    import speed_table

    import peers
    from prony.plan.suites import load_suites

    loops = {(work.name, work.mode, work.batch_size) for work in peers.WORK}
    for entry in load_suites()["speed"].trials:
        settings = entry.trial.settings
        assert (entry.trial.workload, settings.get("mode", "train"), settings["batch_size"]) in loops
    assert speed_table.GOALS


def test_the_tables_of_a_study_go_to_its_place(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import studies_page

    from prony.cli import study_tables

    monkeypatch.setattr(study_tables, "ask_node", lambda *_: {"machine": "here"})
    monkeypatch.setattr(study_tables, "impossible_here", lambda *_: {})
    monkeypatch.setenv("PRONY_STORE", "postgresql://nobody@127.0.0.1:9/none")
    page = tmp_path / "page.md"
    page.write_text("by hand\n<!-- caraml -->\nold\n<!-- /caraml -->\nby hand too\n")
    (tmp_path / "results" / "caraml").mkdir(parents=True)
    words = ["--results", str(tmp_path / "results"), "--page", str(page)]
    assert studies_page.main(words) == 0
    text = page.read_text()
    assert text.startswith("by hand\n<!-- caraml -->\ncaraml: What do global batch size")
    assert text.endswith("\n<!-- /caraml -->\nby hand too\n")
    assert text.count("\n### ") > 3
    assert "\nold\n" not in text
    assert not list((tmp_path / "results" / "caraml").iterdir())
    (tmp_path / "results" / "caramel").mkdir()
    assert studies_page.main(words) == 2
    said = capsys.readouterr().err
    assert "did you mean 'caraml'" in said
    assert "postgresql" not in said

"""`prony study show`: whose runs stand in the tables, what is said of missing ones, and what a report takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import prony.cli.study_here
import prony.cli.study_tables
from prony.analysis.published_tables import NOT_RUN
from prony.cli.main import make_app
from prony.cli.study_tables import ELSEWHERE, show_study, tables_of_records
from prony.plan.studies import load_study
from prony.plan.study import Study
from prony_node.contract import files
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

HERE, THERE = "here", "there"
GetRecord = Callable[[str], dict[str, Any]]
Write = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine: one GPU."""
    answers = {
        "fingerprint": {"machine": HERE, "software": "s"},
        "devices": {"kind": "cuda", "devices": ["NVIDIA H200"]},
    }
    for module in (prony.cli.study_here, prony.cli.study_tables):
        monkeypatch.setattr(module, "ask_node", lambda what, *_: answers[what])


@pytest.fixture
def study() -> Study:
    return load_study("caraml", "quick", (), find_workload)


@pytest.fixture
def write(tmp_path: Path, get_record: GetRecord) -> Write:
    """A run folder of a trial on a machine, with this rate."""

    def make(trial: Trial, rate: float, machine: str, started: str = "2026-11-15T10:00:00+00:00") -> dict[str, Any]:
        record = get_record("d00001")
        record["id"] = f"{trial.workload}-{len(list(tmp_path.iterdir()))}"
        record["trial"] |= {**trial.to_json(), "effective": {"batch_size": 64, **trial.settings}}
        record["metrics"]["throughput"] |= {"value": rate, "low": rate, "high": rate}
        record |= {"started": started, "ended": started, "study": {"name": "caraml", "part": "resnet"}}
        record["fingerprint"] = {"machine": machine, "software": "s"}
        folder = tmp_path / record["id"]
        folder.mkdir()
        (folder / files.RECORD).write_text(json.dumps(record))
        return record

    return make


RATES = "ResNet-50 over global batches and devices: images/s"


def trial_of(study: Study, devices: int, batch: int) -> Trial:
    wished = {"devices": devices, "global_batch": batch}
    (found,) = [one.trial for one in study.planned()
                if one.trial.workload == "resnet50" and wished.items() <= one.trial.settings.items()]  # fmt: skip
    return found


def whys(root: Path, study: Study) -> dict[tuple[str, str], str | None]:
    (table,) = [one for one in show_study(study, root).tables if one.spec.title == RATES]
    return {(row.key[0], name): ours.why for row in table.rows for name, ours in row.ours.items()}


def test_what_this_machine_lacks_and_what_is_still_to_be_run_is_told_apart(
    tmp_path: Path, study: Study, write: Write
) -> None:
    write(trial_of(study, 1, 256), 4000.0, HERE)
    found = whys(tmp_path, study)
    assert found["256", "ours, devices=1"] is None
    assert found["64", "ours, devices=1"] == NOT_RUN
    assert found["64", "ours, devices=4"] == "devices=4 is not possible here: torch finds 1 of cuda"


def test_the_tables_are_of_one_machine_that_of_the_newest_run(tmp_path: Path, study: Study, write: Write) -> None:
    write(trial_of(study, 1, 256), 4000.0, HERE)
    write(trial_of(study, 1, 64), 3000.0, THERE, started="2026-11-15T11:00:00+00:00")
    shown = show_study(study, tmp_path)
    assert shown.left_out == 1
    assert any("1 runs of other machines are left out" in line for line in shown.lines())
    found = whys(tmp_path, study)
    assert found["64", "ours, devices=1"] is None
    # Nothing is known here of what that machine can do.
    assert found["256", "ours, devices=1"] == found["64", "ours, devices=4"] == ELSEWHERE


def test_the_command_prints_tables_or_json_and_refuses_a_study_without(
    tmp_path: Path, study: Study, write: Write
) -> None:
    write(trial_of(study, 1, 256), 4000.0, HERE)
    arguments = ["study", "show", "caraml", "--size", "quick", "--runs", str(tmp_path)]
    printed = CliRunner().invoke(make_app("study"), arguments, catch_exceptions=False).stdout
    assert "3,969 (×1.01)" in printed
    document = json.loads(CliRunner().invoke(make_app("study"), [*arguments, "--json"], catch_exceptions=False).stdout)
    (cell,) = [
        one for table in document["tables"] if table["title"] == RATES for one in table["cells"]
        if (one["published"]["system"], one["published"]["global_batch"]) == ("WestAI H100", 256) and one["ratio"]
    ]  # fmt: skip
    assert cell["ratio"] == pytest.approx(4000 / 3969)
    assert "framework" in cell["differs"]
    (tmp_path / "mine.yaml").write_text("workloads: resnet50\n")
    refused = CliRunner().invoke(make_app("study"), ["study", "show", str(tmp_path / "mine.yaml")])
    assert refused.exit_code == 2
    assert "mine has no tables of a publication" in refused.output


def test_a_report_takes_the_tables_that_its_runs_fill(study: Study, write: Write) -> None:
    record = write(trial_of(study, 1, 256), 4000.0, HERE)
    titles = [table.spec.title for table in tables_of_records([record])]
    assert RATES in titles
    assert not any(title.startswith("GPT") for title in titles)
    assert tables_of_records([{**record, "study": {"name": "mine"}}]) == []

"""`prony study show`: whose runs stand in the tables, what is said of missing ones, and what a report takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from documents import of_documents
from typer.testing import CliRunner

import prony.engine.history
import prony.engine.possible
import prony.engine.published
from prony.analysis.claims import Judged
from prony.analysis.published_tables import NOT_RUN
from prony.cli.main import make_app
from prony.cli.study_output import NO_TABLE, shown_document, shown_lines
from prony.engine.progress import silent
from prony.engine.published import ELSEWHERE, PublishedOfRecords, ShownStudy, published_of_records, show_study
from prony.report.build import report_text
from prony.study.study import Study
from prony.study.study_file import load_study
from prony_node.contract import files
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

published_of_records, report_text = map(of_documents, (published_of_records, report_text))

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
    for module in (prony.engine.history, prony.engine.possible, prony.engine.published):
        monkeypatch.setattr(module, "ask_node", lambda what, *_, **__: answers[what])


@pytest.fixture
def study() -> Study:
    return load_study("caraml", "quick", (), find_workload)


@pytest.fixture
def write(tmp_path: Path, get_record: GetRecord) -> Write:
    """A run folder of a trial on a machine, with this rate."""

    def make(
        trial: Trial, rate: float, machine: str, started: str = "2026-11-15T10:00:00+00:00", device: str = "NVIDIA H200"
    ) -> dict[str, Any]:
        record = get_record("d00001")
        record["id"] = f"{trial.workload}-{len(list(tmp_path.iterdir()))}"
        record["trial"] |= {**trial.to_json(), "effective": {"batch_size": 64, **trial.settings}}
        record["metrics"]["throughput"] |= {"value": rate, "low": rate, "high": rate}
        record |= {"started": started, "ended": started, "study": {"name": "caraml", "part": "resnet"}}
        record["fingerprint"] = {"machine": machine, "software": "s"}
        record["facts"]["devices"][0]["name"] = device
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
    (table,) = [one for one in show_study(study, root, silent).tables if one.spec.title == RATES]
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
    shown = show_study(study, tmp_path, silent)
    assert shown.left_out == 1
    assert any("1 runs of other machines are left out" in line for line in shown_lines(shown))
    found = whys(tmp_path, study)
    assert found["64", "ours, devices=1"] is None
    # Nothing is known here of what that machine can do.
    assert found["256", "ours, devices=1"] == found["64", "ours, devices=4"] == ELSEWHERE


def test_trials_with_other_settings_than_the_published_say_so(tmp_path: Path) -> None:
    words = ["study", "show", "olivia-gh200", "--part", "allocation", "batch_size=2", "--runs", str(tmp_path)]
    printed = CliRunner().invoke(make_app("study"), words, catch_exceptions=False).stdout
    assert NO_TABLE in printed


def test_one_part_has_its_own_tables_alone(tmp_path: Path, study: Study, write: Write) -> None:
    write(trial_of(study, 1, 256), 4000.0, HERE)
    arguments = ["study", "show", "caraml", "--size", "quick", "--runs", str(tmp_path), "--part", "resnet"]
    printed = CliRunner().invoke(make_app("study"), arguments, catch_exceptions=False).stdout
    assert "3,969 (×1.01)" in printed
    assert "GPT of 800 million parameters over" not in printed
    plan = ["study", "plan", "caraml", "--runs", str(tmp_path), "--part", "gpt", "--part", "gpt-117m"]
    planned = CliRunner().invoke(make_app("study"), plan, catch_exceptions=False).stdout
    assert planned.startswith("caraml, size full, part gpt, gpt-117m only: ")
    trials, stated = planned.split("\nStated by the publication, and where:\n")
    assert "resnet50" not in trials
    stated, assumed = stated.split("\nNot stated by the publication, and assumed:\n")
    energy = "energy is measured with jpwr, per GPU for GPT and per epoch for ResNet-50"
    assert f"- {energy} (slides, Introduction; Benchmark Models)" in stated
    assert "- what precision=fp16 keeps in fp32: autocast with fp32 weights (not stated; as torch does it)" in assumed
    document = json.loads(CliRunner().invoke(make_app("study"), [*plan, "--json"], catch_exceptions=False).stdout)
    assert {"what": "data: made on the device, where the suite read OSCAR and ImageNet; give yours as data=PATH",
            "source": "Prony never downloads data"} in document["assumptions"]  # fmt: skip
    assert document["parts"] == ["gpt", "gpt-117m"]


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


GENERATIONS = "In ResNet-50 newer generations are faster"


def claim_of(shown: ShownStudy, says: str) -> Judged:
    (found,) = [one for one in shown.claims if one.claim.says.startswith(says)]
    return found


def test_a_claim_that_names_devices_takes_runs_of_every_machine(tmp_path: Path, study: Study, write: Write) -> None:
    trial = trial_of(study, 1, 256)
    write(trial, 5000.0, HERE, device="NVIDIA GH200 120GB")
    write(trial, 4000.0, THERE, device="NVIDIA H100 80GB HBM3")
    assert claim_of(show_study(study, tmp_path, silent), GENERATIONS).missing == ("needs runs on 1 x A100",)
    write(trial, 2000.0, "elsewhere", device="NVIDIA A100-SXM4-40GB")
    shown = show_study(study, tmp_path, silent)
    judged = claim_of(shown, GENERATIONS)
    assert judged.verdict == "holds here"
    assert [one.value for one in judged.values] == pytest.approx([1.25, 2.0])
    text = "\n".join(shown_lines(shown))
    assert "Holds here:\n\n- In ResNet-50 newer generations are faster" in text
    assert "Holds here (above 1): ours 1.25 (95 % CI " in text
    assert text.index("What the publication concludes") < text.index("Stated by the publication")
    (entry,) = [one for one in shown_document(shown).claims if one["says"].startswith(GENERATIONS)]
    assert (entry["verdict"], entry["values"][1]["value"]) == ("holds here", pytest.approx(2.0))


def test_one_part_has_its_own_claims_alone(tmp_path: Path) -> None:
    of_part = load_study("caraml", "quick", (), find_workload, ("gpt",))
    claims = show_study(of_part, tmp_path, silent).claims
    assert {cell.workload for one in claims for cell in one.claim.cells.values()} == {"gpt-800m"}


def test_a_report_has_the_claims_that_its_runs_test_and_what_is_assumed(study: Study, write: Write) -> None:
    trial = trial_of(study, 1, 256)
    rates = {"NVIDIA GH200 120GB": 5000.0, "NVIDIA H100 80GB HBM3": 6000.0, "NVIDIA A100-SXM4-40GB": 2000.0}
    records = [write(trial, rate, device, device=device) for device, rate in rates.items()]
    of_records = published_of_records(records)
    (found,) = of_records.conclusions
    (line,) = found.claims
    assert line.startswith("In ResNet-50 newer generations are faster")
    assert "Does not hold here (above 1): ours 0.833 (95 % CI " in line
    assert found.more.endswith("further claims cannot be tested with these runs: prony study show caraml")
    page = report_text(records, of_records.tables, conclusions=[found])
    assert "What caraml concludes, tested with these runs" in page
    assert "fits 40 GB" in page


def test_a_report_takes_the_tables_that_its_runs_fill(study: Study, write: Write) -> None:
    record = write(trial_of(study, 1, 256), 4000.0, HERE)
    titles = [table.spec.title for table in published_of_records([record]).tables]
    assert RATES in titles
    assert not any(title.startswith("GPT") for title in titles)
    assert published_of_records([{**record, "study": {"name": "mine"}}]) == PublishedOfRecords([], [], [])

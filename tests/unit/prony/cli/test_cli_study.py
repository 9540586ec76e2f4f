"""Carrying out a study with a stand-in for the node: what is pruned, what stops it, and where it goes on."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from prony.cli.main import main, make_app
from prony.cli.present import where_lines
from prony.cli.progress import LiveView, PlainView, make_view
from prony.cli.study_output import forecast_lines
from prony.engine.execute import execute
from prony.engine.forecast import make_forecast, make_status
from prony.engine.progress import StudyProgress, silent
from prony.engine.runs import Options, RunOutcome, StudyOutcome
from prony.sites.collect import ProgressLine
from prony.sites.local import LocalRun
from prony.sites.locks import hold_devices, lock_folder
from prony.sites.site import Site
from prony.study.request import make_plan
from prony.study.study import RunEstimate
from prony.study.study_file import StudyFileOptions, parse_study
from prony_node.contract import RequestError
from prony_node.contract.record import new_record, parse_record
from prony_node.contract.run_folder import SUPERVISOR, write_manifest
from prony_node.contract.trial import Stop, Trial
from prony_node.workloads import find_workload

STAND_IN = Path(__file__).parents[3] / "stand_in" / "stand_in_node.py"
STUDY = "name: small\nworkloads: gpt-tiny\norder: given\nsettings: {device: cpu, batch_size: 1..32}\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    node = tmp_path / "node"
    node.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    node.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(node))
    monkeypatch.setenv("PRONY_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr("prony.sites.local.LOOK_EVERY_S", 0.02)
    return tmp_path / "runs"


def carry(root: Path, text: str = STUDY, **options: Any) -> tuple[StudyOutcome, str]:
    said = io.StringIO()
    study = parse_study(text, "small.yaml", StudyFileOptions(None), find_workload)
    carried = execute(study, Options(root, **options), make_view(Console(file=said, width=200)))
    return carried, said.getvalue()


def batches(carried: StudyOutcome) -> list[tuple[object, str]]:
    return [(o.record.trial.settings["batch_size"], o.record.status) for o in carried.outcomes]


def test_out_of_memory_is_a_result_and_prunes_larger_batches(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_STAND_IN_MEMORY", "4")
    expected = [(1, "ok"), (2, "ok"), (4, "ok"), (8, "failed")]
    carried, said = carry(root)
    assert batches(carried) == expected
    assert len(carried.pruned) == 2
    assert "batch_size=32: left out, a batch of 8 ran out of memory" in said
    assert "best so far: 20.00 images/s, gpt-tiny device=cpu batch_size=4" in said
    made = sorted(root.glob("gpt-tiny-*"))
    again, _ = carry(root)
    assert (batches(again), sorted(root.glob("gpt-tiny-*"))) == (expected, made)
    status = make_status(parse_study(STUDY, "small.yaml", StudyFileOptions(None), find_workload), root, silent)
    assert status.tally.line() == "4 of 6 done, 1 of them failed, 2 pruned, 0 left"
    lines = forecast_lines(make_forecast(status.study, root, silent))
    assert "2 of the runs will be left out: a smaller batch ran out of memory" in lines
    assert "nothing is left to run" in lines


def test_what_another_start_finishes_meanwhile_is_not_made_again(root: Path) -> None:
    class Beside(PlainView):
        """After the first run somebody else makes all the others."""

        def show(self, study: StudyProgress) -> None:
            super().show(study)
            if len(list(root.glob("gpt-tiny-*"))) == 1:
                carry(root, share=True)

    study = parse_study(STUDY, "small.yaml", StudyFileOptions(None), find_workload)
    said = io.StringIO()
    carried = execute(study, Options(root, share=True), Beside(Console(file=said, width=200)))
    assert {outcome.folder for outcome in carried.outcomes} == set(root.glob("gpt-tiny-*"))
    assert len(carried.outcomes) == 6
    assert said.getvalue().count("finished before (ok") == 5


def test_too_many_failures_in_a_row_stop_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_STAND_IN_FAILS", "exception")
    carried, _ = carry(root)
    assert carried.gave_up
    assert carried.stopped is not None
    assert carried.stopped.startswith("5 runs failed one after the other, the last failed (exception): as it was")
    assert len(carried.outcomes) == 5
    monkeypatch.delenv("PRONY_STAND_IN_FAILS")
    carried, _ = carry(root)
    assert [status for _, status in batches(carried)] == ["failed"] * 5 + ["ok"]
    carried, _ = carry(root, retry_failed=True)
    assert [status for _, status in batches(carried)] == ["ok"] * 6


def test_a_budget_stops_it_and_the_next_start_goes_on(root: Path) -> None:
    text = f"{STUDY}budget: {{max_energy: 0.001J}}\n"
    for number in (1, 2):
        carried, _ = carry(root, text)
        assert len(carried.outcomes) == number
        assert carried.stopped is not None
        assert "Wh is spent (" in carried.stopped
        assert f"{6 - number} runs are left" in carried.stopped
    carried, _ = carry(root, f"{STUDY}budget: {{max_time: 0.001s}}\n")
    assert carried.stopped is not None
    assert carried.stopped.startswith("the budget of 1.000 ms is spent: ")
    assert carried.stopped.endswith("started again it goes on with them, with the same budget anew")
    carried, _ = carry(root)
    assert (len(carried.outcomes), carried.stopped) == (6, None)


def test_one_trial_is_counted_as_one(root: Path) -> None:
    study = parse_study(
        "workloads: gpt-tiny\nsettings: {batch_size: 4}\n", "s.yaml", StudyFileOptions(None), find_workload
    )
    assert "1 trial, 1 run" in forecast_lines(make_forecast(study, root, silent))


def test_a_model_that_this_host_cannot_hold_is_left_out(root: Path) -> None:
    text = "workloads: [gpt-175b, gpt-tiny]\nsettings: {device: cpu, size: [full, tiny], batch_size: 1}\n"
    study = parse_study(text, "s.yaml", StudyFileOptions(None), find_workload)
    (why,) = make_forecast(study, root, silent).impossible.values()
    assert why.startswith("gpt-175b needs 1,")
    assert "and this host has" in why


def test_what_this_machine_cannot_do_is_left_out(root: Path) -> None:
    text = "workloads: gpt-tiny\nsettings: {precision: [fp32, tf32], batch_size: 1..2}\n"
    carried, said = carry(root, text)
    assert [o.record.trial.settings["precision"] for o in carried.outcomes] == ["fp32", "fp32"]
    assert "skipped: not possible on this machine (2 of the trials): precision=tf32 is a mode of CUDA's" in said
    assumed = "assumptions: [{what: fp32, source: not stated}]\n"
    study = parse_study(f"{text}  #\n{assumed}", "s.yaml", StudyFileOptions(None), find_workload)
    lines = forecast_lines(make_forecast(study, root, silent))
    assert "2 of the runs are finished here and will be skipped" in lines
    assert "nothing is left to run" in lines
    assert lines[-2:] == ["Not stated by the publication, and assumed:", "- fp32 (not stated)"]


def test_a_study_of_a_site_is_judged_by_the_site(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine cannot do is no matter there, and runs of its nodes are finished ones."""
    text = STUDY.replace("1..32", "1..4, devices: [1, 64]")
    there = Site("there", "slurm", runs=root.parent / "runs of the site")
    monkeypatch.setattr("prony.engine.site.find_site", lambda name: there)
    monkeypatch.setenv("PRONY_RUNS", str(root))
    assert len(carry(root.parent / "runs of the site", f"{text}exclude: devices > 1\n")[0].outcomes) == 3
    for path in (root.parent / "runs of the site").glob("*/record.json"):
        record = json.loads(path.read_text()) | {"fingerprint": {"machine": "a node of theirs", "software": "theirs"}}
        path.write_text(json.dumps(record))
        (path.parent / "manifest.json").unlink()
        write_manifest(path.parent, SUPERVISOR)
    (root.parent / "runs of the site" / "index.sqlite").unlink()
    study = parse_study(f"{text}site: there\n", "s.yaml", StudyFileOptions(None), find_workload)
    forecast = make_forecast(study, root, silent)
    assert (forecast.impossible, len(forecast.turns), forecast.finished) == ({}, 6, 3)
    assert "3 of the runs are finished there and will be skipped" in forecast_lines(forecast)
    assert (make_status(study, root, silent).tally.done, make_status(study, root, silent).tally.left) == (3, 3)
    assert make_status(study, root.parent / "elsewhere", silent).tally.done == 0, "a place that a person names counts"


def test_what_a_job_had_finished_before_it_ended_is_told_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler says late that a job has ended: until then its records are finished, and its own."""
    monkeypatch.setattr("prony.engine.site.find_site", lambda name: Site("there", "slurm", runs=root))
    made = carry(root)[0].outcomes
    monkeypatch.setattr("prony.engine.site.follow", lambda jobs, place, view: (made, False))
    again = carry(root, f"{STUDY}site: there\n")[0].outcomes
    assert [one.record.id for one in again] == [one.record.id for one in made]


@pytest.mark.parametrize("words", [["run", "gpt-tiny", "device=cpu"], ["study", "run", "s.yaml"]], ids=" ".join)
def test_a_job_that_ends_well_without_its_runs_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prony.engine.site.UPDATE_EVERY_S", 0.1)
    Path("s.yaml").write_text(STUDY)
    Path("here.yaml").write_text("kind: local\npython: /bin/true\n")
    done = CliRunner().invoke(make_app(words[0]), [*words, "--site", "./here.yaml", "--out", "runs"])
    assert done.exit_code == 1, done.output
    how_many = "1 run was" if words[0] == "run" else "6 runs were"
    assert f"prony: {how_many} not made, although the job ended" in done.stderr


def test_what_a_job_leaves_out_for_want_of_memory_is_not_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_STAND_IN_MEMORY", "4")
    monkeypatch.setattr("prony.engine.site.find_site", lambda name: Site("there", "slurm", runs=root))
    made = carry(root)[0].outcomes
    monkeypatch.setattr("prony.engine.site._SiteHistory.divide", lambda *_: ([], []))
    for known, stopped in ((made, None), (made[1:], "1 run was not made")):
        monkeypatch.setattr("prony.engine.site.follow", lambda *_, known=known: (known, False))
        carried = carry(root, f"{STUDY}site: there\n")[0]
        assert carried.gave_up == bool(stopped)
        assert str(carried.stopped).startswith(str(stopped))


def test_a_device_in_use_is_refused_unless_shared(root: Path) -> None:
    with hold_devices({"cpu"}, "another study", lock_folder()):
        with pytest.raises(RequestError, match=r"cpu is in use by process \d+ \(another study\)"):
            carry(root)
        assert not root.exists()
        assert len(carry(root, share=True)[0].outcomes) == 6


def test_what_never_starts(root: Path) -> None:
    with pytest.raises(RequestError, match="unknown site 'alps'"):
        carry(root, f"{STUDY}site: alps\n")
    wrong = "workloads: gpt-tiny\nsettings: {mode: [train, infer], optimizer: [adam, sgd]}\n"
    with pytest.raises(RequestError, match=r"no meaning with mode=infer.*\(2 trials are refused\)"):
        carry(root, wrong)
    assert not root.exists()
    lines = forecast_lines(
        make_forecast(parse_study(wrong, "w.yaml", StudyFileOptions(None), find_workload), root, silent)
    )
    assert sum(line.startswith("refused: gpt-tiny mode=infer") for line in lines) == 2
    with pytest.raises(RequestError, match="small has no trial: what it excludes is everything"):
        carry(root, f"{STUDY}exclude: batch_size > 0\n")


def test_a_plan_says_once_what_all_trials_have_in_common(root: Path) -> None:
    text = STUDY.replace("1..32}", "1..2, fused: off, seed: {values: 3, when: batch_size > 1}}")
    lines = forecast_lines(
        make_forecast(parse_study(text, "w.yaml", StudyFileOptions(None), find_workload), root, silent)
    )
    assert lines[2:5] == [
        "  all with device=cpu fused=off",
        "  gpt-tiny batch_size=1",
        "  gpt-tiny batch_size=2 seed=3",
    ]


def test_a_log_has_two_lines_for_a_run_and_the_best_of_its_own_workload(root: Path) -> None:
    text = STUDY.replace("workloads: gpt-tiny", "workloads: [gpt-tiny, resnet50]").replace("1..32", "[1, 2]")
    said = carry(root, text)[1].splitlines()
    assert len(said) == 1 + 2 * 4
    assert [("gpt-tiny" in line, "resnet50" in line) for line in said[2::2]] == [(True, False)] * 2 + [
        (False, True)
    ] * 2
    assert all("; best so far: " in line for line in said[2::2])


def test_runs_are_named_shortly_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_RUNS", str(tmp_path / "runs"))
    record: Any = None
    here = [RunOutcome(tmp_path / "runs" / f"gpt-tiny-20260101T000000-00000{n}", record) for n in range(2)]
    assert where_lines(here) == [f"run folders: {tmp_path}/runs", "a page with plots: prony report 000000 000001"]
    there = [RunOutcome(tmp_path / "a site" / f"gpt-tiny-20260101T000000-0000{n}", record) for n in range(10, 23)]
    assert where_lines(there)[1] == f"a page with plots: prony report --runs '{tmp_path}/a site'"


def test_the_commands(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (root.parent / "small.yaml").write_text(STUDY.replace("1..32", "1..2"))
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("PRONY_RUNS", str(root))

    def prony(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["prony", "study", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert (end.value.code or 0) == code
        shown = capsys.readouterr()
        return shown.err if code == 2 else shown.out

    plan = json.loads(prony("plan", "small.yaml", "--json"))
    assert [trial["settings"]["batch_size"] for trial in plan["trials"]] == [1, 2]
    assert plan["estimate"]["runs_by_basis"]["unknown"] == 2
    assert "time and energy are unknown" in prony("plan", "small.yaml")
    records = json.loads(prony("run", "small.yaml", "--json"))
    turns = [record["study"]["turn"] for record in records]
    assert turns == [1, 2]
    assert "a page with plots" in prony("resume", "small.yaml")
    assert "2 of 2 done, 0 left" in prony("status", "small.yaml")
    assert json.loads(prony("status", "small.yaml", "batch_size=1,8", "--json"))["left"] == 1
    assert "about 1 s (1 from records of the same workload here)" in prony("plan", "small.yaml", "batch_size=1,8")
    assert prony("plan", "smal.yaml", code=2) == "prony: smal.yaml cannot be read: No such file or directory\n"


def test_the_live_view_shows_where_it_stands() -> None:
    screen = io.StringIO()
    view = LiveView(Console(file=screen, force_terminal=True, width=120))
    tally = StudyProgress(10)
    for _ in range(10):
        tally.expect(RunEstimate("the same trial", 60.0))
    trial = Trial("gpt-tiny", {"seed": 1})
    failed = new_record(make_plan(trial, Stop(), ()), status="failed", started="", ended="")
    tally.learn(trial, parse_record(failed | {"failure": {"kind": "hung", "message": ""}}))
    tally.expect(RunEstimate("the same trial", 60.0), -1)
    view.begin("[2/10] gpt-tiny seed=2")
    view.update(ProgressLine("measure"))
    view.show(tally)
    view.close()
    shown = screen.getvalue()
    for text in (
        "[2/10] gpt-tiny",
        "measuring",
        "1 of 10 done, 1 of them failed, 1 running, 8 left, about 9 min",
        "seed=1: hung",
    ):
        assert text in shown


def test_ctrl_c_ends_the_run_and_says_what_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: LocalRun) -> Iterator[None]:
        os.kill(os.getpid(), signal.SIGINT)  # a person at the terminal, while the second run goes
        yield None
        yield from followed(self)

    monkeypatch.setenv("PRONY_STAND_IN_PACE", "0.2")
    followed = LocalRun.follow
    monkeypatch.setattr(LocalRun, "follow", lambda self: followed(self) if made() == 1 else interrupt(self))

    def made() -> int:
        return len(list(root.glob("gpt-tiny-*")))

    carried, _ = carry(root)
    assert carried.interrupted
    assert [status for _, status in batches(carried)] == ["ok", "interrupted"]
    assert carried.stopped == "interrupted: 5 runs are left; started again it goes on with them"

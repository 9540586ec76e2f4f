"""The Python API: its page's examples run, and it says by callback and exception what the verbs print."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import prony
from prony import api
from prony.engine.progress import Event, Note, RunBegun, RunEnded, RunProgress, Standing
from prony_node.contract.errors import ParameterError
from prony_node.contract.record import Record

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "python.md"
STAND_IN = ROOT / "tests" / "stand_in" / "stand_in_node.py"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs, made by the stand-in for the node."""
    node = tmp_path / "node"
    node.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    node.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(node))
    monkeypatch.setenv("PRONY_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("PRONY_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("prony.sites.local.LOOK_EVERY_S", 0.02)
    return tmp_path / "runs"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for example in examples():
        if 'site="mine"' in example:
            with pytest.raises(prony.RequestError, match="unknown site 'mine'"):
                exec(example, names)
        else:
            exec(example, names)
    said = capsys.readouterr()
    assert said.err == ""
    assert "ok " in said.out
    assert "did you mean 'gpt-tiny'" in said.out


def test_the_page_names_every_function() -> None:
    functions = {name for name in prony.__all__ if inspect.isfunction(getattr(prony, name))}
    assert set(re.findall(r"^\| `prony\.(\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == functions


def test_keywords_and_words_are_the_same_settings() -> None:
    words = api._words(["seed=1"], {"batch_size": [8, 16], "fused": False, "size": "tiny", "learning_rate": 0.5})
    assert words == ["seed=1", "batch_size=8,16", "fused=off", "size=tiny", "learning_rate=0.5"]
    outcome = prony.run("gpt-tiny", "device=cpu", batch_size=2, fused=False)
    assert outcome.records[0].trial.settings == {"device": "cpu", "batch_size": 2, "fused": False}


def test_events_tell_each_run_and_where_the_study_stands(place: Path) -> None:
    events: list[Event] = []
    outcome = prony.sweep("gpt-tiny", device="cpu", batch_size=[1, 2], order="given", progress=events.append)
    assert [record.trial.settings["batch_size"] for record in outcome.records] == [1, 2]
    kinds = [type(event) for event in events if not isinstance(event, RunProgress)]
    assert kinds == [Standing, RunBegun, RunEnded, Standing, RunBegun, RunEnded, Standing]
    ended = [event.outcome for event in events if isinstance(event, RunEnded)]
    assert ended == outcome.outcomes
    again: list[Event] = []
    assert prony.sweep("gpt-tiny", device="cpu", batch_size=[1, 2], progress=again.append).records != []
    assert sum("finished before" in event.text for event in again if isinstance(event, Note)) == 2
    assert len(list(place.glob("gpt-tiny-*"))) == 2


def test_records_are_loaded_and_compared(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (prony.run("gpt-tiny", device="cpu", batch_size=size).records[0] for size in (1, 2))
    loaded = prony.load()
    assert [type(record) for record in loaded] == [Record, Record]
    assert {record.id for record in loaded} == {first.id, second.id}
    assert prony.load("latest")[0].id in {first.id, second.id}
    assert prony.load(first.id) == [first]
    assert prony.compare(first, second).a.runs == [first.id]
    with pytest.raises(prony.RequestError, match="is on both sides"):
        prony.compare(first, [first, second])
    with pytest.raises(prony.RequestError, match="no run 'nothing'"):
        prony.load("nothing")
    assert capsys.readouterr() == ("", "")


def test_a_run_that_failed_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_STAND_IN_FAILS", "exception")
    (record,) = prony.run("gpt-tiny", device="cpu").records
    assert record.failure is not None
    assert record.failure.kind == "exception"


def test_importing_prony_imports_nothing_heavy() -> None:
    code = "import sys, prony; assert 'prony.api' not in sys.modules; prony.run; assert 'prony.api' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        prony.walk  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: prony.tune("gpt-tiny", budget="soon"), "budget soon is not possible"),
        (lambda: prony.tune("gpt-tiny", within=["memory<40"]), "within memory<40 is not possible"),
        (lambda: prony.sweep("gpt-tiny", batch_size=[1, 2], max_time="long"), "max_time long is not possible"),
        (lambda: prony.run("gpt-tiny", seeds=0), "seeds 0 is not possible"),
        (lambda: prony.run("gpt-tiny", at=prony.SiteOptions(dry_run=True)), "dry_run is about jobs of a site"),
    ],
)
def test_errors_name_parameters_and_verbs_their_options(call: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=f"^{said}") as caught:
        call()
    option = "--" + said.partition(" ")[0].replace("_", "-")
    assert caught.value.said_of_option.startswith(f"{option} {said.partition(' ')[2]}")


def test_a_study_is_planned_and_its_status_told(place: Path, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("workloads: gpt-tiny\nsettings: {batch_size: [1, 2], device: cpu}\n")
    study = str(tmp_path / "two.yaml")
    before = prony.plan_study(study)
    assert (len(before.turns), before.finished) == (2, 0)
    prony.run_study(study)
    assert prony.plan_study(study).finished == 2
    assert prony.study_status(study).tally.left == 0


def test_a_run_verifies(place: Path) -> None:
    outcome = prony.run("gpt-tiny", device="cpu")
    (found,) = prony.verify(outcome.records[0].id)
    assert found.id == outcome.records[0].id
    assert prony.jobs() == prony.collect() == []

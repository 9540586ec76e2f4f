"""A model file on the command line is described by a node process, and refused with its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prony.engine import possible
from prony.engine.progress import silent
from prony.study.request import make_plan, parse_trial
from prony.study.study import make_grid
from prony_node.contract import Plan, RequestError, Stop
from prony_node.contract.typed import encode
from prony_node.workloads import WORKLOADS, workload_of
from prony_node.workloads.model_file_config import to_document


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the node process says of any file: the tiny decoder under another name."""
    stated = to_document(WORKLOADS["gpt-tiny"]) | {"name": "mine@01234567", "module": "/somewhere/mine.py"}
    said: dict[str, Any] = {"refused": None, "path": stated["module"], "sha256": "0123", "workload": stated}
    monkeypatch.setattr(possible, "ask_node", lambda question, *words, report: dict(said))
    return said


def test_a_bare_name_asks_nobody(answer: dict[str, Any], tmp_path: Path) -> None:
    assert possible.find_model_file("gpt-tiny", silent) is None
    assert possible.find_model_file("timm/resnet18", silent) is None


@pytest.mark.parametrize(("word", "says"), [("nowhere.py", "there is no such file"), (".", "that is a folder")])
def test_what_is_no_file_is_refused(answer: dict[str, Any], tmp_path: Path, word: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        possible.find_model_file(f"{tmp_path}/{word}", silent)


def test_the_sentence_of_the_node_is_passed_on(answer: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    answer["refused"] = "mine.py, line 3: SyntaxError"
    with pytest.raises(RequestError, match=r"mine\.py, line 3"):
        possible.find_model_file(str(tmp_path / "mine.py"), silent)


def test_what_it_states_makes_trials_and_plans(answer: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    found = possible.find_model_file(str(tmp_path / "mine.py"), silent)
    assert found is not None
    trial = parse_trial(found.workload, ["sequence=16"])
    assert (trial.workload, trial.settings) == ("mine@01234567", {"sequence": 16})
    assert len(make_grid(found.workload, ["sequence=16,32", "batch_size=1,2"])) == 4
    plan = make_plan(trial, Stop(), (), file=encode(found.plan))
    assert plan.run_id.startswith("mine-01234567-")
    assert Plan.from_json(plan.to_json()) == plan
    assert workload_of(plan) == found.workload

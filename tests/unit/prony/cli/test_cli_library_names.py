"""A model's name that only its library knows is asked of a node process before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from prony.engine import possible
from prony.engine.progress import Report, silent
from prony.engine.runs import TrialRun
from prony_node.contract.errors import RequestError
from prony_node.contract.trial import Stop, Trial


def jobs_of(*names: str) -> list[TrialRun]:
    return [TrialRun(Trial(name), Stop()) for name in names]


def answering(answers: dict[str, Any], asked: list[str]) -> Any:
    def ask(question: str, *words: str, report: Report) -> dict[str, Any]:
        assert question == "workload"
        asked.extend(words)
        answer = answers[words[0]]
        if isinstance(answer, Exception):
            raise answer
        return {"refused": answer, "unknown": None}

    return ask


def test_each_name_of_a_library_is_asked_once_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(possible, "ask_node", answering({"timm/resnet18": None}, asked))
    possible.refuse_unknown_models(jobs_of("resnet50", "timm/resnet18", "timm/resnet18"), silent)
    assert asked == ["timm/resnet18"]


def test_a_wrong_name_is_refused_in_the_node_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "unknown timm model 'resnet81'; did you mean 'resnet18'?"
    monkeypatch.setattr(possible, "ask_node", answering({"timm/resnet81": said}, []))
    with pytest.raises(RequestError, match="did you mean 'resnet18'"):
        possible.refuse_unknown_models(jobs_of("timm/resnet81"), silent)


def test_a_node_that_cannot_answer_leaves_it_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = RequestError("python gave no answer")
    monkeypatch.setattr(possible, "ask_node", answering({"timm/resnet18": broken}, []))
    possible.refuse_unknown_models(jobs_of("timm/resnet18"), silent)


def test_the_node_process_answers_for_itself() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(RequestError, match="unknown torchvision model 'resnet81'; did you mean 'resnet18'"):
        possible.refuse_unknown_models(jobs_of("torchvision/resnet81"), silent)

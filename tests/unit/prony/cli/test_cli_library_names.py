"""A model's name that only its library knows is asked of a node process before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from prony.cli import execute
from prony_node.contract.errors import RequestError
from prony_node.contract.trial import Stop, Trial


def jobs_of(*names: str) -> list[execute.TrialRun]:
    return [execute.TrialRun(Trial(name), Stop()) for name in names]


def answering(answers: dict[str, Any], asked: list[str]) -> Any:
    def ask(question: str, *words: str) -> dict[str, Any]:
        assert question == "workload"
        asked.extend(words)
        answer = answers[words[0]]
        if isinstance(answer, Exception):
            raise answer
        return {"refused": answer, "unknown": None}

    return ask


def test_each_name_of_a_library_is_asked_once_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(execute, "ask_node", answering({"timm/resnet18": None}, asked))
    execute.refuse_unknown_models(jobs_of("resnet50", "timm/resnet18", "timm/resnet18"))
    assert asked == ["timm/resnet18"]


def test_a_wrong_name_is_refused_in_the_node_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "unknown timm model 'resnet81'; did you mean 'resnet18'?"
    monkeypatch.setattr(execute, "ask_node", answering({"timm/resnet81": said}, []))
    with pytest.raises(RequestError, match="did you mean 'resnet18'"):
        execute.refuse_unknown_models(jobs_of("timm/resnet81"))


def test_a_node_that_cannot_answer_leaves_it_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = RequestError("python gave no answer")
    monkeypatch.setattr(execute, "ask_node", answering({"timm/resnet18": broken}, []))
    execute.refuse_unknown_models(jobs_of("timm/resnet18"))


def test_the_node_process_answers_for_itself() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(RequestError, match="unknown torchvision model 'resnet81'; did you mean 'resnet18'"):
        execute.refuse_unknown_models(jobs_of("torchvision/resnet81"))

"""Machines to read facts from: recorded trees in a folder, and an NVML that answers from a file."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

REPLAY = Path(__file__).parents[3] / "replay" / "facts"


def write_tree(document: dict[str, Any], root: Path) -> Path:
    for name, content in document["files"].items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for name, target in document["links"].items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return root


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Path]:
    """A recorded machine's tree, by the name of its file."""

    def make(name: str) -> Path:
        return write_tree(json.loads((REPLAY / f"{name}.json").read_text()), tmp_path / name)

    return make


class FakeError(Exception):
    """What NVML raises."""


def thaw(answer: Any) -> Any:
    if isinstance(answer, dict) and "struct" in answer:
        return SimpleNamespace(**{name: thaw(value) for name, value in answer["struct"].items()})
    return [thaw(value) for value in answer] if isinstance(answer, list) else answer


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """A pynvml that answers as recorded, with changes; a change to None takes the function away."""

    def install(**changes: Any) -> dict[str, Any]:
        answers = copy.deepcopy(json.loads((REPLAY / "nvml_h200.json").read_text())["answers"]) | changes
        module = ModuleType("pynvml")

        def make(name: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                answer = answers[name]
                if callable(answer):
                    return answer(*arguments)
                if isinstance(answer, dict) and "error" in answer:
                    raise FakeError(answer["error"])
                return thaw(answer)

            return call

        for name, answer in answers.items():
            if answer is not None or name == "nvmlInit":
                setattr(module, name, make(name))
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return answers

    return install


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises

"""A user's own model file on the command line: a node process runs it and says what it states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony.launch.node import ask_node
from prony_node.contract.errors import RequestError
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file.config import from_document, is_model_file

__all__ = ["ModelFile", "find_model_file", "run_word"]


@dataclass(frozen=True)
class ModelFile:
    """What a node process said about the file."""

    workload: Workload
    plan: dict[str, Any]  # what a plan carries of it


def find_model_file(target: str, root: Path) -> ModelFile | None:
    """The model file that a word means, tried and described; None when it means no file."""
    if not is_model_file(target):
        return None
    path = Path(target).expanduser()
    if not path.is_file():
        why = "that is a folder" if path.is_dir() else "there is no such file"
        raise RequestError(f"{target} is not a model file: {why}")
    answer = ask_node("model", root, str(path.absolute()))
    if answer.get("refused"):
        raise RequestError(str(answer.pop("refused")))
    return ModelFile(from_document(answer["workload"]), {name: answer[name] for name in ("path", "sha256", "workload")})


def run_word(path: str) -> str:
    """The word by which `prony run` finds a model file from here."""
    below = Path(path).is_relative_to(Path.cwd())
    return f"./{Path(path).relative_to(Path.cwd())}" if below else path

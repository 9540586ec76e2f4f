"""A user's own model file on the command line: a node process runs it and says what it states."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony.cli.ask import ask_node
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file.config import from_document, is_model_file

__all__ = ["ModelFile", "find_model_file", "run_word"]


@dataclass(frozen=True)
class ModelFile:
    """What a node process said about the file."""

    workload: Workload
    plan: dict[str, Any]  # what a plan carries of it


def find_model_file(target: str) -> ModelFile | None:
    """The model file that a word means, tried and described; None when it means no file."""
    if not is_model_file(target):
        return None
    path = expand(target)
    why = _no_model_file(path)
    if why is not None:
        raise RequestError(f"{target} is not a model file: {why}")
    answer = ask_node("model", str(path.absolute()))
    if answer.get("refused"):
        raise RequestError(str(answer.pop("refused")))
    return ModelFile(from_document(answer["workload"]), {name: answer[name] for name in ("path", "sha256", "workload")})


def _no_model_file(path: Path) -> str | None:
    """What is wrong with a path, as far as its name and kind say."""
    try:
        kind = path.stat().st_mode
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return "there is no such file" if missing else f"it cannot be read: {error.strerror or error}"
    if stat.S_ISDIR(kind):
        return "that is a folder"
    if not stat.S_ISREG(kind):
        return "that is a device or a pipe"
    if path.suffix != ".py":
        return "its name does not end in .py, and a model file is Python code (docs/add-a-workload.md)"
    return None


def run_word(path: str) -> str:
    """The word by which `prony run` finds a model file from here."""
    below = Path(path).is_relative_to(Path.cwd())
    return f"./{Path(path).relative_to(Path.cwd())}" if below else path

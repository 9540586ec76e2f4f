"""Questions to a node process: what the machine is, and what a user's model file states."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony.engine.progress import Report, warner
from prony.sites import node
from prony.sites.site import Partition
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file_config import from_document, is_model_file


def ask_node(question: str, *words: str, report: Report) -> dict[str, Any]:
    """The answer of the node program to a question: `prony.sites.node.ask_node`."""
    return node.ask_node(question, *words, warn=warner(report))


def find_machine(device: str, report: Report, there: Partition | None = None) -> Machine:
    """The device that `device=` means. Of a partition the kind alone is known; None is this machine.

    A node process is asked, since we have no torch.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return Machine(kind)
    if there is not None:
        return Machine(_kind_of(there) if kind == "auto" else kind)
    answer = ask_node("devices", report=report)
    if not answer.get("kind"):
        raise RequestError(f"{answer.get('reason', 'torch finds no device')}; PRONY_PYTHON names a Python that can")
    memory_gib = dict(enumerate(answer.get("memory_gib") or []))
    if kind not in ("auto", answer["kind"]):  # the runs themselves will say it
        return Machine(kind)
    return Machine(str(answer["kind"]), memory_gib.get(int(number or 0)))


def _kind_of(partition: Partition) -> str:
    if not partition.accelerators:
        return "cpu"
    return "xpu" if partition.vendor == "intel" else "cuda"


@dataclass(frozen=True)
class ModelFileDescription:
    """What a node process said about the file."""

    workload: Workload
    plan: dict[str, Any]  # what a plan carries of it


def find_model_file(target: str, report: Report) -> ModelFileDescription | None:
    """The model file that a word means, tried and described; None when it means no file."""
    if not is_model_file(target):
        return None
    path = expand(target)
    why = _no_model_file(path)
    if why is not None:
        raise RequestError(f"{target} is not a model file: {why}")
    answer = ask_node("model", str(path.absolute()), report=report)
    if answer.get("refused"):
        raise RequestError(str(answer.pop("refused")))
    return ModelFileDescription(
        from_document(answer["workload"]), {name: answer[name] for name in ("path", "sha256", "workload")}
    )


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
        return "its name does not end in .py, and a model file is Python code (docs/how-to/own-model.md)"
    return None

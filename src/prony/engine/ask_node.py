"""Questions to a node process: what the machine is, and what a user's model file states."""

# ruff: noqa: RUF009  empty() makes dataclass fields

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from prony.engine.options import PlannedFile
from prony.engine.progress import Report, warner
from prony.sites import node
from prony.sites.site import Partition
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.typed import JsonObject, Malformed, decode, empty
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file_config import from_document, is_model_file

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class DevicesAnswer:
    """The devices that torch finds on this machine, or why it finds none."""

    kind: str | None = None
    devices: tuple[str, ...] | None = None
    memory_gib: tuple[float | None, ...] | None = None
    reason: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class NameAnswer:
    """Whether the node program refuses the name of a workload, and why."""

    refused: str | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class ModelFileAnswer:
    """What a user's model file states, or why it is refused."""

    refused: str | None = None
    path: str = ""
    sha256: str = ""
    workload: JsonObject = empty()
    more: JsonObject = empty()


def ask_node(question: str, *words: str, report: Report) -> JsonObject:
    """The answer of the node program to a question: `prony.sites.node.ask_node`."""
    return node.ask_node(question, *words, warn=warner(report))


def read_answer(kind: type[Kind], answer: JsonObject) -> Kind:
    """The answer, typed, or a RequestError that says what is wrong with it."""
    try:
        return decode(kind, answer)
    except Malformed as error:
        raise RequestError(f"the answer of the node program cannot be used: {error}") from None


def find_machine(device: str, report: Report, there: Partition | None = None) -> Machine:
    """The device that `device=` means. Of a partition the kind alone is known; None is this machine.

    A node process is asked, since we have no torch.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return Machine(kind)
    if there is not None:
        return Machine(_kind_of(there) if kind == "auto" else kind)
    here = read_answer(DevicesAnswer, ask_node("devices", report=report))
    if not here.kind:
        raise RequestError(f"{here.reason or 'torch finds no device'}; PRONY_PYTHON names a Python that can")
    memory_gib = dict(enumerate(here.memory_gib or ()))
    if kind not in ("auto", here.kind):  # the runs themselves will say it
        return Machine(kind)
    return Machine(here.kind, memory_gib.get(int(number or 0)))


def _kind_of(partition: Partition) -> str:
    if not partition.accelerators:
        return "cpu"
    return "xpu" if partition.vendor == "intel" else "cuda"


@dataclass(frozen=True)
class ModelFileDescription:
    """What a node process said about the file."""

    workload: Workload
    plan: PlannedFile


def find_model_file(target: str, report: Report) -> ModelFileDescription | None:
    """The model file that a word means, tried and described; None when it means no file."""
    if not is_model_file(target):
        return None
    path = expand(target)
    why = _no_model_file(path)
    if why is not None:
        raise RequestError(f"{target} is not a model file: {why}")
    answer = read_answer(ModelFileAnswer, ask_node("model", str(path.absolute()), report=report))
    if answer.refused:
        raise RequestError(answer.refused)
    return ModelFileDescription(
        from_document(dict(answer.workload)), PlannedFile(answer.path, answer.sha256, answer.workload)
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

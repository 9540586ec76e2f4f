"""What a user's own model file states, as it travels from a node process to the controller and in a plan; torch-free.

The controller never runs the file. Its content is part of the trial: the workload goes by the name that the file
states and the beginning of the content's hash, so that a changed file is another trial.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Setting
from prony_node.contract.trial import Plan
from prony_node.workloads.config import Workload

DIGITS = 8  # of the hash, in the workload's name


def is_model_file(target: str) -> bool:
    """Whether a word on the command line means a file: ./mymodel.py; a bare name is a workload's."""
    return target.endswith(".py") or target.startswith(("./", "../", "/", "~"))


def content_hash(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def name_with_hash(name: str, sha256: str) -> str:
    return f"{name}@{sha256[:DIGITS]}"


def to_document(workload: Workload) -> dict[str, Any]:
    """As plain as JSON has it; a model file has none of our kernels, whose conditions are functions."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(replace(workload, kernels=()))))
    return document


def from_document(document: dict[str, Any]) -> Workload:
    """The workload again; a RequestError when the document is not one of this Prony's."""
    try:
        settings = tuple(
            Setting(**{**setting, "choices": tuple(setting["choices"])}) for setting in document["settings"]
        )
        return Workload(**{**document, "settings": settings, "scores": tuple(document["scores"]), "kernels": ()})
    except (KeyError, TypeError) as error:
        raise RequestError(f"this is not what a model file states: {type(error).__name__} {error}") from error


def workload_of_file(plan: Plan) -> Workload:
    """The workload of a plan that carries what a model file states."""
    assert plan.file is not None
    workload = from_document(plan.file.get("workload") or {})
    if workload.name != plan.trial.workload:
        raise RequestError(f"the plan asks for {plan.trial.workload}, and its model file is {workload.name}")
    return workload

"""What can be run: what a node process answers, what this machine cannot do, names and paths that are not there."""

# ruff: noqa: RUF009  empty() makes dataclass fields

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from prony.engine.progress import Report, warner
from prony.engine.runs import PlannedFile, TrialRun
from prony.sites import node
from prony.sites.site import Partition
from prony.study.space import Planned, count_combinations
from prony.study.study import LOCAL, Study
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import SYNTHETIC_DATA, all_devices, devices_of_model, devices_per_node
from prony_node.contract.typed import JsonObject, Malformed, decode, empty
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file_config import from_document, is_model_file

PATHS = ("data", "weights", "vocab", "tokenizer")  # settings that name what must be there
BYTES_IN = {"train": 8, "infer": 2}  # a parameter's, at least: with its gradient in fp32; in 16 bits
MANY = 10_000  # combinations, which take longer to be made than the node to answer
KINDS = ("cpu", "cuda")  # when a trial is fine on both, the node need not be asked, which takes seconds

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


def planned_here(study: Study, report: Report) -> tuple[list[Planned], dict[str, str]]:
    """Every trial of a study, and which this machine cannot do. Of many, the node is asked while they are made."""
    if study.site != LOCAL:
        return study.planned(), {}
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(_ask, report) if count_combinations(study.parts) > MANY else None
        planned = study.planned()
        return planned, impossible_here(planned, report, asked.result if asked else None)


def impossible_here(
    planned: Iterable[Planned], report: Report, ask: Callable[[], DevicesAnswer] | None = None
) -> dict[str, str]:
    """Trial hash to the reason why it cannot be run here. The node is asked where the answer depends on it."""
    found: dict[str, str] = {}
    reasons: dict[Hashable, str | None] = {}
    node: DevicesAnswer | None = None
    for one in planned:
        if one.refused is not None:
            continue
        alike = _alike(one)
        if alike not in reasons:
            reasons[alike] = _needs_nodes(one)
            if reasons[alike] is None and _depends(one):
                node = node if node is not None else ask() if ask else _ask(report)
                reasons[alike] = _why_not(one, node) if node.kind else None
        why = reasons[alike]
        if why is not None:
            found[one.trial.hash] = why
    return found


def _alike(one: Planned) -> Hashable:
    """What trials have in common of which a machine does all or none: sizes do not count, but for how many devices."""
    return one.workload.name, tuple(
        (name, value if type(value) is not int or name in ("devices", "nodes") else value == 0)
        for name, value in one.trial.settings.items()
    )


def count_reasons(impossible: Mapping[str, str], shown: int = 10) -> list[str]:
    """Each reason with how many trials it takes, for a person."""
    counts: dict[str, int] = {}
    for why in impossible.values():
        counts[why] = counts.get(why, 0) + 1
    lines = [f"skipped: not possible on this machine ({count} of the trials): {why}" for why, count in counts.items()]
    return [*lines[:shown], *([f"and {len(lines) - shown} more reasons"] if len(lines) > shown else [])]


def _needs_nodes(one: Planned) -> str | None:
    """A run on several nodes is started on each of them; a study on one machine starts none elsewhere."""
    nodes = one.trial.settings.get("nodes", 1)
    if nodes == 1 or os.environ.get("PRONY_NODE_RANK"):
        return None
    return f"nodes={nodes} is started node by node, each with its PRONY_NODE_RANK: docs/how-to/parallel.md"


def _ask(report: Report) -> DevicesAnswer:
    try:
        return read_answer(DevicesAnswer, ask_node("devices", report=report))
    except RequestError:  # the runs themselves will say it
        return DevicesAnswer()


def _depends(one: Planned) -> bool:
    settings = one.trial.settings
    if settings.get("device", "auto") not in ("auto", "cpu"):
        return True
    if devices_per_node(settings) > 1 and settings.get("device") != "cpu":
        return True
    if _beyond_memory(one):  # on a CPU, if that is what there is
        return True
    kinds = ("cpu",) if settings.get("device") == "cpu" else KINDS
    return any(_refusal(one, kind) is not None for kind in kinds)


def _refusal(one: Planned, kind: str) -> str | None:
    try:
        one.workload.effective(one.trial.settings, Machine(kind, cores=os.cpu_count() or 1))
    except RequestError as error:
        return str(error)
    return None


def _why_not(one: Planned, node: DevicesAnswer) -> str | None:
    found, names = str(node.kind), node.devices or ()
    wished = str(one.trial.settings.get("device", "auto"))
    kind, _, number = wished.partition(":")
    kind = found if kind == "auto" else kind
    if kind not in (found, "cpu"):
        return f"device={wished} is not here: torch finds {found}"
    if kind == "cpu":
        return _refusal(one, kind) or _beyond_memory(one)
    if number and int(number) >= len(names):
        return f"device={wished} is not here: torch finds {len(names)} of {kind}"
    if devices_per_node(one.trial.settings) > len(names):
        count = all_devices(one.trial.settings)
        return f"devices={count} is not possible here: torch finds {len(names)} of {kind}"
    return _refusal(one, kind)


def _beyond_memory(one: Planned) -> str | None:
    """Whether weights and gradients alone do not fit this host, where each rank is a process on its CPU."""
    settings, parameters = one.trial.settings, one.workload.parameters
    if parameters is None or settings.get("size") == "tiny":
        return None
    copies = max(1, devices_per_node(settings) // devices_of_model(settings))
    least_bytes = parameters * BYTES_IN[str(settings.get("mode", one.workload.modes[0]))] * copies
    has_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if least_bytes <= has_bytes:
        return None
    need, has = (f"{amount / 2**30:,.0f} GiB" for amount in (least_bytes, has_bytes))
    return f"{one.workload.name} needs {need} of memory or more, and this host has {has}; size=tiny tries it out"


def refuse_unknown_models(runs: Iterable[TrialRun], report: Report) -> None:
    """Ask a node process about names that only a model library knows, so that a misspelt one starts nothing.

    Where it cannot tell (no torch, no such library), the run goes ahead, and its record says what is missing.
    """
    for name in dict.fromkeys(run.trial.workload for run in runs if run.file is None):
        if not find_workload(name).asks_node:
            continue
        try:
            answer = read_answer(NameAnswer, ask_node("workload", name, report=report))
        except RequestError:
            continue
        if answer.refused:
            raise RequestError(answer.refused)


def refuse_missing_paths(runs: Iterable[TrialRun]) -> None:
    """A file or folder that a setting names must be here, where the run will look for it."""
    for run in runs:
        for name in PATHS:
            value = str(run.trial.settings.get(name, ""))
            if value and value not in SYNTHETIC_DATA and not expand(value).exists():
                raise RequestError(f"{name}={value} is not possible: there is no such file or folder")

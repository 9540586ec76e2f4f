"""Loading a user's own model file in a node process; what is wrong with it is said with its line."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file_config import content_hash, name_with_hash

if TYPE_CHECKING:
    from prony_node.backends.torch.task import Task
    from prony_node.contract.settings import Value

MODULE = "prony_model_file"  # what Python calls it while it runs


@dataclass(frozen=True)
class ModelFile:
    """A file that was run, with what it defines."""

    workload: Workload  # under its name with the hash, its module being the file
    build: Callable[[Workload, dict[str, Value]], Task]
    source: bytes
    sha256: str


def load_model_file(path: Path) -> ModelFile:
    """Run the file; a RequestError says what is wrong with it and where."""
    path = path.absolute()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    with mistakes_in(path):
        content = _run(path, source)
    stated, build = content.get("WORKLOAD"), content.get("build")
    if not isinstance(stated, Workload):
        raise RequestError(f"{path.name} defines no WORKLOAD = Workload(...); docs/how-to/own-model.md has an example")
    if not callable(build):
        raise RequestError(f"{path.name} defines no build(workload, settings), which makes the Task")
    _check_stated(path, stated)
    sha256 = content_hash(source)
    workload = replace(stated, name=name_with_hash(stated.name, sha256), module=str(path))
    return ModelFile(workload, build, source, sha256)


def keep_model_file(workload: Workload, folder: Path) -> None:
    """A copy of the file in the run folder, which is complete in itself."""
    source = Path(workload.module).read_bytes()
    if not workload.name.endswith(name_with_hash("", content_hash(source))):
        raise RequestError(f"{workload.module} was changed while the run was being made of it")
    with files.open_bytes(folder / files.MODEL_FILE) as copy:
        copy.write(source)


def _run(path: Path, source: bytes) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # the compiler and pickled functions look here
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: a random.py beside the file must not shadow Python's
    exec(compile(source, str(path), "exec"), module.__dict__)
    return vars(module)


@contextmanager
def mistakes_in(path: Path) -> Iterator[None]:
    """What the file raises, as a sentence with the last of its own lines that led there."""
    try:
        yield
    except RequestError:
        raise
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""  # none where the file is no text at all
        raise RequestError(f"{path.name}{where}: this is not Python code: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path.name}, line {lines[-1]}" if lines else path.name
        said = " ".join(str(error).split())[:300]
        raise RequestError(f"{where}: {type(error).__name__}{': ' if said else ''}{said}") from error


def _check_stated(path: Path, stated: Workload) -> None:
    """What the table's own workloads are tested for."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", stated.name):
        raise RequestError(f"{path.name}: a workload's name is letters, digits, dots and dashes, not {stated.name!r}")
    if not stated.unit:
        raise RequestError(f"{path.name}: the workload has no unit; say what is counted, such as images or tokens")
    for mode in stated.modes:
        missing = [kind for kind in ("cpu", "accelerator") if f"{mode}/{kind}" not in stated.batch]
        if missing:
            raise RequestError(f"{path.name}: batch has no entry {mode}/{missing[0]}")
        if mode not in stated.memory_gib:
            raise RequestError(f"{path.name}: memory_gib has no entry {mode}")

"""Questions of the controller about this node: devices, fingerprints, workload names and model files."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from prony_node import facts
from prony_node.contract import files
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, RequestError
from prony_node.contract.facts import Provenance
from prony_node.contract.machine import Machine
from prony_node.contract.plugins import Plugin
from prony_node.contract.typed import JsonObject, encode
from prony_node.run.processes import SignalPipe, adopt_orphans, controller_is_gone, end_adopted, end_with_parent
from prony_node.workloads import find_workload, libraries_of, plugin_of
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file.config import content_hash, name_with_hash, to_document
from prony_node.workloads.model_file.load import ModelFile, load_model_file, mistakes_in


def check_name(name: str) -> dict[str, str | None]:
    """`refused`: a sentence when the name is wrong, else null; `unknown`: why it could not be told.

    A family whose names are a library's has a function `check(workload)` beside `build`.
    """
    try:
        workload = find_workload(name)
        check = getattr(importlib.import_module(workload.module), "check", None)
        if check is not None:
            check(workload)
    except RequestError as error:
        return {"refused": str(error), "unknown": None}
    except ImportError as error:  # the run will record it as a missing library
        return {"refused": None, "unknown": str(error)}
    return {"refused": None, "unknown": None}


def fingerprint_for(workload: str) -> Provenance:
    """Machine, software and its parts, as a run of this workload has them."""
    return facts.fingerprint(libraries=libraries_of(workload), plugin=_plugin_of(workload))


def fingerprints(workloads: list[str]) -> JsonObject:
    """Of this node, and the software's hash for each of these workloads: made once for each library and plug-in."""
    needs = {name: (libraries_of(name), _plugin_of(name)) for name in workloads}
    made = {need: facts.fingerprint(libraries=need[0], plugin=need[1]) for need in {((), None), *needs.values()}}
    return {**encode(made[(), None]), "workloads": {name: made[need].software for name, need in needs.items()}}


def _plugin_of(workload: str) -> Plugin | None:
    try:
        return plugin_of(workload)
    except RequestError:  # in two packages: the run is refused
        return None


def find_devices() -> JsonObject:
    """kind: cpu or the accelerator's (cuda, xpu, mps), with names and memory; null with a reason without torch."""
    try:
        import torch
    except ImportError as error:
        return {"kind": None, "devices": [], "reason": f"torch cannot be imported: {error}"}
    from prony_node.backends.torch.device import machine_of

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return {"kind": "cpu", "devices": ["cpu"], "torch": str(torch.__version__)}
    kind = str(accelerator.type)
    module = torch.get_device_module(kind)
    names = [
        str(module.get_device_name(index)) if hasattr(module, "get_device_name") else kind
        for index in range(torch.accelerator.device_count())
    ]
    memory_gib = [machine_of(torch.device(kind, index), cores=1).memory_gib for index in range(len(names))]
    return {"kind": kind, "devices": names, "memory_gib": memory_gib, "torch": str(torch.__version__)}


def describe_model_file(path: Path) -> JsonObject:
    """What a plan carries of the file, or `refused`: a sentence that says what is wrong with it."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the answer alone goes to stdout
            loaded = load_model_file(path)
            _try(loaded, path.absolute())
    except RequestError as error:
        return {"refused": str(error)}
    except ImportError as error:
        return {"refused": f"{path.name} cannot be tried here: {error}; PRONY_PYTHON names a Python that has torch"}
    return {
        "refused": None,
        "path": loaded.workload.module,
        "sha256": loaded.sha256,
        "workload": to_document(loaded.workload),
    }


def _try(loaded: ModelFile, path: Path) -> None:
    """Build it at its defaults without memory or arithmetic, and count, as the run itself will."""
    import torch

    from prony_node.backends.torch.flops import count_flops
    from prony_node.backends.torch.task import Task

    workload = loaded.workload
    with mistakes_in(path):
        settings = workload.effective({}, Machine("cuda" if workload.pinned else "cpu", None, 1))
        task = loaded.build(workload, settings)
        if not isinstance(task, Task):
            raise RequestError(f"{path.name}: build() answers a {type(task).__name__}, not a Task")
        if task.unit != workload.unit:
            raise RequestError(f"{path.name}: the task counts {task.unit!r} and the workload {workload.unit!r}")
        with torch.device("meta"):
            model = task.model()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        if workload.parameters is not None and parameters != workload.parameters:
            stated = f"states {workload.parameters:,} parameters"
            raise RequestError(f"{path.name} {stated}, and its model has {parameters:,}")
        for mode in workload.modes:
            count_flops(task, training=mode == "train", recompute=False)


def keep_model_file(workload: Workload, folder: Path) -> None:
    """A copy of the file in the run folder, which is complete in itself."""
    source = Path(workload.module).read_bytes()
    if not workload.name.endswith(name_with_hash("", content_hash(source))):
        raise RequestError(f"{workload.module} was changed while the run was being made of it")
    with files.open_bytes(folder / files.MODEL_FILE) as copy:
        copy.write(source)


LOOK_EVERY_S = 0.5  # whether the controller is there, where the kernel does not tell


def answer_on_lifeline(answer: Callable[[], int]) -> int:
    """The exit code of `answer`, which prints; 130 when it was ended before. No process is left behind."""
    end_with_parent(signal.SIGTERM)
    adopt_orphans()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _answer(answer, keeper)
    code = None
    with SignalPipe() as signals:
        while code is None and signals.interrupted_by is None and not controller_is_gone():
            ended, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            if code is None:
                signals.wait(LOOK_EVERY_S)
        end_adopted()
    return EXIT_INTERRUPTED if code is None else EXIT_FAILED if code < 0 else code


def _answer(answer: Callable[[], int], keeper: int) -> None:
    """In the child. Standard output is for the answer alone: nothing that is started from here can write to it."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    os.environ.pop("PRONY_CONTROLLER_PID", None)  # what is started from here has another parent
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = 1
    try:
        code = answer()
        sys.stdout.flush()
    except BaseException:  # SystemExit of a model file too
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # threads and children that somebody left are not waited for

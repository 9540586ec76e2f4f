"""A user's own model file, tried before anything is planned, and kept with the run that was made of it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file.config import content_hash, name_with_hash, to_document
from prony_node.workloads.model_file.load import ModelFile, load_model_file, mistakes_in


def describe_model_file(path: Path) -> dict[str, Any]:
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

    from prony_node.measure.flops import count_flops
    from prony_node.measure.protocol import Task

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

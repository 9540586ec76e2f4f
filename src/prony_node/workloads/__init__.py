"""The table of workloads. Nothing here, in config.py or in a family's *_config.py imports torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prony_node.contract import plugins
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.settings import devices_of_model
from prony_node.workloads.ceilings_config import CEILINGS
from prony_node.workloads.collective_config import COLLECTIVES
from prony_node.workloads.config import PUBLISHED as PUBLISHED
from prony_node.workloads.config import Workload, attention_order
from prony_node.workloads.detect_config import DETECT_WORKLOADS, DINO_WORKLOADS
from prony_node.workloads.image_config import IMAGE_LIBRARIES, IMAGE_WORKLOADS
from prony_node.workloads.language_config import LANGUAGE_LIBRARIES, LANGUAGE_WORKLOADS
from prony_node.workloads.model_file_config import workload_of_file
from prony_node.workloads.reconstruct_config import RECONSTRUCT_WORKLOADS
from prony_node.workloads.segment_config import SEGMENT_WORKLOADS

if TYPE_CHECKING:
    from prony_node.backends.torch.task import Task
    from prony_node.contract.settings import Value
    from prony_node.contract.trial import Plan

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        *IMAGE_WORKLOADS,
        *SEGMENT_WORKLOADS,
        *LANGUAGE_WORKLOADS,
        *RECONSTRUCT_WORKLOADS,
        *DETECT_WORKLOADS,
        *DINO_WORKLOADS,
        *CEILINGS,
        *COLLECTIVES,
    )
}

# Any model of these libraries is a workload: timm/NAME.
LIBRARIES: dict[str, Callable[[str], Workload]] = {**IMAGE_LIBRARIES, **LANGUAGE_LIBRARIES}


MODEL_LIBRARIES = ("timm", "transformers", "segmentation_models_pytorch")


def find_workload(name: str) -> Workload:
    """The workload of that name, Prony's own or of a plug-in; or an error that names the nearest."""
    library, slash, model = name.partition("/")
    if slash and library in LIBRARIES:
        return LIBRARIES[library](model)
    if name in WORKLOADS:
        return WORKLOADS[name]
    plugin = plugin_of(name)
    if plugin is None:
        more = plugins.of_group(plugins.WORKLOADS)
        raise unknown("workload", name, [*WORKLOADS, *more, *(f"{known}/{model}" for known in LIBRARIES if slash)])
    found = plugin.load()
    if not isinstance(found, Workload) or found.name != name:
        raise plugins.PluginError(f"{plugin.value} of the package {plugin.origin} is no Workload of the name {name}")
    return found


def plugin_of(name: str) -> plugins.Plugin | None:
    """The plug-in that adds this workload; None for Prony's own, for a library's, and for one that nobody has."""
    return None if name in WORKLOADS or "/" in name else plugins.in_packages(plugins.WORKLOADS, name)


def libraries_of(name: str) -> tuple[str, ...]:
    """What a workload imports besides torch; of a user's own file nobody knows, so any of them."""
    try:
        workload = find_workload(name)
    except RequestError:
        return MODEL_LIBRARIES
    return (workload.library,) if workload.library else ()


def workload_of(plan: Plan) -> Workload:
    """The workload that a plan asks for: of the table, or what a user's own model file states."""
    if plan.file is not None:
        return workload_of_file(plan)
    try:
        return find_workload(plan.trial.workload)
    except plugins.PluginError:
        raise
    except RequestError as error:  # whoever made the plan has it
        raise RequestError(f"{error}; the plug-in that adds it is not installed in {sys.executable}") from error


def build_task(workload: Workload, settings: dict[str, Value]) -> Task:
    """Import the family's code (and so torch and its model library), or run a user's own file, and build the task."""
    if workload.module.endswith(".py"):
        from prony_node.workloads.model_file import load_model_file

        loaded = load_model_file(Path(workload.module))
        if loaded.workload.name != workload.name:
            raise RequestError(f"{workload.module} was changed after the run was planned; start it again")
        return replace(loaded.build(workload, settings), attention_order=attention_order((), settings))
    module, _, function = workload.module.partition(":")
    task: Task = getattr(importlib.import_module(module), function or "build")(workload, settings)
    task = replace(task, attention_order=attention_order(workload.kernels, settings))
    if devices_of_model(settings) > 1:  # only then: torch's DTensor and pipelines take a while to import
        task = replace(task, split=importlib.import_module(workload.split_module).stages_of)
    return task

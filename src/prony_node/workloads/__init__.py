"""The table of workloads. Nothing here or in a family's config.py imports torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from prony_node.contract.errors import unknown
from prony_node.workloads.config import Workload
from prony_node.workloads.image.config import IMAGE_WORKLOADS
from prony_node.workloads.language.config import LANGUAGE_WORKLOADS

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.measure.protocol import Task

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in (*IMAGE_WORKLOADS, *LANGUAGE_WORKLOADS)}


def find_workload(name: str) -> Workload:
    """The workload of that name, or an error that names the nearest."""
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    return WORKLOADS[name]


def build_task(workload: Workload, settings: dict[str, Value]) -> Task:
    """Import the family's code (and so torch and its model library) and build the task."""
    module = importlib.import_module(workload.module)
    task: Task = module.build(workload, settings)
    return task

"""Whether this node knows the model that a workload's name stands for: only its library can tell."""

from __future__ import annotations

import importlib
from typing import Any

from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload


def check_name(name: str) -> dict[str, Any]:
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

"""The controller: plans, launches, stores, analyses and reports runs. It never imports torch.

`import prony` offers the functions of `prony.api`, loaded when one is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prony_node import __version__

if TYPE_CHECKING:
    from prony.api import (
        collect,
        compare,
        export_runs,
        import_runs,
        jobs,
        judge_screening,
        load,
        plan_study,
        run,
        run_study,
        scale,
        screen,
        show_study,
        study_status,
        sweep,
        tune,
        verify,
    )
    from prony.engine.runs import SiteOptions
    from prony_node.contract.errors import RequestError

__all__ = [
    "RequestError",
    "SiteOptions",
    "__version__",
    "collect",
    "compare",
    "export_runs",
    "import_runs",
    "jobs",
    "judge_screening",
    "load",
    "plan_study",
    "run",
    "run_study",
    "scale",
    "screen",
    "show_study",
    "study_status",
    "sweep",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from prony import api

    return getattr(api, name)

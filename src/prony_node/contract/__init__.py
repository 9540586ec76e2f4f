"""What the two programs agree on: settings, trial, plan, record, metrics and the files of a run folder.

The names below are imported when they are first used: `prony --help` needs the errors alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prony_node.contract.errors import NewerSchema, RequestError, nearest
    from prony_node.contract.metrics import METRICS
    from prony_node.contract.record import (
        RECORD_SCHEMA,
        Record,
        measured,
        missing,
        parse_record,
        read_record,
        validate_record,
    )
    from prony_node.contract.settings import SETTINGS, Setting
    from prony_node.contract.trial import Peak, Plan, Stop, Trial

__all__ = [
    "METRICS",
    "RECORD_SCHEMA",
    "SETTINGS",
    "NewerSchema",
    "Peak",
    "Plan",
    "Record",
    "RequestError",
    "Setting",
    "Stop",
    "Trial",
    "measured",
    "missing",
    "nearest",
    "parse_record",
    "read_record",
    "validate_record",
]

WHERE = {
    "errors": ("NewerSchema", "RequestError", "nearest"),
    "metrics": ("METRICS",),
    "record": (
        "RECORD_SCHEMA", "Record", "measured", "missing", "parse_record", "read_record", "validate_record",
    ),
    "settings": ("SETTINGS", "Setting"),
    "trial": ("Peak", "Plan", "Stop", "Trial"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in WHERE.items():
        if name in names:
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found  # asked for once
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What the two programs agree on: settings, trial, plan, record, metrics and the files of a run folder."""

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

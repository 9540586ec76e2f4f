"""What older records lack: each step states a rule as it was when the newer version came, and is never changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from prony_node.contract.settings import FORMER, join_kernels
from prony_node.contract.trial import settings_hash
from prony_node.contract.typed import LARGEST

FLOOR, FLOOR_WINDOW_S = 0.001, 10.0  # of the half width: as `prony_node.stats` has it since version 2
WIDEST = 1e6  # relative half width
RATES = ("throughput", "throughput_per_device", "bus_bandwidth", "algorithm_bandwidth")


def add_provenance_parts(old: dict[str, Any]) -> dict[str, Any]:
    """1 to 2: the software of the fingerprint has its parts by name. What an older record was made by is not known."""
    stated = old.get("fingerprint")
    return {**old, "fingerprint": {**stated, "parts": {}}} if isinstance(stated, dict) else dict(old)


def add_interval_floor(old: dict[str, Any]) -> dict[str, Any]:
    """1 to 2: no interval of the steady window is narrower than its length supports.

    Where the record has the floor already its intervals obey it, and it is left as it is. So is one with parts of
    another kind, which decoding names.
    """
    steady = old.get("steady")
    if not isinstance(steady, dict) or steady.get("half_width_floor") is not None:
        return old
    floor = _floor(steady.get("window_s"))
    if floor is None:
        return old
    parallel, metrics = old.get("parallel"), old.get("metrics")
    shared = _floor(parallel.get("window_s")) if isinstance(parallel, dict) else None
    if isinstance(metrics, dict):
        wider = {name: _widened(metrics[name], shared or floor) for name in RATES if name in metrics}
        if "step_time" in metrics:
            wider["step_time"] = _widened(metrics["step_time"], floor)
        metrics = {**metrics, **wider}
    stated = steady.get("relative_half_width")
    steady = {**steady, "half_width_floor": floor}
    if _is_number(stated):
        steady["relative_half_width"] = max(stated, floor)
    time_s, low_s, high_s = (steady.get(f"step_time{end}_s") for end in ("", "_low", "_high"))
    if _is_number(time_s) and _is_number(low_s) and _is_number(high_s):
        steady["step_time_low_s"] = min(low_s, time_s / (1.0 + floor))
        steady["step_time_high_s"] = max(high_s, time_s * (1.0 + floor))
    return {**old, "steady": steady, "metrics": metrics} if metrics is not None else {**old, "steady": steady}


GONE = {"compression": "none"}  # settings without a successor, with the value that says nothing
IN_TRAINING = ("assignment", "norms", "pooling", "suppression")  # these had no meaning in inference
IN_INFERENCE = ("blocks",)


def name_kernels(old: dict[str, Any]) -> dict[str, Any]:
    """2 to 3: one setting, `kernels`, says which implementations ran, where there were eleven settings.

    `compression` went; a record keeps it where it was other than none.
    """
    trial = old.get("trial")
    return {**old, "trial": trial_with_kernels(trial)} if isinstance(trial, dict) else old


def trial_with_kernels(trial: dict[str, Any]) -> dict[str, Any]:
    """The trial of a record. Who asked for one of the settings is taken to have asked for all that ran with it.

    Hashes follow where they were those of the settings. A value that no Prony of version 2 had stays as it is, and so
    do the settings of a user's own model file.
    """
    asked, effective = trial.get("settings"), trial.get("effective") or {}
    if trial.get("file") or not isinstance(asked, dict) or not isinstance(effective, dict):
        return trial
    mode = effective.get("mode", asked.get("mode", "train"))
    ran = _with_kernels(effective, mode)
    named = _with_kernels(asked, mode)
    if "kernels" in named and effective:
        named.pop("kernels")
        named |= {name: value for name, value in ran.items() if name == "kernels"}
    upgraded = dict(trial)
    if named != asked:
        upgraded |= {"settings": named, "hash": _hash(trial, "hash", asked, named)}
    if ran != effective:
        upgraded |= {"effective": ran, "effective_hash": _hash(trial, "effective_hash", effective, ran)}
    return upgraded


def _with_kernels(settings: Mapping[str, Any], mode: object) -> dict[str, Any]:
    former = {name: FORMER[name][value] for name, value in settings.items()
              if name in FORMER and isinstance(value, str) and value in FORMER[name]}  # fmt: skip
    elsewhere = IN_TRAINING if mode == "infer" else IN_INFERENCE
    there = [kernel for name, kernel in former.items() if name not in elsewhere]
    rest = {name: value for name, value in settings.items()
            if name not in former and (name not in GONE or GONE[name] != value)}  # fmt: skip
    return {**rest, "kernels": join_kernels(filter(None, there))} if there else rest


def _hash(trial: Mapping[str, Any], name: str, before: dict[str, Any], after: dict[str, Any]) -> Any:
    stated, workload = trial.get(name), str(trial.get("workload"))
    return settings_hash(workload, after) if stated == settings_hash(workload, before) else stated


def _floor(window_s: Any) -> float | None:
    """The narrowest relative half width for a window of this length; None where there is no length."""
    if not _is_number(window_s) or window_s <= 0.0:
        return None
    return min(WIDEST, FLOOR * math.sqrt(FLOOR_WINDOW_S / window_s))


def _widened(metric: Any, floor: float) -> Any:
    """The metric with an interval that reaches at least this far; it gets none where it has none."""
    if not isinstance(metric, dict):
        return metric
    value, low, high = (metric.get(name) for name in ("value", "low", "high"))
    if not (_is_number(value) and _is_number(low) and _is_number(high)) or value <= 0.0 or low > high:
        return metric
    return {**metric, "low": min(low, value / (1.0 + floor)), "high": max(high, value * (1.0 + floor))}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST

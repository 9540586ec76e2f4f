"""What a scaling series asks of a record: how many devices took part, with which batch, and how long each rank took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prony.analysis.settings import Record, settings_of
from prony.analysis.stated import count, number
from prony_node.contract.digits import is_digits
from prony_node.contract.parallel import all_devices, devices_per_node

NO_WAIT = ("device",)  # data that lies where it is used: nothing is waited for


def device_count(record: Record) -> int:
    """The devices that took part, as counted; as asked for where the run ended before it counted."""
    work = record.get("work")
    counted = count(work.get("devices")) if isinstance(work, dict) else None
    return counted or all_devices(_counts(record))


def node_count(record: Record) -> int:
    return _counts(record).get("nodes", 1)


def _counts(record: Record) -> dict[str, int]:
    """Devices and nodes as asked for, as far as they are numbers."""
    stated = settings_of(record)
    return {name: found for name in ("devices", "nodes") if (found := count(stated.get(name)))}


def is_free(record: Record) -> bool:
    """Whether it was the diagnostic in which gradients are not synchronised."""
    return settings_of(record).get("sync") in ("off", False)


def are_copies(record: Record) -> bool:
    """Whether its devices exchange nothing and wait for nobody."""
    return settings_of(record).get("parallel") == "independent"


def device_batch(record: Record) -> int | None:
    """Samples a step on one device."""
    settings = settings_of(record)
    batch, times = count(settings.get("batch_size")), count(settings.get("grad_accumulation")) or 1
    return None if batch is None else batch * times


def global_batch(record: Record) -> int | None:
    """Samples a step on all devices together."""
    stated = count(settings_of(record).get("global_batch"))
    batch = device_batch(record)
    if stated is not None or batch is None:
        return stated
    return batch * device_count(record)


def data_wait(record: Record) -> tuple[float | None, str]:
    """The share of the step spent waiting for data, or why it is not known."""
    metric = record["metrics"].get("data_wait_share") or {}
    share = number(metric.get("value"))
    if share is None and settings_of(record).get("data") in NO_WAIT:
        return 0.0, ""
    return share, str(metric.get("reason") or "the wait for data was not measured")


def cores_each(record: Record) -> str | None:
    """The cores of one rank: those asked for are shared out among the ranks of a node."""
    asked = record["trial"]["settings"].get("cores")
    if asked is None:
        stated = settings_of(record).get("cores")
        return None if stated is None else str(stated)
    ranks = max(1, devices_per_node(_counts(record)))
    if str(asked).endswith("%"):
        return f"{int(str(asked)[:-1]) / ranks:g}%"
    return str(max(1, _core_count(str(asked)) // ranks))


def _core_count(text: str) -> int:
    """`4` are four cores, `0-3,8` are five."""
    if is_digits(text):
        return int(text)
    ends = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def rank_paces(record: Record) -> dict[str, float]:
    """Seconds of a step of each rank by itself; empty unless the record states them for all of its ranks."""
    return _of_ranks(record, lambda rank: rank["pace"].get("seconds") if isinstance(rank.get("pace"), dict) else None)


def rank_step_times(record: Record) -> dict[str, float]:
    """Seconds of a step of each rank in the measured window; empty likewise."""
    return _of_ranks(record, lambda rank: rank.get("step_s"))


def _of_ranks(record: Record, get: Callable[[dict[str, Any]], Any]) -> dict[str, float]:
    ranks = _parallel(record).get("ranks")
    found: dict[str, float] = {}
    for rank in ranks if isinstance(ranks, list) else []:
        seconds = number(get(rank)) if isinstance(rank, dict) else None
        if seconds is None or seconds <= 0.0:
            return {}
        found[str(rank.get("rank"))] = seconds
    return found


def is_summed(record: Record) -> bool:
    """Whether its rate is the sum of what each rank did, and not that of the first one times their number."""
    return number(_parallel(record).get("window_s")) is not None


def _parallel(record: Record) -> Record:
    parallel = record.get("parallel")
    return parallel if isinstance(parallel, dict) else {}

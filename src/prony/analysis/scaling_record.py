"""What a scaling series asks of a record: how many devices took part, with which batch, and how long each rank took."""

from __future__ import annotations

from prony.analysis.settings import Record, settings_of
from prony.analysis.stated import count, number

NO_WAIT = ("device",)  # data that lies where it is used: nothing is waited for


def device_count(record: Record) -> int:
    """The devices that took part, as counted; as asked for where the run ended before it counted."""
    work = record.get("work")
    counted = count(work.get("devices")) if isinstance(work, dict) else None
    return counted or count(settings_of(record).get("devices")) or 1


def node_count(record: Record) -> int:
    return count(settings_of(record).get("nodes")) or 1


def is_free(record: Record) -> bool:
    """Whether it was the diagnostic in which gradients are not synchronised."""
    return settings_of(record).get("sync") in ("off", False)


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


def rank_step_times(record: Record) -> dict[str, float]:
    """The mean step time of each rank, in seconds; of those that the record states."""
    ranks = record.get("ranks")
    found: dict[str, float] = {}
    for position, rank in enumerate(ranks if isinstance(ranks, list) else []):
        time_s = number(rank.get("step_time_s")) if isinstance(rank, dict) else None
        if time_s is not None and time_s > 0.0:
            found[str(rank.get("rank", position))] = time_s
    return found

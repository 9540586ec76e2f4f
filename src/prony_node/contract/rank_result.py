"""What a rank found, typed: filled as the run goes on, and written once, as result.json."""

# ruff: noqa: RUF009  optional() and empty() make dataclass fields

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from prony_node.contract.record import Check, Failure, Metric, Phase, Plain, Status, Steady, WorkDone
from prony_node.contract.typed import JsonObject, empty, optional

Interval = tuple[float, ...]  # two instants on the monotonic clock


@dataclass(frozen=True)
class Findings:
    """Some metrics, checks and phases, found together."""

    metrics: Mapping[str, Metric] = empty()
    checks: tuple[Check, ...] = ()
    phases: Mapping[str, Phase] = empty()


@dataclass(frozen=True)
class EffectiveSettings:
    """The settings of a run as they took effect, as effective.json has them before the first step."""

    unit: str | None = None
    effective: Mapping[str, Plain] = empty()
    more: JsonObject = empty()


@dataclass(frozen=True)
class RankTimes:
    """When the first rank of a node did what, by its own clock; the boot says which machine's that is."""

    node: int
    rank: int
    host: str | None = None
    boot_id: str | None = None
    loop_monotonic: Interval | None = None
    window_monotonic: Interval | None = None
    training_monotonic: tuple[Interval, ...] | None = None
    device_from_monotonic: float | None = None
    more: JsonObject = empty()

    @property
    def node_name(self) -> str:
        """The node for a person."""
        return f"node {self.node} ({self.host})"


@dataclass(frozen=True)
class RankResult:
    """All that a rank knows of its run. A failure keeps what was known by then."""

    phases: Mapping[str, Phase] = empty()
    metrics: Mapping[str, Metric] = empty()
    checks: tuple[Check, ...] = ()
    unit: str | None = optional()
    effective: Mapping[str, Plain] | None = optional()
    effective_hash: str | None = optional()
    steady: Steady | None = optional()
    work: WorkDone | None = optional()
    learning: JsonObject | None = optional()
    data: JsonObject | None = optional()
    auto_batch: tuple[JsonObject, ...] | None = optional()
    parallel: JsonObject | None = optional()
    collective: JsonObject | None = optional()
    binding: tuple[JsonObject, ...] | None = optional()
    nodes: tuple[RankTimes, ...] | None = optional()  # when each node measured, by its own clock
    stop_reason: str | None = optional()
    series_period: int | None = optional()  # with the step series it makes the estimate again
    device_from_monotonic: float | None = optional()  # until here the device was not ours
    loop_monotonic: Interval | None = optional()
    window_monotonic: Interval | None = optional()
    training_monotonic: tuple[Interval, ...] | None = optional()
    memory_room: int | None = optional()  # bytes that the run might take
    memory_free: str | None = optional()  # before anything was allocated, in words
    memory_held: int | None = optional()
    status: Status | None = optional()
    failure: Failure | None = optional()
    imported: Mapping[str, str | None] | None = optional()  # versions of the libraries that the rank imported
    more: JsonObject = empty()

    @property
    def complete(self) -> bool:
        """Whether the rank measured all that was asked for."""
        return self.status == "ok"

    @property
    def window(self) -> tuple[float, float] | None:
        """The steady window on the rank's clock; None where there is none."""
        edges = self.window_monotonic
        return (edges[0], edges[1]) if edges is not None and len(edges) == 2 else None

    def with_findings(self, found: Findings) -> RankResult:
        """With these too. A metric, phase or check takes the place of an earlier one of its name."""
        return replace(
            self,
            metrics={**self.metrics, **found.metrics},
            phases={**self.phases, **found.phases},
            checks=(*without(self.checks, {check.name for check in found.checks}), *found.checks),
        )


def without(checks: Iterable[Check], names: set[str]) -> tuple[Check, ...]:
    """The checks of other names."""
    return tuple(check for check in checks if check.name not in names)

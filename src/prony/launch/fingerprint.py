"""What a finished run is compared with: the machine and the software that would run its trial now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True)
class ThisMachine:
    """Hashes of this machine and its software, as the node program states them before a run."""

    machine: str | None = None
    software: str | None = None
    by_workload: Mapping[str, str] = field(default_factory=dict)  # of the software, with the workload's own library

    def software_for(self, workload: str) -> str | None:
        return self.by_workload.get(workload, self.software)


def fingerprint_here(ask: Callable[..., dict[str, Any]], workloads: Iterable[str]) -> ThisMachine:
    """The fingerprint of this machine for these workloads; `ask` asks a node process (`ask_node`)."""
    answer = ask("fingerprint", *workloads)
    return ThisMachine(answer.get("machine"), answer.get("software"), answer.get("workloads") or {})

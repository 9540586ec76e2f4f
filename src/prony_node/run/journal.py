"""What is known of a run so far: the one thing in a rank that has state. A failure keeps what it holds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.record import Check, Metric, Phase
from prony_node.contract.run_folder import RankResult
from prony_node.contract.settings import Value
from prony_node.contract.trial import settings_hash
from prony_node.run.watchdog import Progress
from prony_node.workloads.config import Workload


class Journal:
    """Writes progress and effective settings to the run folder as they become known, and holds the result so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.progress = Progress(folder)
        self.result = RankResult()  # replaced by the next one, never changed

    def keep(self, **known: Any) -> None:
        """Fields of the result, by name."""
        self.result = replace(self.result, **known)

    def add(
        self,
        metrics: Mapping[str, Metric] | None = None,
        checks: tuple[Check, ...] = (),
        phases: Mapping[str, Phase] | None = None,
    ) -> None:
        """Metrics, checks and phases beside those that are there."""
        self.result = self.result.added(metrics, checks, phases)

    def keep_result(self, result: RankResult) -> None:
        """What was held before, and what a stage has found since."""
        self.result = result

    def keep_settings(self, workload: Workload, settings: dict[str, Value]) -> None:
        """Also in a file of its own, for the record of a run that ends before its result."""
        hashed = settings_hash(workload.name, settings)
        self.keep(effective=settings, effective_hash=hashed)
        files.write_whole(self.folder / files.EFFECTIVE, {"unit": workload.unit, "effective": settings})

    @contextmanager
    def phase(self, name: str, steps: int = 0) -> Iterator[None]:
        """Times a phase; one that is entered again goes on."""
        self.progress.phase(name)
        began = time.perf_counter()
        yield
        before = self.result.phases.get(name)
        seconds = (before.seconds or 0.0) if before else 0.0
        self.add(phases={name: Phase(seconds + time.perf_counter() - began, steps)})

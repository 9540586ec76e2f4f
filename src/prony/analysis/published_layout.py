"""A publication's table once it is filled: rows and columns, each figure with ours, the ratio and what differs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prony.analysis.published_differences import Gathered, gather
from prony.analysis.settings import Difference
from prony.catalog.published import FIELDS, Figure, TableSpec
from prony_node.contract.trial import Trial


@dataclass(frozen=True)
class Ours:
    """Our value: the median of the runs of one trial."""

    trial: Trial
    metric: str
    value: float | None
    unit: str | None = None  # where it is not the published one
    devices: int = 1
    runs: tuple[str, ...] = ()
    why: str | None = None  # there is no value
    half_width: float | None = None  # of the 95 % interval within one run, as a share
    doubts: tuple[str, ...] = ()  # checks of these runs that warn


@dataclass(frozen=True)
class Cell:
    """A published figure with what of ours stands beside it."""

    figure: Figure
    ours: Ours | None
    ratio: float | None = None
    kind: str | None = None  # of the ratio
    per_device: bool = False  # the ratio is of rates of one device
    why: str | None = None  # there is nothing of ours, or no ratio
    differs: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "published": {name: getattr(self.figure, name) for name in FIELDS},
            "ours": None if self.ours is None else self.ours.value,
            "unit": self.figure.unit if self.ours is None or self.ours.unit is None else self.ours.unit,
            "runs": [] if self.ours is None else list(self.ours.runs),
            "half_width": None if self.ours is None else self.ours.half_width,
            "doubts": [] if self.ours is None else list(self.ours.doubts),
            "ratio": self.ratio, "ratio_is": self.kind, "per_device": self.per_device, "reason": self.why,
            "differs": {one.name: {"published": one.a, "ours": one.b} for one in self.differs},
        }  # fmt: skip


@dataclass
class Row:
    key: tuple[str, ...]
    cells: dict[str, Cell] = field(default_factory=dict)  # by the name of the column
    ours: dict[str, Ours] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table as it is shown."""

    spec: TableSpec
    columns: tuple[str, ...]  # of published figures
    ours: tuple[str, ...]  # of ours
    rows: tuple[Row, ...]

    @property
    def has_ours(self) -> bool:
        return any(ours.value is not None for row in self.rows for ours in row.ours.values())

    def differs(self) -> list[Gathered]:
        return gather((cell.figure, cell.differs) for cell in self.cells() if cell.differs)

    def cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells.values()]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.spec.title, "figures": self.spec.figures or None, "note": self.spec.note or None,
            "cells": [cell.to_json() for cell in self.cells()],
            "ours_alone": [
                {"row": dict(zip(self.spec.rows, row.key, strict=True)), "metric": ours.metric, "ours": ours.value,
                 "runs": list(ours.runs), "half_width": ours.half_width, "doubts": list(ours.doubts),
                 "reason": ours.why}
                for row in self.rows if not row.cells for ours in row.ours.values()
            ],
        }  # fmt: skip

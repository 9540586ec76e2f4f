"""Tables, plots and pages for people. Importing this package draws in no plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prony.analysis.published_tables import Table
    from prony.report.build import ReportEntry
    from prony.report.published import Captioned, Conclusions
    from prony_node.contract.record import Record


def build_report(
    given: Sequence[Path | Record | ReportEntry],
    out: Path,
    tables: Sequence[Table] = (),
    plots: Sequence[Captioned] = (),
    conclusions: Sequence[Conclusions] = (),
    *,
    follow: bool = True,
) -> Path:
    """Write one self-contained HTML file about these runs to `out`, whole or not at all."""
    from prony.report.build import build_report as build

    return build(given, out, tables, plots, conclusions, follow=follow)


__all__ = ["build_report"]

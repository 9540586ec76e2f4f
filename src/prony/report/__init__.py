"""Tables, plots and pages for people. Importing this package draws in no plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prony.analysis.published_layout import Table


def build_report(
    folders_or_records: Sequence[Path | dict[str, Any]], out: Path, tables: Sequence[Table] = (), *, follow: bool = True
) -> Path:
    """Write one self-contained HTML file about these runs to `out`, whole or not at all."""
    from prony.report.build import build_report as build

    return build(folders_or_records, out, tables, follow=follow)


__all__ = ["build_report"]

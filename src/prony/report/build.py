"""One self-contained HTML file about some runs: nothing in it is loaded from anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from prony.analysis.settings import Record
from prony.report.page import COLUMNS, Entry, Page, page_of
from prony.report.series import read_series
from prony.report.sweep import sweeps
from prony_node.contract.errors import RequestError
from prony_node.contract.record import read_record, validate_record

OPEN_UP_TO = 6  # with more runs than this each is folded


def build_report(folders_or_records: Sequence[Path | Record], out: Path) -> Path:
    """Write the report about these runs to `out`, whole or not at all."""
    if not folders_or_records:
        raise RequestError("a report needs at least one run")
    entries = [_entry(given) for given in folders_or_records]
    entries.sort(key=lambda entry: (str(entry.record.get("started") or ""), entry.record["id"]))
    text = render(page_of(entries), entries)
    if not out.absolute().parent.is_dir():
        raise RequestError(f"{out.absolute().parent} is not a folder, so the report cannot be written there")
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RequestError(f"the report cannot be written to {out}: {error.strerror}") from error
    return out


def render(page: Page, entries: Sequence[Entry]) -> str:
    """The page with its plots."""
    from prony.report.plots import (  # a second to import, so only for a report
        series_svg,
        sweep_keys,
        sweep_svg,
    )

    # Markup: the plotting library has escaped every text in its SVG.
    for number, sweep in enumerate(sweeps([entry.record for entry in entries])):
        caption = f"{sweep.workload}: {sweep.unit} over {sweep.x_name}"
        svg = Markup(sweep_svg(sweep, f"sweep{number}"))
        shown = {"name": sweep.colour_name, "marks": sweep_keys(sweep)}
        page.sweeps.append({"caption": caption, "svg": svg, **shown})
    for number, (entry, run) in enumerate(zip(entries, page.runs, strict=True)):
        series = read_series(entry.folder, entry.record) if entry.folder else None
        if series is not None:
            run["plot"] = Markup(series_svg(series, f"run{number}"))
    environment = Environment(
        loader=PackageLoader("prony.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html")
    columns = [label for _, label in COLUMNS]
    return template.render(page=page, columns=columns, unfolded=len(page.runs) <= OPEN_UP_TO)


def _entry(given: Path | Record) -> Entry:
    if isinstance(given, dict):
        return Entry(validate_record(given))
    record = read_record(given)
    if record is None:
        raise RequestError(f"{given} has no readable record.json")
    return Entry(record, given)

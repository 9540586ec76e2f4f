"""Write tables, figures and claims of the shipped studies into docs/results/published-h200.md, from archives of runs.

    python scripts/studies_page.py [--results results/h200] [--page docs/results/published-h200.md]
                                   [--figures docs/results/figures] [--studies docs/how-to/published-studies.md]

RESULTS/studies-NAME.tar.gz holds the runs that `prony study run NAME --size quick` made on a device. What they give
goes between `<!-- NAME -->` and `<!-- /NAME -->` of PAGE; what is around it is written by hand. The page is short:

- A table needs a ratio of ours, on as many devices as published; else another table or a figure shows its runs.
- Rows and columns without ours are left out, and rows that repeat a run of one device beside several devices.
- What is not the same on both sides stands once per study.

The page names figures in `figures` beside it; with --figures they are drawn there, and those of a study that are drawn
no more are removed. With --studies, that page gets the question, tables and plots of each study, and the claims that
a publication's own numbers contradict.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from page_tables import put_lines, put_table

from prony.analysis.claims import UNTESTED, Judged, holds_rounded, judge
from prony.analysis.published_tables import Cell, Ours, StudyResults, Table, TableRow, gather, total
from prony.cli.figures import file_names
from prony.engine.progress import silent
from prony.engine.published import ShownStudy, show_study
from prony.report.drawing import require_plots
from prony.report.published import TITLE, Captioned, claim_lines, grid_lines, reasons, units, units_of_ours
from prony.store.archive import unpacked
from prony.study.study import Study
from prony.study.study_file import load_study, shipped_studies
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload

SIZE = "quick"
PREFIX, SUFFIX = "studies-", ".tar.gz"
CONTRADICTED = "contradicted"  # where these claims go
T = TypeVar("T")
SOME = 6  # values of what differs
SAID_ONCE = ("Bars are 95 % CIs", "Not the same", "Our time is", "Published in", "Not drawn in")  # of a caption


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/h200"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/published-h200.md"))
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--studies", type=Path)
    options = parser.parse_args(arguments)
    os.environ.pop("PRONY_STORE", None)  # these runs are no news to a team
    try:
        if options.figures:
            require_plots()
        for archive in sorted(options.results.glob(f"{PREFIX}*{SUFFIX}")):
            name = archive.name.removeprefix(PREFIX).removesuffix(SUFFIX)
            with (
                tempfile.TemporaryDirectory(prefix="prony-study-") as place,
                archive.open("rb") as file,
                unpacked(file, Path(place), str(archive)) as found,
            ):
                shown = show_study(load_study(name, SIZE, (), find_workload), found.folders[0].parent, silent)
            put_lines(options.page, name, lines_of(shown))
            if options.figures:
                draw(shown, options.figures)
        if options.studies:
            for name in shipped_studies():
                put_lines(options.studies, name, contents_of(load_study(name, None, (), find_workload)))
            put_table(options.studies, CONTRADICTED, ["study", "claim", "its own figures"], contradicted_rows())
    except (RequestError, OSError) as error:
        print(f"studies_page.py: {error}", file=sys.stderr)
        return 2
    return 0


def lines_of(shown: ShownStudy) -> list[str]:
    """The tables, figures and claims that have something of ours."""
    figures = figures_of(shown)
    tables = kept_tables(shown, figures.values())
    lines = [" ".join([f"Ours: {shown.machine()}.", *differences_of(shown)]), *not_run(shown)]
    for table in tables:
        notes = [*filter(None, [table.spec.note]), *reasons(table)]
        lines += ["", f"### {headed(table)}", "", *grid_lines(table), *([""] if notes else [])]
        lines += [f"- {line}" for line in notes]
    for name, one in figures.items():
        title, *caption = one.caption
        if shown.study.source:
            caption = [line for line in caption if str(shown.study.source) not in line]
        notes = [line for line in caption if shown.machine() not in line and not line.startswith(SAID_ONCE)]
        lines += ["", f"![{title}](figures/{name}.svg)", "", " ".join([f"**{title}**", *notes])]
    tested = [one for one in shown.claims if one.verdict != UNTESTED]
    if tested:
        lines += ["", f"### {TITLE}", *claim_lines(tested)[1:]]
    return [*lines, "", *left_out(shown, tables)]


# --- tables ---


def kept_tables(shown: ShownStudy, figures: Iterable[Captioned]) -> list[Table]:
    """The tables of the page, each with the rows and columns that it needs."""
    there = {one for figure in figures for one in figure.plot.trials}
    candidates = [table for table in shown.tables if any(cell.ratio is not None for cell in table.cells())]
    kept = [table for table in candidates if any(is_alike(cell) for cell in table.cells())]
    there |= {one for table in kept for one in values_of(table, table.rows)}
    for table in candidates:
        if table not in kept and not values_of(table, table.rows) <= there:
            kept.append(table)
            there |= values_of(table, table.rows)
    return [shortened(table) for table in shown.tables if table in kept]


def is_alike(cell: Cell) -> bool:
    """Whether its ratio is of as many devices on both sides."""
    return cell.ratio is not None and cell.ours is not None and cell.ours.devices == (cell.figure.devices or 1)


def values_of(table: Table, rows: Iterable[TableRow]) -> set[tuple[str, str]]:
    """The values of ours, each as the hash of its trial and its metric."""
    found = [one for row in rows for one in row.ours.values() if one.value is not None]
    return {(one.trial.hash, one.metric) for one in found if one.metric not in table.spec.no_ratio}


def shortened(table: Table) -> Table:
    """Without rows and columns that say nothing of ours."""
    alike = [row for row in table.rows if any(is_alike(cell) for cell in row.cells.values())]
    there = values_of(table, alike)
    rows = [row for row in table.rows if row in alike or values_of(table, [row]) - there]
    ours = [name for name in table.ours if any(has_value(row.ours.get(name)) for row in rows)]
    measured = {one.metric for row in rows for one in row.ours.values() if one.value is not None}
    compared = {cell.figure.metric for row in rows for cell in row.cells.values() if cell.ratio is not None}
    columns = []
    for name in table.columns:
        cells = [row.cells[name] for row in rows if name in row.cells]
        metrics = {cell.figure.metric for cell in cells}
        if any(cell.ratio is not None for cell in cells) or metrics & measured - compared:
            columns.append(name)
    return replace(
        table,
        columns=tuple(columns),
        ours=tuple(ours),
        rows=tuple(TableRow(row.key, chosen(row.cells, columns), chosen(row.ours, ours)) for row in rows),
    )


def has_value(ours: Ours | None) -> bool:
    return ours is not None and ours.value is not None


def chosen(of: dict[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in of.items() if name in names}


def headed(table: Table) -> str:
    """The title with the unit, where no head of a column says it."""
    words = units(table) if len(units(table)) == 1 and "/s" not in table.spec.title else []
    words += [f"ours in {unit}" for unit in units_of_ours(table)]
    return f"{table.spec.title} ({'; '.join(words)})" if words else table.spec.title


# --- what a reader needs besides ---


def differences_of(shown: ShownStudy) -> list[str]:
    """What is not the same on both sides, over all tables."""
    cells = [cell for table in shown.tables for cell in table.cells() if cell.differs]
    told = [
        f"{one.name} (published {some(one.published)}; ours {some(one.ours)})"
        for one in gather((cell.figure, cell.differs) for cell in cells)
    ]
    return [f"Not the same on both sides: {'; '.join(told)}."] if told else []


def some(values: Collection[str]) -> str:
    more = f" and {len(values) - SOME} more" if len(values) > SOME else ""
    return ", ".join(list(values)[:SOME]) + more


def not_run(shown: ShownStudy) -> list[str]:
    """The trials on one device that the archive lacks."""
    alone = [trial for trial in shown.known.trials if total(trial) == 1]
    missing = [trial for trial in alone if trial.hash not in shown.known.records]
    if not missing:
        return []
    same = {pair for pair in alone[0].settings.items() if all(pair in trial.settings.items() for trial in alone)}
    told = []
    for trial in missing:
        words = [f"{name}={value}" for name, value in trial.settings.items() if (name, value) not in same]
        told.append(f"`{' '.join([trial.workload, *words])}`")
    return [
        "",
        f"Not in the archive, of today's {len(alone)} trials on one device: {', '.join(told)}.",
    ]


def figures_of(shown: ShownStudy) -> dict[str, Captioned]:
    """The plots with something of ours, by the names that `prony figures` gives them."""
    drawn = [one for one in shown.plots if one.plot.panels]
    names = file_names([one.plot.spec.title for one in drawn], shown.study.name)
    return {name: one for name, one in zip(names, drawn, strict=True) if one.plot.has_ours}


def left_out(shown: ShownStudy, tables: Iterable[Table]) -> list[str]:
    untested = sum(one.verdict == UNTESTED for one in shown.claims)
    titles = {table.spec.title for table in tables}
    absent = [table.spec.title for table in shown.tables if table.spec.title not in titles]
    found = [f"{untested} more claims cannot be tested with these runs."] if untested else []
    tables_have = "1 table has" if len(absent) == 1 else f"{len(absent)} tables have"
    found += [f"{tables_have} no ratio of ours, or runs that are shown above."] if absent else []
    return [*found, f"`prony study show {shown.study.name}` prints them all."] if found else []


def draw(shown: ShownStudy, folder: Path) -> None:
    """The figures of the page; those of the study that it has no more are removed."""
    from prony.report.published_plots import plot_file

    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_of(shown)
    for path in folder.glob(f"{shown.study.name}-*.svg"):
        if path.stem not in figures:
            path.unlink()
    for name, one in figures.items():
        (folder / f"{name}.svg").write_bytes(plot_file(one, "svg"))
        print(folder / f"{name}.svg")


# --- claims that need no run to be doubted ---


def contents_of(study: Study) -> list[str]:
    """The question of a study, its tables, each title once with its quantities, and its plots."""
    kinds: dict[str, list[str]] = {}
    for spec in study.tables:
        title, _, kind = spec.title.partition(": ")
        kinds.setdefault(title, []).append(kind)
    tables = [f"- {title}: {'; '.join(found)}" if any(found) else f"- {title}" for title, found in kinds.items()]
    plots = [f"- {spec.title}" for spec in study.plots]
    return ["", study.question, "", "Tables:", "", *tables, "", "Plots:", "", *plots, ""]


def contradicted_rows() -> list[list[str]]:
    """The claims of all studies that do not fit the publication's own figures."""
    rows = []
    for name in shipped_studies():
        for one in judge(load_study(name, None, (), find_workload).claims, StudyResults([], {})):
            if one.contradicted is not None:
                says = re.sub(r" \([^()]*\)$", "", one.claim.says)
                rows.append([name, f"{says} ({one.claim.place})", own_figures(one)])
    return rows


def own_figures(one: Judged) -> str:
    """The values of the claim's expression that contradict it, beside its bound or its number."""
    values = [value.value for value in one.own if value.value is not None]
    outside = [value for value in values if not holds_rounded(one.claim, value)]
    bound = f", claimed {one.claim.tested}" if outside else f", claimed {one.claim.published:g}"
    low, high = (f"{end:.3g}" for end in (min(outside or values), max(outside or values)))
    return (low if low == high else f"{low} to {high}") + bound


if __name__ == "__main__":
    sys.exit(main())

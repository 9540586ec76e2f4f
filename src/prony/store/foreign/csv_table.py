"""A CSV file of figures: one figure a row (columns metric, value, unit), or one a column named by --map."""

from __future__ import annotations

import csv
import io
import re

from prony.store.anchors import FIELDS, Anchor
from prony.store.foreign import MOST_ROWS, ImportOptions, number_of
from prony.store.tabular import without_mark
from prony_node.contract.errors import RequestError, nearest, unknown

LARGEST_CELL = 2**20
DOUBTFUL = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")  # beside semicolons, where a comma often stands for the point


def parse(text: str, given: ImportOptions) -> list[Anchor]:
    """The figures of a table. A column maps to a field, or, as value:METRIC or value:METRIC:UNIT, to a figure."""
    rows = split_rows(text)
    if len(rows) < 2:
        raise RequestError("a table needs a line of column names and a line of values")
    return read_rows(rows[0], rows[1:], given, "csv", doubt_commas=_mark(text) == ";")


def split_rows(text: str) -> list[list[str]]:
    """The cells of a table separated by commas, semicolons or tabulators; empty lines are left out."""
    csv.field_size_limit(LARGEST_CELL)
    try:
        rows = list(csv.reader(io.StringIO(text.replace("\0", ""), newline=""), delimiter=_mark(text)))
    except csv.Error as error:
        raise RequestError(f"it is no CSV file ({error})") from None
    rows = [[without_mark(cell.strip()) for cell in row] for row in rows if any(cell.strip() for cell in row)]
    if len(rows) > MOST_ROWS:
        raise RequestError(f"it has {len(rows):,} lines, and may have {MOST_ROWS:,}")
    return rows


def read_rows(
    header: list[str], rows: list[list[str]], given: ImportOptions, form: str, doubt_commas: bool = False
) -> list[Anchor]:
    """The figures of a table's rows; a column that nobody mapped and that is no field goes along as it is."""
    meaning = _meaning(header, given)
    figures = {column: field for column, field in meaning.items() if field.startswith("value")}
    if not figures:
        guess = nearest("value", header)
        hint = f"; perhaps --map '{guess}=value:throughput'" if guess else ""
        raise RequestError(f"no column holds a figure: the columns are {', '.join(header)[:300]}{hint}")
    anchors = []
    for number, cells in enumerate(rows, start=1):
        if any(cells[len(header) :]):
            raise RequestError(
                f"row {number} has {len(cells)} cells under {len(header)} names; quote a cell with commas"
            )
        row = dict(zip(header, cells, strict=False))
        found: dict[str, str | None] = {"position": f"row {number}"}
        found |= {field: row[column] for column, field in meaning.items() if column not in figures and row.get(column)}
        more = {column: value for column, value in row.items() if column not in meaning}
        for column, field in figures.items():
            if doubt_commas and DOUBTFUL.fullmatch(row.get(column) or ""):
                raise RequestError(f"{row[column]!r} in row {number} may mean thousands or a fraction; write a point")
            if number_of(row.get(column)) is not None:  # a gap in the table is no figure
                anchors.append(given.anchor(form, found | _figure(field, row[column], column), more))
    return anchors


def _meaning(header: list[str], given: ImportOptions) -> dict[str, str]:
    for column in given.columns:
        if column not in header:
            raise unknown("column", column, header)
    meaning = {column: column for column in header if column in FIELDS} | given.columns
    twice = next((column for column in meaning if header.count(column) > 1), None)
    if twice is not None:
        raise RequestError(f"two columns have the name {twice!r}, so what it holds cannot be said")
    return meaning


def _figure(field: str, cell: str, column: str) -> dict[str, str | None]:
    """The value of a cell, with metric and unit as the mapping names them, else as the heading does."""
    _, _, rest = field.partition(":")
    metric, _, unit = rest.partition(":")
    if not metric:
        return {"value": cell} if column == "value" else {"value": cell, **_from_heading(column)}
    return {"value": cell, "metric": metric, "unit": unit or _from_heading(column).get("unit")}


def _from_heading(column: str) -> dict[str, str]:
    """A heading such as `throughput[images/s]` names its unit."""
    name, bracket, unit = column.partition("[")
    return {"metric": name.strip(), "unit": unit.rstrip("] ").strip()} if bracket else {"metric": column}


def _mark(text: str) -> str:
    """Comma, semicolon or tabulator: whichever the line of names has most of."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=first.count)

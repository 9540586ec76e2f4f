"""A result table of JUBE: in the style csv, or in the style pretty, which stands between bars under its name."""

from __future__ import annotations

import re

from prony.store.anchors import Anchor
from prony.store.foreign import ImportOptions, csv_table, number_of
from prony_node.contract.errors import RequestError

FORM = "jube"
_RULE = re.compile(r"\s*\|?[-+|: ]*-{2,}[-+|: ]*\|?\s*")  # |-----|-----| of JUBE 2.4 and newer, -----+----- before
GAPS = ("", "-", "nan", "none", "n/a", "na")  # what stands where a run gave no figure
# Headings that tables of JUBE use for what an anchor has a field for.
USUAL = {
    "system": "system", "platform": "system", "accelerator": "device", "gpu": "device", "model": "workload",
    "workload": "workload", "precision": "precision", "devices": "devices", "gpus": "devices", "num_gpus": "devices",
    "global_batch_size": "batch_size", "batch_size": "batch_size", "dataset": "data",
}  # fmt: skip


def parse(text: str, given: ImportOptions) -> list[Anchor]:
    """The figures of the first table in the text; columns of numbers that are no field are figures of their name."""
    header, rows = _pretty(text) or _separated(text)
    if not header or not rows:
        raise RequestError("there is no table of JUBE in it: neither bars (pretty) nor separated values (csv)")
    mapping = {column: _usual(column) for column in header if _usual(column)}
    mapping |= given.columns
    if not any(field.startswith("value") for field in mapping.values()):
        taken = set(mapping)
        mapping |= {column: "value" for column in header if column not in taken and _is_figure(column, header, rows)}
    return csv_table.read_rows(header, rows, ImportOptions(given.source, mapping, given.fixed), FORM)


def _usual(column: str) -> str:
    return USUAL.get(column.partition("[")[0].strip().lower().replace(" ", "_"), "")


def _is_figure(column: str, header: list[str], rows: list[list[str]]) -> bool:
    """Whether a column can be a measurement: a unit in its heading, or numbers of which one has a fraction."""
    position = header.index(column)
    cells = [row[position] for row in rows if position < len(row) and row[position].lower() not in GAPS]
    if not cells or any(number_of(cell) is None for cell in cells):
        return False
    return "[" in column or any("." in cell for cell in cells)


def _pretty(text: str) -> tuple[list[str], list[list[str]]] | None:
    """Lines between bars: names, a rule, values. A cell that was wrapped goes on in the next line."""
    lines = text.splitlines()
    rule = next((n for n, line in enumerate(lines) if n and _RULE.fullmatch(line) and "|" in lines[n - 1]), None)
    if rule is None:
        return None
    header = _cells(lines[rule - 1])
    rows: list[list[str]] = []
    for line in lines[rule + 1 :]:
        if "|" not in line:
            break
        cells = _cells(line)
        if len(cells) != len(header):
            raise RequestError(f"the row {line.strip()[:80]!r} has {len(cells)} cells under {len(header)} names")
        if rows and not cells[0] and sum(map(bool, cells)) < len(cells):
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
    return header, rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _separated(text: str) -> tuple[list[str], list[list[str]]]:
    """The style csv, under which `jube result` may print the table's name and a colon."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and re.fullmatch(r"[\w .-]+:\s*", lines[0]):
        lines = lines[1:]
    if len(lines) < 2 or not any(mark in lines[0] for mark in ",;\t"):
        return [], []
    rows = csv_table.split_rows("\n".join(lines))
    return rows[0], rows[1:]

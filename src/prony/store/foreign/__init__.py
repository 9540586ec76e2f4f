"""Results that other programs wrote, read as anchors: one format a file, and a table of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prony.store.anchors import Anchor
from prony.store.foreign import csv_table, jube, milabench, mlperf, optimum
from prony.store.foreign.reading import ImportOptions, read_results
from prony_node.contract.errors import RequestError, unknown

# The name that --as takes, the parser, and what it reads.
FORMATS: dict[str, tuple[Callable[[str, ImportOptions], list[Anchor]], str]] = {
    "csv": (csv_table.parse, "a CSV file, with --map COLUMN=FIELD for its columns"),
    "jube": (jube.parse, "a result table of JUBE: its CSV, or the table that it prints"),
    "mlperf": (mlperf.parse, "a log of MLPerf Training: its :::MLLOG lines"),
    "milabench": (milabench.parse, "a report of milabench, as text or as its JSON summary"),
    "optimum": (optimum.parse, "a benchmark report of optimum-benchmark (JSON)"),
}


def read_foreign(path: Path, form: str, given: ImportOptions) -> list[Anchor]:
    """The anchors of a file in a format of someone else; refused where it holds none."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if not given.source.strip():
        raise RequestError("an anchor needs its source: --source 'paper, page or log that a reader can look up'")
    text = read_results(path)
    try:
        found = FORMATS[form][0](text, given)
    except RecursionError:
        raise RequestError(f"{path} is nested too deeply to be {FORMATS[form][1]}") from None
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None
    if not found:
        raise RequestError(f"{path} holds no figure that could be read as {FORMATS[form][1]}")
    return found

"""Results that other programs wrote, read as anchors: one format a file, and a table of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prony.store.anchors import Anchor
from prony.store.foreign.reading import ImportOptions, read_results
from prony_node.contract import plugins
from prony_node.contract.errors import RequestError

ForeignParser = Callable[[str, ImportOptions], list[Anchor]]

# The name that --as takes, the parser, and what it reads.
FORMATS = plugins.own(
    plugins.FORMATS,
    ("csv", "prony.store.foreign.csv_table:parse", "a CSV file, with --map COLUMN=FIELD for its columns"),
    ("jube", "prony.store.foreign.jube:parse", "a result table of JUBE: its CSV, or the table that it prints"),
    ("mlperf", "prony.store.foreign.mlperf:parse", "a log of MLPerf Training: its :::MLLOG lines"),
    ("milabench", "prony.store.foreign.milabench:parse", "a report of milabench, as text or as its JSON summary"),
    ("optimum", "prony.store.foreign.optimum:parse", "a benchmark report of optimum-benchmark (JSON)"),
)


def read_foreign(path: Path, form: str, given: ImportOptions) -> list[Anchor]:
    """The anchors of a file in a format of someone else; refused where it holds none."""
    chosen = plugins.find(plugins.FORMATS, form, FORMATS)
    if not given.source.strip():
        raise RequestError("an anchor needs its source: --source 'paper, page or log that a reader can look up'")
    text = read_results(path)
    parse: ForeignParser = chosen.load()
    what = chosen.help or f"{form}, as the package {chosen.origin} reads it"
    try:
        found = parse(text, given)
    except RecursionError:
        raise RequestError(f"{path} is nested too deeply to be {what}") from None
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None
    if not found:
        raise RequestError(f"{path} holds no figure that could be read as {what}")
    return found

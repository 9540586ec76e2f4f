"""Results that other programs wrote, read as anchors: one format a file, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony.store.anchors import FIELDS, Anchor, FoundValues, make_anchor, number_in
from prony_node.contract import files, plugins
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.safe_files import READ_LIMIT

# What the parsers of others' results share: the file's text, its tables, and what the person says beside it.


LARGEST = READ_LIMIT  # bytes of a file of results
MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class ImportOptions:
    """What the file does not say: its source, what its columns mean, and fields that hold for all of it."""

    source: str
    columns: dict[str, str] = field(default_factory=dict)  # a column's name to the field it holds
    fixed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.columns.values(), *self.fixed):
            if name.partition(":")[0] not in FIELDS:
                raise unknown("field of an anchor", name, FIELDS)

    def anchor(self, form: str, found: FoundValues, more: Mapping[str, object] | None = None) -> Anchor:
        """An anchor of what the file says; what the person says fills what it leaves out, and wins over it."""
        return make_anchor(self.source, form, {**found, **self.fixed}, more)


def read_results(path: Path) -> str:
    """The text of a file, when it is one and of a size that results have."""
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{path} is no regular file")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise RequestError(f"{path} has more than the {LARGEST:,} bytes that a file of results may have")
        return content.decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise RequestError(f"{path} could not be read: {error.strerror}") from None


def read_document(text: str) -> Any:
    """JSON, as others write it: NaN is no number, and is left out where it stands."""
    try:
        return json.loads(files.bounded_json(text.encode()), parse_constant=lambda _: None)
    except ValueError as error:
        raise RequestError(f"it is no JSON ({error})") from None


def number_of(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = number_in(value.rstrip("% ")) if isinstance(value, str) else float(value)
    except OverflowError:
        return None
    return number if number is not None and abs(number) < float("inf") else None


def count_of(value: Any) -> int | None:
    number = number_of(value)
    whole = number is not None and number == int(number) and 0 <= number < 10**12
    return int(number) if whole and number is not None else None


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

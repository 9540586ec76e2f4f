"""Anchors: figures that others published, each with its source. They lie in files under the root, and are indexed."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.safe_files import write_alone
from prony_node.contract.typed import JsonObject

if TYPE_CHECKING:
    from sqlalchemy import Connection

FOLDER = "anchors"  # beside the run folders: what a rebuild reads anchors from
SCHEMA = "prony.anchors/1"
ANCHORS_A_FILE = 10_000  # so that a file can be read back, whose size is limited
TEXTS = ("position", "workload", "mode", "data", "system", "device", "precision", "metric", "unit", "note")
COUNTS = ("devices", "batch_size")
FIELDS = (*TEXTS, *COUNTS, "value")
LONGEST = 2000  # characters of any text
MOST_COUNT = 10**12
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Anchor:
    """One published figure."""

    source: str  # a paper, a page, a log: what a reader could look up
    format: str  # what it was read from
    metric: str
    value: float
    unit: str | None = None
    position: str | None = None  # where in the source: a table, a line
    workload: str | None = None
    mode: str | None = None
    data: str | None = None
    system: str | None = None
    device: str | None = None
    devices: int | None = None
    precision: str | None = None
    batch_size: int | None = None
    note: str | None = None
    more: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Of everything it says: the same figure from the same place has the same."""
        return hashlib.sha256(files.canonical_json(asdict(self)).encode()).hexdigest()[:32]


FoundValues = Mapping[str, object]  # what a parser found, by the fields of an anchor; its values are checked here


def make_anchor(source: str, form: str, values: FoundValues, more: Mapping[str, object] | None = None) -> Anchor:
    """An anchor of what a parser found: texts cut to size, counts whole, the value a finite number."""
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    number: float | None = None
    for name, value in values.items():
        if value is None or value == "":
            continue
        if name in COUNTS:
            counts[name] = _count(name, value)
        elif name == "value":
            number = _number(value)
        elif name in TEXTS:
            texts[name] = _text(value)
        else:
            raise RequestError(f"an anchor has no field {name!r}; it has {', '.join(FIELDS)}")
    if "metric" not in texts:
        raise RequestError("an anchor without a metric is none")
    if number is None:
        raise RequestError("an anchor without a value is none")
    return Anchor(
        source=_text(source),
        format=form,
        metric=texts["metric"],
        value=number,
        unit=texts.get("unit"),
        position=texts.get("position"),
        workload=texts.get("workload"),
        mode=texts.get("mode"),
        data=texts.get("data"),
        system=texts.get("system"),
        device=texts.get("device"),
        devices=counts.get("devices"),
        precision=texts.get("precision"),
        batch_size=counts.get("batch_size"),
        note=texts.get("note"),
        more={_text(name): _text(value) for name, value in (more or {}).items() if value not in (None, "")},
    )


def keep_anchors(root: Path, anchors: Iterable[Anchor]) -> list[Anchor]:
    """Write anchors to a file under the root, named by its content; those that were not there yet."""
    known = {anchor.key for anchor in read_anchors(root)}
    new = list({anchor.key: anchor for anchor in anchors if anchor.key not in known}.values())
    if not new:
        return []
    files.make_common_folder(root / FOLDER)
    for start in range(0, len(new), ANCHORS_A_FILE):
        document = {"schema": SCHEMA, "anchors": [asdict(anchor) for anchor in new[start : start + ANCHORS_A_FILE]]}
        name = hashlib.sha256(files.canonical_json(document).encode()).hexdigest()[:16]
        write_alone(root / FOLDER / f"{name}.json", files.to_json(document).encode())
    return new


def read_anchors(root: Path) -> list[Anchor]:
    """Every anchor kept under a root; a file that is not whole is left out."""
    found: dict[str, Anchor] = {}
    for path in sorted((root / FOLDER).glob("*.json")):
        document = files.read_json(path)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            continue
        try:
            read = [_read_anchor(anchor) for anchor in document["anchors"]]
        except (RequestError, LookupError, TypeError, ValueError):
            continue
        found |= {anchor.key: anchor for anchor in read}
    return list(found.values())


def _read_anchor(document: JsonObject) -> Anchor:
    """An anchor as it was kept, held to the same rules: the file may be another's, or have been edited."""
    values = {name: document[name] for name in FIELDS}
    return make_anchor(document["source"], _text(document["format"]), values, dict(document["more"]))


def put_anchors(connection: Connection, anchors: Iterable[Anchor]) -> None:
    """Anchors into their table; those that are there already stay as they are."""
    from prony.store.tables import anchor_table, put_rows

    rows = [asdict(anchor) | {"key": anchor.key, "more": json.dumps(anchor.more)} for anchor in anchors]
    rows.sort(key=itemgetter("key"))  # two that put the same ones in must not wait for each other
    put_rows(connection, anchor_table, rows, replace=False)


def _text(value: object) -> str:
    text = "".join(character if character.isprintable() else " " for character in str(value))
    return text.strip()[:LONGEST].strip().encode("utf-8", "replace").decode("utf-8")


def number_in(text: str) -> float | None:
    """The number that a text is: 2310.5, 12,345.6 with its thousands, or 2310,5 with a decimal comma."""
    text = text.strip()
    if GROUPED.fullmatch(text):
        text = text.replace(",", "")
    elif DECIMAL_COMMA.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None


def _number(value: object) -> float:
    number = None
    try:
        if isinstance(value, str):
            number = number_in(value)
        elif isinstance(value, SupportsFloat):
            number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise RequestError(f"{str(value)[:60]!r} is no number")
    if not math.isfinite(number):
        raise RequestError(f"{str(value)[:60]!r} is no finite number")
    return number


def _count(name: str, value: object) -> int:
    try:
        number = _number(value)
    except RequestError:
        number = math.nan
    if not (0 <= number < MOST_COUNT) or number != int(number):
        raise RequestError(f"{name} is a whole number, not {str(value)[:60]!r}")
    return int(number)

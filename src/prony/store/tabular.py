"""Records as rows of a file, each with the whole record: JSON lines, CSV and Parquet."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from prony.store.rows import NO_NUMBER, ColumnValue, row_of_record
from prony_node.contract.errors import RequestError
from prony_node.contract.files import make_folders, open_temporary, temporary_name
from prony_node.contract.plugins import install_command
from prony_node.contract.record import parse_record
from prony_node.contract.safe_files import MOST_TIMES, READ_LIMIT, most_unpacked
from prony_node.contract.typed import JsonObject

LONGEST_CELL = READ_LIMIT  # characters of one record
PARQUET_ROWS = 1000  # records in memory at a time
PARQUET_GROUP = 2**30  # bytes of the records that were written together, unpacked
NOT_OF_THE_RUN = ("folder", "place", "row_version", "stamp")  # columns that speak of where and how it was indexed
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # what a formula begins with, the full-width signs too
# Where a spreadsheet that separates cells by semicolons or tabs begins another cell within one of ours.
LINES, APOSTROPHE = tuple("\t\r\n"), "'"
INNER = re.compile(r"([;\t\r\n])")
FORMATS = {
    ".tar": "tar", ".tgz": "tar", ".tar.gz": "tar", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"
}  # fmt: skip


def format_of(path: Path, asked: str | None = None) -> str:
    """The format that a file's name says, or that was asked for."""
    known = sorted(set(FORMATS.values()))
    name = path.name.lower()
    form = asked or next((form for ending, form in FORMATS.items() if name.endswith(ending)), None)
    if form not in known:
        raise RequestError(
            f"{path} is of no known format ({', '.join(known)}): its name ends in one of {', '.join(FORMATS)}"
        )
    return form


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name once it is complete, and not before; a pipe or a device stays what it is."""
    if path.exists() and not path.is_file():
        try:
            with path.open("wb") as file:
                yield file
        except OSError as error:
            raise RequestError(f"{path} could not be written: {error.strerror or error}") from error
        return
    try:
        make_folders(path.parent)
        temporary = temporary_name(path)
        handle = open_temporary(temporary)
    except OSError as error:
        raise RequestError(f"{path} could not be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RequestError(f"{path} could not be written: {error.strerror or error}; it is not there") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json_lines(records: Iterable[JsonObject], file: IO[bytes]) -> int:
    count = 0
    for record in records:
        file.write(_line(record).encode() + b"\n")
        count += 1
    return count


def read_json_lines(file: IO[bytes]) -> Iterator[str]:
    """The lines of a file; of one that is too long to hold a record, no more than shows that it is."""
    while line := file.readline(LONGEST_CELL + 1):
        yield line.decode("utf-8", "replace")
        while len(line) > LONGEST_CELL and not line.endswith(b"\n"):
            line = file.readline(LONGEST_CELL + 1)


def _line(record: JsonObject) -> str:
    try:
        return json.dumps(record, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise RequestError(f"the record of {record['id']} {NO_NUMBER}") from None


def flat(record: JsonObject) -> dict[str, ColumnValue]:
    """A record as one row: what the index knows of it, settings as requested and in effect as JSON."""
    row = row_of_record(str(record["id"]), parse_record(record))
    values = row.run | row.detail
    for name in NOT_OF_THE_RUN:
        values.pop(name)
    return values


def _with_record(record: JsonObject) -> dict[str, ColumnValue]:
    """A row, and in its last column the whole record, so that it can come back."""
    return flat(record) | {"record": _line(record)}


def write_csv(records: Iterable[JsonObject], file: IO[bytes]) -> int:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer: csv.DictWriter[str] | None = None
    count = 0
    for record in records:
        values = _with_record(record)
        if writer is None:
            writer = csv.DictWriter(text, list(values), quoting=csv.QUOTE_ALL)
            writer.writeheader()
        row = {name: cell(value) for name, value in values.items()}
        writer.writerow({**row, "record": str(values["record"]).replace(";", "\\u003b")})  # JSON, which says the same
        count += 1
    if writer is None:
        text.write("record\r\n")
    text.flush()
    text.detach()
    return count


def cell(value: ColumnValue) -> ColumnValue:
    """A cell as a spreadsheet shows it: a text that it would compute as a formula begins with an apostrophe."""
    if not isinstance(value, str) or _is_number(value):
        return value
    first, *rest = INNER.split(value)
    inner = "".join(_marked(part) for part in rest)
    begins_a_line = value.lstrip(APOSTROPHE)[:1] in LINES  # then no character that shows comes before it
    return f"{APOSTROPHE + first if begins_a_line else _marked(first)}{inner}"


def _marked(part: str) -> str:
    return f"'{part}" if _is_formula(part) and not _is_number(part) else part


def _is_formula(text: str) -> bool:
    first = next((one for one in text if one.isprintable() and not one.isspace() and one != "'"), "")
    return first in FORMULA


def without_mark(text: str) -> str:
    """The text of a cell, without the apostrophe that `cell` put before it."""
    bare = "".join(part.removeprefix("'") if _is_formula(part) else part for part in INNER.split(text))
    bare = bare.removeprefix("'") if text.lstrip("'")[:1] in LINES else bare
    return bare if cell(bare) == text else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_csv(path: Path) -> Iterator[str]:
    """The records of a CSV file that Prony wrote, as lines of JSON."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(_lines(file, path))
            if "record" not in (rows.fieldnames or ()):
                raise RequestError(
                    f"{path} has no column 'record': Prony did not export it. Others' figures come in with --as csv"
                )
            yield from (row["record"] or "null" for row in rows)
    except (csv.Error, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is no CSV file that can be read ({error})") from error
    finally:
        csv.field_size_limit(before)


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    while line := file.readline(2 * LONGEST_CELL):  # quotes inside of a cell stand twice
        if len(line) == 2 * LONGEST_CELL:
            raise RequestError(f"{path} has a line that is too long to hold a record")
        yield line


def write_parquet(records: Iterable[JsonObject], file: IO[bytes]) -> int:
    """Rows with typed columns, and the whole record as text in `record`."""
    pyarrow, parquet = _pyarrow()
    writer, count, part = None, 0, []

    def put(rows: list[dict[str, ColumnValue]]) -> None:
        nonlocal writer
        table = pyarrow.Table.from_pylist(rows, schema=_parquet_schema(pyarrow))
        writer = writer or parquet.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)

    for record in records:
        part.append(_with_record(record))
        count += 1
        if len(part) == PARQUET_ROWS:
            put(part)
            part = []
    if part or writer is None:
        put(part)
    if writer is not None:
        writer.close()
    return count


def read_parquet(path: Path) -> Iterator[str]:
    """The records of a Parquet file that Prony wrote, as lines of JSON."""
    pyarrow, parquet = _pyarrow()
    try:
        schema = parquet.read_metadata(path).schema
        place = next((n for n in range(len(schema)) if schema.column(n).path == "record"), None)
        if place is None:
            raise RequestError(f"{path} has no column 'record': Prony did not export it")
        # Each different text once: a file of a few bytes may hold the same long one in every row.
        with parquet.ParquetFile(path, read_dictionary=["record"]) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            if any(group.column(place).total_uncompressed_size > PARQUET_GROUP for group in groups):
                raise RequestError(f"{path} is refused: its records take more than {PARQUET_GROUP:,} bytes at once")
            left = most_unpacked(path.stat().st_size)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=["record"]):
                for value in batch.column(0):
                    text = str(value.as_py())
                    left -= len(text)
                    if left < 0:
                        raise RequestError(f"{path} is not read on: unpacked it has {MOST_TIMES} times its size")
                    yield text
    except (pyarrow.ArrowException, OSError) as error:
        said = str(error).splitlines()[0]
        raise RequestError(f"{path} is no whole Parquet file ({said})") from error


def _parquet_schema(pyarrow: Any) -> Any:
    from sqlalchemy import BigInteger, Float, Integer

    from prony.store.tables import detail_table, run_table

    kinds = {Float: pyarrow.float64(), BigInteger: pyarrow.int64(), Integer: pyarrow.int64()}
    columns = [column for table in (run_table, detail_table) for column in table.c if column.name not in NOT_OF_THE_RUN]
    fields = [(column.name, kinds.get(type(column.type), pyarrow.string())) for column in columns]
    return pyarrow.schema([*fields, ("record", pyarrow.string())])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RequestError(f"Parquet needs pyarrow: {install_command('team')}; JSON lines need nothing") from None
    return pyarrow, pyarrow.parquet

"""What `prony store import` takes in: run folders and records of any format, and others' figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from prony_node.contract.errors import RequestError

if TYPE_CHECKING:
    from prony.store.transfer import Arrived


def import_anchors(root: Path, paths: list[Path], form: str, source: str, mapping: list[str], fixed: list[str]) -> None:
    from prony.store import Store
    from prony.store.anchors import keep_anchors, put_anchors
    from prony.store.foreign import read_foreign
    from prony.store.foreign.reading import Given
    from prony.store.transfer import check_writable, said_by_system

    check_writable(root)
    given = Given(source, _pairs(mapping, "--map", last=True), _pairs(fixed, "--set"))
    found = [anchor for path in paths for anchor in read_foreign(path, form, given)]
    try:
        new = keep_anchors(root, found)
    except OSError as error:
        raise said_by_system(error, root) from error
    here = Store(root)
    here.refresh()
    here.ask(lambda connection: put_anchors(connection, found))
    print(f"{len(new)} anchors imported, {len({anchor.key for anchor in found}) - len(new)} here already")


def _pairs(words: list[str], option: str, last: bool = False) -> dict[str, str]:
    """NAME=VALUE words; the name of a column may itself hold an =, so it is split at the last."""
    pairs = {}
    for word in words:
        name, sign, value = word.rpartition("=") if last else word.partition("=")
        if not sign or not name or not value:
            raise RequestError(f"{option} {word!r} is no {'COLUMN=FIELD' if last else 'FIELD=VALUE'}")
        pairs[name] = value
    return pairs


def take(path: str, root: Path) -> Arrived:
    from prony.store import tabular
    from prony.store.transfer import take_records, take_tar

    if path == "-":
        if sys.stdin is None:
            raise RequestError("nothing can come on stdin: it is closed")
        return take_tar(sys.stdin.buffer, root, "what came on stdin")
    kind = tabular.format_of(Path(path))
    if Path(path).exists() and not Path(path).is_file():
        raise RequestError(f"{path} is no regular file; `prony store import -` takes a tar from stdin")
    if kind == "parquet":
        return take_records(tabular.read_parquet(Path(path)), root, path)
    try:
        if kind == "csv":
            return take_records(tabular.read_csv(Path(path)), root, path)
        with Path(path).open("rb") as file:
            if kind == "tar":
                stream: BinaryIO = file
                return take_tar(stream, root, path)
            return take_records(tabular.read_json_lines(file), root, path)
    except FileNotFoundError:
        raise RequestError(f"there is no file {path}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise RequestError(f"{path} could not be read: {error.strerror}") from None

"""The manifest of a run folder: the SHA-256 and size of every file, written last, so that a change shows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import NotPlain, open_plain
from prony_node.contract.plan import check_schema

MANIFEST_VERSION = 1
MANIFEST_SCHEMA = f"prony.manifest/{MANIFEST_VERSION}"
DEEPEST = 2  # parts of a name: a file, or a file in a folder (rank1/steps.csv)
CHUNK_BYTES = 2**20
LARGEST_BYTES = 8 * 2**30  # of a file; a sparse one has any size that its writer likes
# The supervisor's own output goes on until it ends, after the manifest.
NOT_LISTED = (files.MANIFEST, files.SUPERVISOR_LOG)
CHANGED = "{} was changed after the run"
SUPERVISOR, COLLECTION = "supervisor", "collection"  # who writes one


def write_manifest(folder: Path, written_by: str) -> bool:
    """List the files of a run folder that has its record; False where there is a manifest already."""
    files.fit_all(folder)
    listed = {name: {"sha256": _sha256(path), "bytes": path.stat().st_size} for name, path in _listed_files(folder)}
    document = {"schema": MANIFEST_SCHEMA, "written_by": written_by, "files": listed}
    return files.write_once(folder / files.MANIFEST, document)


def has_manifest(folder: Path) -> bool:
    return os.path.lexists(folder / files.MANIFEST)


def manifest_problems(folder: Path) -> list[str]:
    """How the files of a folder differ from its manifest, one line each; none where they agree."""
    try:
        listed = _read(folder)
    except RequestError as error:
        return [str(error)]
    there = dict(_listed_files(folder))
    problems = [f"{name} is missing" for name in listed if name not in there]
    problems += [f"{name} is not in the manifest" for name in there if name not in listed]
    problems += [f"{path.relative_to(folder)} is a link: it is in no manifest" for path in _links(folder)]
    for name in sorted(listed.keys() & there.keys()):
        try:
            same = (
                there[name].stat().st_size == listed[name]["bytes"] and _sha256(there[name]) == listed[name]["sha256"]
            )
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
        else:
            problems += [] if same else [CHANGED.format(name)]
    return problems


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        document = files.read_json(folder / files.MANIFEST)
    except OSError as error:
        raise RequestError(f"{files.MANIFEST} cannot be read: {error.strerror}") from None
    if document is None:
        raise RequestError(f"{files.MANIFEST} cannot be read")
    check_schema(document, "prony.manifest", MANIFEST_VERSION)
    listed = document.get("files")
    whole = isinstance(listed, dict) and all(
        isinstance(entry, dict) and {"sha256", "bytes"} <= set(entry) for entry in listed.values()
    )
    if not whole or files.RECORD not in listed:
        raise RequestError(f"{files.MANIFEST} does not list {files.RECORD} with its sum and size")
    return dict(listed)


def _listed_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The plain files by name, in order: what an archive of the folder holds, without what is being written."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        passing = len(parts) > DEEPEST or any(part.startswith(".") or part.endswith(".lock") for part in parts)
        name = "/".join(parts)
        if not passing and name not in NOT_LISTED and path.is_file() and not path.is_symlink():
            yield name, path


def _links(folder: Path) -> list[Path]:
    """A link leads to what no sum covers, and whatever reads the folder would follow it."""
    return [path for path in sorted(folder.rglob("*")) if path.is_symlink()]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with os.fdopen(open_plain(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST_BYTES:
            raise NotPlain(path, f"it is longer than {LARGEST_BYTES / 2**30:,.0f} GiB")
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()

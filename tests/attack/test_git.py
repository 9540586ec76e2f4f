"""The git state of a folder is read without running what its repository configures."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from prony_node.facts.source import source_facts

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *words: str) -> str:
    quiet = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}
    return subprocess.run(["git", *IDENTITY, "-C", str(folder), *words], check=True, capture_output=True, text=True,
                          env=quiet).stdout.strip()  # fmt: skip


def a_repository(folder: Path, files: dict[str, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "trunk")
    for name, text in (files or {"one.txt": "one\n"}).items():
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def touch(path: Path) -> None:
    """Change the times alone, so that git compares the content again: then it would run a filter."""
    os.utime(path, (time.time() + 100, time.time() + 100))


@pytest.mark.parametrize("where", ["config", "included file", "configuration of the work tree"])
def test_nothing_that_a_repository_configures_is_executed(tmp_path: Path, where: str) -> None:
    repository = a_repository(
        tmp_path / "theirs", {"one.txt": "one\n", ".gitattributes": "* filter=evil diff=evil merge=evil\n"}
    )
    mark = tmp_path / "executed"
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {mark}\ncat\n")
    program.chmod(0o755)
    keys = ["filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv", "core.fsmonitor",
            "diff.evil.command", "diff.external", "core.sshCommand", "core.pager", "core.askPass", "gpg.program",
            "core.alternateRefsCommand", "uploadpack.packObjectsHook", "credential.helper", "core.editor"]  # fmt: skip
    target = {"config": repository / ".git/config", "included file": repository / ".git/other",
              "configuration of the work tree": repository / ".git/config.worktree"}[where]  # fmt: skip
    for key in keys:
        git(repository, "config", "--file", str(target), key, str(program))
    git(repository, "config", "--file", str(target), "alias.status", f"!{program}")
    git(repository, "config", "include.path" if where == "included file" else "extensions.worktreeConfig",
        "other" if where == "included file" else "true")  # fmt: skip
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        (repository / ".git/hooks").mkdir(exist_ok=True)
        shutil.copy(program, repository / ".git/hooks" / hook)
    touch(repository / "one.txt")

    facts = source_facts(repository)

    assert not mark.exists(), mark.read_text()
    assert len(facts["commit"]) == 40
    assert facts["branch"] == "trunk"


def test_an_object_that_is_missing_is_not_fetched_by_a_program_of_the_repository(tmp_path: Path) -> None:
    """A partial clone fetches what it lacks, with whatever its configuration names."""
    repository = a_repository(tmp_path / "theirs")
    mark = tmp_path / "executed"
    commit = git(repository, "rev-parse", "HEAD")
    (repository / ".git/objects" / commit[:2] / commit[2:]).unlink()
    for key, value in (
        ("core.repositoryformatversion", "1"), ("extensions.partialClone", "evil"), ("remote.evil.promisor", "true"),
        ("remote.evil.url", str(repository)), ("remote.evil.uploadpack", f"touch {mark};"),
    ):  # fmt: skip
        subprocess.run(["git", "config", "--file", str(repository / ".git/config"), key, value], check=True)
    facts = source_facts(repository)
    assert not mark.exists()
    assert facts["dirty"] is None


def test_a_file_that_a_filter_stores_is_not_called_changed_for_its_times_alone(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours", {"one.bin": "LARGE\n", ".gitattributes": "*.bin filter=lfs\n"})
    assert source_facts(repository)["dirty"] is False
    (repository / "one.bin").write_text("other content\n")
    facts = source_facts(repository)
    assert facts["dirty"] is None
    assert "filter" in next(entry["reason"] for entry in facts["missing"] if entry["what"] == "dirty")
    (repository / ".gitattributes").write_text("*.bin filter=lfs\n# changed\n")
    assert source_facts(repository)["dirty"] is True


def test_commit_branch_tag_and_dirtiness_are_as_git_says(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours")
    git(repository, "tag", "v1")
    git(repository, "pack-refs", "--all")
    expected = {"commit": git(repository, "rev-parse", "HEAD"), "branch": "trunk", "dirty": False, "described": "v1"}
    below = repository / "deep/er"
    below.mkdir(parents=True)
    assert source_facts(below) == expected | {"missing": []}
    touch(repository / "one.txt")
    assert source_facts(repository)["dirty"] is False
    (repository / "one.txt").write_text("two\n")
    assert source_facts(repository)["dirty"] is True
    git(repository, "add", ".")
    assert source_facts(repository)["dirty"] is True
    git(repository, "commit", "-q", "-m", "second")
    assert source_facts(repository)["described"] == git(repository, "describe", "--tags")
    (repository / "one.txt").unlink()
    assert source_facts(repository)["dirty"] is True


def test_a_further_work_tree_a_submodule_and_a_sha256_repository_are_read(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours")
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "second"))
    facts = source_facts(tmp_path / "second")
    assert (facts["branch"], facts["dirty"], facts["missing"]) == ("other", False, [])
    outer = a_repository(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "inner")
    assert source_facts(outer / "inner")["commit"] == git(repository, "rev-parse", "HEAD")
    long = tmp_path / "long"
    long.mkdir()
    git(long, "init", "-q", "--object-format=sha256")
    (long / "one.txt").write_text("one\n")
    git(long, "add", ".")
    git(long, "commit", "-q", "-m", "first")
    assert len(source_facts(long)["commit"]) == 64
    assert source_facts(long)["dirty"] is False


@pytest.mark.parametrize("name", ["HEAD", "commondir", "config", "index", "packed-refs"])
def test_a_fifo_in_a_git_directory_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("prony_node.facts.source.LIMIT_S", 0.5)
    repository = a_repository(tmp_path / "theirs")
    (repository / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(repository / ".git" / name)
    began = time.monotonic()
    source_facts(repository)
    assert time.monotonic() - began < 8


def test_an_imported_folder_with_a_hostile_head_gives_a_reason_and_no_traceback(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "theirs")
    for head in ("ref: ../../../etc/passwd", "ref: refs/heads/\x1b[31m", "\0" * 100, "--upload-pack=x", ""):
        (repository / ".git/HEAD").write_text(head)
        facts = source_facts(repository)
        assert facts["commit"] is None
        assert facts["missing"]

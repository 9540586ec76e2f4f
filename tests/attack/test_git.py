"""The git state of a folder is read without running what its repository configures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from prony_node.contract.facts import SourceFacts
from prony_node.facts.software import source_facts

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


def make_hostile(repository: Path, mark: Path, where: str = "config") -> None:
    """Let a repository configure a program, which leaves a mark, for all that git starts programs for."""
    program = mark.with_name("evil.sh")
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {mark}\ncat\n")
    program.chmod(0o755)
    keys = ["filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv", "core.fsmonitor",
            "diff.evil.command", "diff.external", "core.sshCommand", "core.pager", "core.askPass", "gpg.program",
            "core.alternateRefsCommand", "uploadpack.packObjectsHook", "credential.helper", "core.editor"]  # fmt: skip
    target = {"config": repository / ".git/config", "included file": repository / ".git/other",
              "configuration of the work tree": repository / ".git/config.worktree"}[where]  # fmt: skip
    for key in keys:
        git(repository, "config", "--file", str(target), key, str(program))
    for verb in ("status", "config", "describe", "rev-parse"):
        git(repository, "config", "--file", str(target), f"alias.{verb}", f"!{program}")
    git(repository, "config", "include.path" if where == "included file" else "extensions.worktreeConfig",
        "other" if where == "included file" else "true")  # fmt: skip
    hooks = mark.with_name("hooks")
    for hook in ("post-index-change", "fsmonitor-watchman", "reference-transaction"):
        for place in (hooks, repository / ".git/hooks"):
            place.mkdir(exist_ok=True)
            shutil.copy(program, place / hook)
    git(repository, "config", "--file", str(target), "core.hooksPath", str(hooks))
    touch(repository / "one.txt")


def a_hostile_repository(folder: Path, mark: Path, where: str = "config") -> Path:
    names = {"one.txt": "one\n", ".gitattributes": "* filter=evil diff=evil merge=evil\n"}
    repository = a_repository(folder, names)
    make_hostile(repository, mark, where)
    return repository


def why(facts: SourceFacts, what: str = "commit") -> str:
    """The reason why a fact is not known."""
    assert getattr(facts, what) is None
    return str(next(one.reason for one in facts.missing or () if one.what == what))


def test_the_hostile_repository_is_one(tmp_path: Path) -> None:
    """Git itself, asked in it without care, runs its program."""
    repository = a_hostile_repository(tmp_path / "theirs", tmp_path / "executed")
    subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("where", ["config", "included file", "configuration of the work tree"])
def test_nothing_that_a_repository_configures_is_executed(tmp_path: Path, where: str) -> None:
    mark = tmp_path / "executed"
    repository = a_hostile_repository(tmp_path / "theirs", mark, where)

    facts = source_facts(repository)

    assert not mark.exists(), mark.read_text()
    assert len(facts.commit) == 40
    assert facts.branch == "trunk"


def test_a_study_in_a_hostile_repository_executes_nothing_of_it(tmp_path: Path) -> None:
    """Planned and carried out by the real node, whose supervisor asks for the commit."""
    pytest.importorskip("torch")
    mark = tmp_path / "executed"
    repository = a_hostile_repository(tmp_path / "theirs", mark)
    (repository / "small.yaml").write_text(
        "name: small\nworkloads: gpt-tiny\nsettings: {device: cpu, size: tiny, batch_size: 1, steps: 2}\n"
    )
    for words in (["plan", "small.yaml", "--runs"], ["run", "small.yaml", "--no-energy", "--out"]):
        done = subprocess.run([sys.executable, "-m", "prony", "study", *words, str(tmp_path / "runs")],
                              cwd=repository, capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert not mark.exists(), mark.read_text()
    (made,) = (tmp_path / "runs").glob("*/record.json")
    source = json.loads(made.read_text(encoding="utf-8"))["facts"]["source"]
    assert source["commit"] == (repository / ".git/refs/heads/trunk").read_text().strip()


@pytest.mark.parametrize(
    "how", ["no sense", "a folder", "a FIFO", "too long", "a broken link", "a link to itself", "no word"]
)
def test_a_configuration_that_cannot_be_read_makes_the_source_unknown(tmp_path: Path, how: str) -> None:
    """It was taken for an empty one: files stored otherwise would be compared wrongly."""
    repository = a_repository(tmp_path / "theirs")
    config = repository / ".git/config"
    config.unlink()
    if how == "no sense":
        config.write_text("[core\n")
    elif how == "a folder":
        config.mkdir()
    elif how == "a FIFO":
        os.mkfifo(config)
    elif how == "too long":
        config.write_text("# " + "x" * 2**20)
    elif how == "a broken link":
        config.symlink_to("nowhere")
    elif how == "a link to itself":
        config.symlink_to("config")
    else:
        config.write_text('[core]\n\tautocrlf = "true\\n[alias]\\nstatus = !touch x"\n')
    facts = source_facts(repository)
    assert "configuration of the repository" in why(facts)
    assert facts.dirty is None


def test_a_repository_without_configuration_or_with_a_link_to_one_is_read(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours")
    (repository / ".git/config").rename(tmp_path / "common")
    assert source_facts(repository).dirty is False
    (repository / ".git/config").symlink_to(tmp_path / "common")
    assert source_facts(repository).dirty is False


def test_how_files_are_stored_is_taken_from_the_configuration(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours")
    (repository / "one.txt").chmod(0o755)
    assert source_facts(repository).dirty is True
    git(repository, "config", "core.filemode", "false")
    assert source_facts(repository).dirty is False


def test_an_index_in_two_files_is_read(tmp_path: Path) -> None:
    """Also that of a further work tree. No link among its files is followed: git would set the times of the target."""
    repository = a_repository(tmp_path / "ours", {"one.txt": "one\n", "two.txt": "two\n"})
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "second"))
    for folder in (repository, tmp_path / "second"):
        git(folder, "update-index", "--split-index")
        assert source_facts(folder).dirty is False
        (folder / "two.txt").write_text("changed\n")
        assert source_facts(folder).dirty is True
    (part,) = (repository / ".git").glob("sharedindex.*")
    victim = part.rename(tmp_path / "victim")
    part.symlink_to(victim)
    os.utime(victim, (1, 1))
    assert "sharedindex" in why(source_facts(repository), "dirty")
    assert victim.stat().st_mtime == 1


def test_a_slow_git_has_one_deadline_for_all_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = a_repository(tmp_path / "ours")
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 0.6\nexec {shutil.which("git")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("prony_node.facts.software.LIMIT_S", 1.0)
    began = time.monotonic()
    facts = source_facts(repository)
    assert time.monotonic() - began < 2
    assert "git did not answer within 1 s" in why(facts)


def test_a_program_called_git_in_the_work_tree_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty entry of PATH, which many have by mistake, is the folder that git is started in."""
    repository = a_repository(tmp_path / "theirs")
    (repository / "git").write_text(f"#!/bin/sh\ntouch {tmp_path / 'executed'}\n")
    (repository / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f":.:{os.environ['PATH']}")
    assert source_facts(repository).branch == "trunk"
    monkeypatch.setenv("PATH", "")
    source_facts(repository)
    assert not (tmp_path / "executed").exists()


def test_variables_for_git_do_not_change_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, other = a_repository(tmp_path / "ours"), a_repository(tmp_path / "other", {"two.txt": "two\n"})
    expected = source_facts(repository)
    assert expected.dirty is False
    for name, value in {
        "GIT_DIR": other / ".git", "GIT_WORK_TREE": other, "GIT_INDEX_FILE": other / ".git/index", "GIT_TRACE": "1",
        "GIT_OBJECT_DIRECTORY": other / ".git/objects", "GIT_EXTERNAL_DIFF": "false", "GIT_NAMESPACE": "x",
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": f"touch {tmp_path}/mark",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    assert source_facts(repository) == expected
    assert not (tmp_path / "mark").exists()


def test_a_repository_of_another_user_is_read_without_safe_directory(tmp_path: Path) -> None:
    """Git refuses it, since it would believe its configuration; here none of that is used."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a repository away")
    repository = a_repository(tmp_path / "theirs")
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 61001, 61001)
    with pytest.raises(subprocess.CalledProcessError, match="128"):
        git(repository, "status")
    assert source_facts(repository).dirty is False


@pytest.mark.parametrize("relative", [True, False])
def test_objects_that_lie_in_another_repository_are_found(tmp_path: Path, relative: bool) -> None:
    lender = a_repository(tmp_path / "lender")
    git(tmp_path, "clone", "-q", "--shared", str(lender), str(tmp_path / "borrower"))
    if relative:
        (tmp_path / "borrower/.git/objects/info/alternates").write_text("../../../lender/.git/objects\n")
    facts = source_facts(tmp_path / "borrower")
    assert (facts.dirty, facts.missing) == (False, [])


def test_a_bare_repository_has_no_files_but_its_work_trees_have(tmp_path: Path) -> None:
    ours, project = a_repository(tmp_path / "ours"), tmp_path / "project"
    project.mkdir()
    git(tmp_path, "clone", "-q", "--bare", str(ours), str(project / ".bare"))
    assert why(source_facts(project / ".bare")) == "this folder is not in a git repository"
    (project / ".git").write_text("gitdir: ./.bare\n")
    assert "is bare" in why(source_facts(project))
    git(project, "worktree", "add", "-q", "tree", "trunk")
    facts = source_facts(project / "tree")
    assert (facts.branch, facts.dirty, facts.missing) == ("trunk", False, [])


@pytest.mark.parametrize("name", [".git", ".git/commondir"])
def test_a_path_that_is_no_text_gives_a_reason(tmp_path: Path, name: str) -> None:
    repository = a_repository(tmp_path / "theirs")
    if name == ".git":
        shutil.rmtree(repository / name)
    (repository / name).write_bytes(b"gitdir: a\0b\n")
    assert "is no text" in why(source_facts(repository))


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
    assert facts.dirty is None


def test_a_file_that_a_filter_stores_is_not_called_changed_for_its_times_alone(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours", {"one.bin": "LARGE\n", ".gitattributes": "*.bin filter=lfs\n"})
    assert source_facts(repository).dirty is False
    (repository / "one.bin").write_text("other content\n")
    facts = source_facts(repository)
    assert "filter" in why(facts, "dirty")
    (repository / ".gitattributes").write_text("*.bin filter=lfs\n# changed\n")
    assert source_facts(repository).dirty is True


def test_commit_branch_tag_and_dirtiness_are_as_git_says(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours")
    git(repository, "tag", "v1")
    git(repository, "pack-refs", "--all")
    expected = {"commit": git(repository, "rev-parse", "HEAD"), "branch": "trunk", "dirty": False, "described": "v1"}
    below = repository / "deep/er"
    below.mkdir(parents=True)
    assert source_facts(below) == replace(expected, missing=())
    touch(repository / "one.txt")
    assert source_facts(repository).dirty is False
    (repository / "one.txt").write_text("two\n")
    assert source_facts(repository).dirty is True
    git(repository, "add", ".")
    assert source_facts(repository).dirty is True
    git(repository, "commit", "-q", "-m", "second")
    git(repository, "checkout", "-q", "--detach")
    assert why(source_facts(repository), "branch") == "HEAD is detached"
    assert source_facts(repository).described == git(repository, "describe", "--tags")
    (repository / "one.txt").unlink()
    assert source_facts(repository).dirty is True


def test_a_further_work_tree_a_submodule_and_a_sha256_repository_are_read(tmp_path: Path) -> None:
    repository = a_repository(tmp_path / "ours")
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "second"))
    facts = source_facts(tmp_path / "second")
    assert (facts.branch, facts.dirty, facts.missing) == ("other", False, [])
    outer = a_repository(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "inner")
    assert source_facts(outer / "inner").commit == git(repository, "rev-parse", "HEAD")
    long = tmp_path / "long"
    long.mkdir()
    git(long, "init", "-q", "--object-format=sha256")
    (long / "one.txt").write_text("one\n")
    git(long, "add", ".")
    git(long, "commit", "-q", "-m", "first")
    assert len(source_facts(long).commit) == 64
    assert source_facts(long).dirty is False


@pytest.mark.parametrize("name", ["HEAD", "commondir", "config", "index", "packed-refs"])
def test_a_fifo_in_a_git_directory_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("prony_node.facts.software.LIMIT_S", 0.5)
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
        assert facts.commit is None
        assert facts.missing

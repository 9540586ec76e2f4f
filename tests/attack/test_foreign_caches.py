"""Caches, locks and screenings in folders that others can write to: nothing that they put there is used."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from prony.engine import local
from prony.engine.progress import silent
from prony.engine.runs import TrialRun
from prony.sites import collect, locks, node
from prony.store.index import index_place
from prony_node.backends.torch import compiling
from prony_node.backends.torch.compiling import use_cache
from prony_node.contract import Plan, RequestError, Trial, files
from prony_node.contract.machine import identify
from prony_node.contract.safe_files import NotPlain, make_own_folder
from prony_node.contract.trial import Stop
from prony_node.facts import software
from prony_node.run.claim import own_plan
from prony_node.run.processes import bytecode_environment

if TYPE_CHECKING:
    from conftest import User

GROUP = 61298  # a group id without an entry
PLAN = Plan("gpt-tiny-20260101T000000-abc123", Trial("gpt-tiny", {"size": "tiny"}))
WARM: dict[str, Any] = {"compile": "default", "compile_cache": "warm"}


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def member(make_user: Callable[..., User]) -> User:
    return make_user(groups=(GROUP,))


@pytest.fixture
def project(commons: Path, member: User) -> Path:
    """A folder that every member of a group may write to, as most project folders are."""
    folder = commons / "project"
    folder.mkdir()
    os.chown(folder, -1, GROUP)
    folder.chmod(0o2775)
    return folder


@pytest.fixture
def cache(commons: Path, member: User, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache whose new folders belong to the group, which may not write to the cache itself."""
    folder = commons / "cache"
    folder.mkdir()
    os.chown(folder, -1, GROUP)
    folder.chmod(0o2755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def open_cache(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project))
    return project


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "x")  # so that what is set below is undone
        monkeypatch.delenv(name)


@pytest.fixture
def other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_PYTHON", "/another/python")
    monkeypatch.delenv("PYTHONPATH", raising=False)


def shipped() -> Path:
    return Path(node.local_environment()["PYTHONPATH"])


def test_a_member_cannot_rename_the_folder_of_the_node_program(cache: Path, member: User) -> None:
    with umask(0o002):
        path = node.write_node_zip()
    assert path.parent == cache / "prony" / "node"
    renamed = member.python(f"import os; os.rename({str(path.parent)!r}, {str(path.parent) + '-old'!r})")
    assert "PermissionError" in renamed.stderr
    assert [mode_of(one) & 0o777 for one in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_the_open_folder_of_an_earlier_version_is_closed(cache: Path, member: User) -> None:
    (cache / "prony" / "node").mkdir(parents=True, mode=0o700)
    (cache / "prony").chmod(0o2775)
    assert node.write_node_zip().parent == cache / "prony" / "node"
    assert mode_of(cache / "prony") == 0o2755
    assert "PermissionError" in member.python(f"import os; os.mkdir({str(cache / 'prony' / 'x')!r})").stderr


@pytest.mark.usefixtures("other_python")
def test_the_node_program_is_put_elsewhere_where_members_can_exchange_it(
    open_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not shipped().is_relative_to(open_cache)
    monkeypatch.setattr("tempfile.tempdir", str(open_cache))
    passing = shipped()
    assert passing == shipped(), "one for the whole process"
    assert not passing.is_relative_to(open_cache)
    assert mode_of(passing.parent) == 0o700
    assert passing.read_bytes() == node.node_zip()
    assert list(open_cache.iterdir()) == []


def test_the_plan_of_a_rank_and_the_configuration_of_git_are_not_where_members_can_exchange_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(project))
    with own_plan(PLAN) as path:
        assert not path.is_relative_to(project)
    assert not path.parent.exists()
    used: list[Path] = []
    prepare = software._prepare
    monkeypatch.setattr(software, "_prepare", lambda own, git: used.append(own.own) or prepare(own, git))
    (project / ".git").mkdir()
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    software.source_facts(project)
    assert len(used) == 1
    assert not used[0].is_relative_to(project)


def test_the_folder_of_the_node_program_ends_with_the_process(open_cache: Path, member: User) -> None:
    """Also for a user whose cache and temporary folder are a project's."""
    environment = {"XDG_CACHE_HOME": str(open_cache), "TMPDIR": str(open_cache), "PRONY_PYTHON": "/another/python"}
    said = member.python(
        "from prony.sites import node; print(node.local_environment()['PYTHONPATH'])", environment=environment
    )
    zipped = Path(said.stdout.split(os.pathsep)[0].strip())
    assert zipped.name == "node.zip", said.stderr
    assert not zipped.parent.exists()


def test_the_index_is_in_memory_where_members_can_exchange_the_cache(open_cache: Path) -> None:
    assert index_place(open_cache) is None
    assert list(open_cache.iterdir()) == []


@pytest.mark.parametrize("mode", [0o1777, 0o3775])
def test_in_a_sticky_folder_of_root_a_users_own_folder_is_safe(commons: Path, stranger: User, mode: int) -> None:
    commons.chmod(mode)
    make_own_folder(commons / "mine" / "below")
    os.chown(commons / "mine", stranger.uid, stranger.gid)
    with pytest.raises(NotPlain, match=rf"mine belongs to user {stranger.uid}"):
        make_own_folder(commons / "mine" / "below")


def test_a_link_is_followed_where_nobody_else_can_exchange_it(commons: Path, project: Path, member: User) -> None:
    (commons / "real").mkdir()
    (commons / "link").symlink_to("real")
    make_own_folder(commons / "link" / "mine")
    assert (commons / "real" / "mine").is_dir()
    (project / "link").symlink_to(commons / "real")
    (commons / "twice").symlink_to(project / "link")
    with pytest.raises(NotPlain, match=r"others can write to .*project"):
        make_own_folder(commons / "twice" / "mine")
    os.lchown(commons / "link", member.uid, member.gid)
    with pytest.raises(NotPlain, match=r"link belongs to user"):
        make_own_folder(commons / "link" / "mine")


def test_an_open_folder_that_nobody_else_can_reach_is_safe(commons: Path, project: Path) -> None:
    """A umask of 002 opens ~/.cache to the group; a home that only its owner enters keeps the group out."""
    with pytest.raises(NotPlain, match="others can write to"):
        make_own_folder(project / "mine")
    commons.chmod(0o700)
    make_own_folder(project / "mine")
    (project / "mine").chmod(0o2775)
    with pytest.raises(NotPlain, match="not yours alone"):
        make_own_folder(project / "mine")


def plant(folder: Path, member: User) -> None:
    """A folder that the member made first, and whose content is the victim's to write too."""
    made = member.python(f"import os; os.umask(0); os.makedirs({str(folder)!r})")
    assert made.returncode == 0, made.stderr


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("planted", [True, False])
def test_pickles_of_a_compile_cache_that_others_can_change_are_not_loaded(
    open_cache: Path, member: User, tmp_path: Path, planted: bool
) -> None:
    if planted:
        plant(open_cache / "prony" / "compile", member)
    with ExitStack() as closing:
        note = use_cache(WARM, tmp_path, closing)
        place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert not place.is_relative_to(open_cache)
        assert mode_of(place) == 0o700
    assert not place.exists()
    assert note is not None
    assert note.startswith("compiled kernels are not kept: ")
    assert str(open_cache) in note


@pytest.mark.usefixtures("compiler")
def test_a_compile_cache_that_was_open_to_a_group_is_not_used(cache: Path, tmp_path: Path) -> None:
    """What members put into it stays there, whatever its permissions are now."""
    with umask(0o002):
        (cache / "prony" / "compile").mkdir(parents=True)
    with ExitStack() as closing:
        assert "compile: it is not yours alone" in str(use_cache(WARM, tmp_path, closing))
    (cache / "prony" / "compile").rmdir()
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert use_cache(WARM, tmp_path, closing) is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache / "prony" / "compile")
    assert mode_of(cache / "prony" / "compile") & 0o777 == 0o700


@pytest.mark.usefixtures("compiler")
def test_a_cold_cache_is_not_in_a_root_of_another_user(commons: Path, stranger: User) -> None:
    """The owner of a shared root can exchange the runs in it."""
    root = commons / "runs"
    (root / "run").mkdir(parents=True)
    os.chown(root, stranger.uid, stranger.gid)
    with ExitStack() as closing:
        assert use_cache({"compile": "default", "compile_cache": "cold"}, root / "run", closing) is None
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            assert not Path(os.environ[name]).is_relative_to(root)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("mode", [0o2775, 0o3777])
def test_headers_that_others_compiled_are_not_used(
    project: Path, member: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """torch puts them into `torchinductor_USER` of the temporary folder: anyone may make that first."""
    from torch._inductor.runtime.runtime_utils import default_cache_dir

    project.chmod(mode)
    monkeypatch.setattr("tempfile.tempdir", str(project))
    monkeypatch.setenv("TMPDIR", str(project))
    planted = Path(default_cache_dir())
    plant(planted, member)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(planted))  # as the compiler does when it is imported
    with ExitStack() as closing:
        use_cache(WARM, tmp_path, closing)
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != str(planted)
        place = Path(default_cache_dir())
        assert place != planted
        assert place.parent == Path(os.environ["TMPDIR"])
        assert mode_of(place.parent) & 0o777 == 0o700
    assert not place.parent.exists()
    assert os.environ["TMPDIR"] == str(project)


def test_bytecode_that_others_can_change_is_not_executed(
    open_cache: Path, cache: Path, member: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "site" / "torch" / "__init__.py"
    origin.parent.mkdir(parents=True)
    origin.write_text("")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(origin))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    place = Path(bytecode_environment()["PYTHONPYCACHEPREFIX"])
    assert place.parent == cache / "prony" / "bytecode"
    assert mode_of(place) & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", str(open_cache))
    plant(open_cache / "prony" / "bytecode" / place.name, member)
    assert bytecode_environment() == {}


@pytest.mark.parametrize("tried", [[["a"], "a"], [{}, "a"], [None], "a", {"a": 1}])
def test_a_hostile_winner_costs_time_and_no_more(tmp_path: Path, tried: object) -> None:
    import torch

    path = tmp_path / "kernel.winner"
    path.write_text(json.dumps({"torch": torch.__version__, "winner": "a", "tried": tried}))
    assert compiling.recall(path, {"a"}) in (None, "a")
    assert compiling.recall(path, {"a", "b"}) is None


@pytest.mark.parametrize("by", ["link", "rename"])
def test_a_private_folder_is_not_opened_in_the_place_of_the_locks(
    project: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A member exchanges the new folder of the locks before its permissions are set."""
    private = project / "private"
    private.mkdir(0o700)
    monkeypatch.delenv("PRONY_LOCKS")
    monkeypatch.setattr("tempfile.tempdir", str(project))
    make = Path.mkdir

    def make_and_lose(path: Path, *given: Any, **named: Any) -> None:
        make(path, *given, **named)
        if path.name == "prony-locks":
            path.rmdir()
            if by == "link":
                path.symlink_to(private)
            else:
                private.rename(path)

    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    if by == "link":
        with pytest.raises(RequestError, match=r"prony-locks cannot be made for locks: .*link.*PRONY_LOCKS"):
            locks.lock_folder()
        assert mode_of(private) & 0o777 == 0o700
    else:
        assert mode_of(locks.lock_folder()) & 0o777 == 0o700


def test_the_folder_of_the_locks_is_for_all_users(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONY_LOCKS", str(project / "further" / "locks"))
    with umask(0o077):
        folder = locks.lock_folder()
        assert os.umask(0o077) == 0o077
    assert mode_of(folder) & 0o1777 == 0o1777
    assert locks.lock_folder() == folder


def test_a_planted_link_for_screenings_is_refused(
    tmp_path: Path, commons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (commons / ".screening").symlink_to(tmp_path)
    started: list[Path] = []
    monkeypatch.setattr(local, "run_one", lambda job, root, *_: started.append(root))
    walk = TrialRun(Trial("gpt-tiny", {"batch_size": 4}), Stop(), walk=(4,))
    with pytest.raises(RequestError, match=r"\.screening cannot be used for screenings: it is no folder; remove it"):
        local.make_runs((one for one in [walk]), commons, silent)
    assert started == []


def test_a_run_that_another_user_planted_keeps_nobody_waiting(
    commons: Path, stranger: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "PATIENCE_S", 0.0)
    planted = commons / PLAN.run_id
    files.create_folder(planted, {files.PLAN: PLAN.to_json(), files.SUPERVISOR: {"role": "supervisor", **identify()}})
    key = (PLAN.trial.hash, PLAN.repeat)
    assert collect.is_being_made(commons, *key), "one of our own"
    os.chown(planted, stranger.uid, stranger.gid)
    assert not collect.is_being_made(commons, *key)
    collect.wait_for_left(commons, {key}, pytest.fail)

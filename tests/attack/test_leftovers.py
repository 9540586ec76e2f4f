"""What a killed process leaves in a root is removed by the next command; what is in use, or another's, never is."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prony.sites.collect import collect
from prony.sites.kubernetes import unpack
from prony.store import Store
from prony.study.request import make_plan
from prony_node.contract import cache, files
from prony_node.contract.cache import HOLDER, OLD_S, remove_half_written, remove_leftovers, remove_temporary
from prony_node.contract.machine import identify
from prony_node.contract.safe_files import NotPlain
from prony_node.contract.trial import Stop, Trial
from prony_node.power import recording, sampler
from prony_node.power.recording import Recording

IMPORT = """
import sys
from pathlib import Path
from prony.store.archive import unpacked
class Slow:
    def read(self, size=-1):
        print("unpacking", flush=True)
        sys.stdin.readline()
        return b""
with unpacked(Slow(), Path(sys.argv[1]), "an archive"):
    pass
"""
ELSEWHERE = {"pid": 1, "host": "another-machine", "start_ticks": 1, "boot_id": "x", "pid_namespace": "y"}


def imports(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob(".import-*"))


def place(root: Path, holder: object = None, age_s: float = 0.0) -> Path:
    """A place of an import, as its process would have left it."""
    folder = root / ".import-abcd1234"
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "steps.csv").write_text("x" * 1000)
    if holder is not None:
        (folder / HOLDER).write_text(json.dumps(holder))
    then = time.time() - age_s
    os.utime(folder, (then, then))
    return folder


@pytest.fixture
def importing(tmp_path: Path) -> subprocess.Popen[str]:
    """An import in the middle of its archive."""
    argv = [sys.executable, "-c", IMPORT, str(tmp_path)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "unpacking\n"
    return process


def test_what_a_killed_import_left_is_removed_by_the_next_command(
    tmp_path: Path, importing: subprocess.Popen[str]
) -> None:
    """276 MB stayed for ever."""
    Store(tmp_path).refresh()
    assert len(imports(tmp_path)) == 1, "it is in use"
    importing.kill()
    importing.communicate()
    assert len(imports(tmp_path)) == 1
    done = subprocess.run([sys.executable, "-m", "prony", "runs", "--runs", str(tmp_path)], capture_output=True)
    assert done.returncode == 0
    assert imports(tmp_path) == []


def test_an_import_that_ends_leaves_nothing(tmp_path: Path, importing: subprocess.Popen[str]) -> None:
    importing.communicate("\n")
    assert imports(tmp_path) == []


@pytest.mark.parametrize(
    ("holder", "age_s", "stays"),
    [
        (None, 60.0, True),  # it may be about to say who it is
        (None, OLD_S + 60.0, True),  # nobody says that it was an import: somebody may have renamed a run
        ({**identify(), "start_ticks": 1}, 0.0, False),  # another process has its number now
        (ELSEWHERE, 60.0, True),
        (ELSEWHERE, OLD_S + 60.0, False),
    ],
)
def test_only_what_nobody_uses_is_removed(tmp_path: Path, holder: object, age_s: float, stays: bool) -> None:
    folder = place(tmp_path, holder, age_s)
    remove_leftovers(tmp_path)
    assert folder.exists() == stays


def test_what_another_holds_or_owns_stays(make_user: Callable[..., Any], tmp_path: Path) -> None:
    user = make_user()
    folder = place(tmp_path, {**identify(), "start_ticks": 1}, OLD_S + 60.0)
    os.chown(folder, user.uid, user.gid)
    assert remove_leftovers(tmp_path) == []
    assert folder.exists()
    os.chown(folder, os.geteuid(), -1)
    assert remove_leftovers(tmp_path) == [folder.name]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    folder = place(tmp_path, None, OLD_S + 60.0)
    folder.rename(tmp_path / "precious")
    (tmp_path / "runs" / folder.name).symlink_to(tmp_path / "precious")
    assert remove_leftovers(tmp_path / "runs") == []
    assert (tmp_path / "precious" / "run" / "steps.csv").exists()


def test_a_run_folder_that_never_got_its_name_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".gpt-tiny-20261118T070000-a1b2c3.0123abcd"
    used, other = left.with_suffix(".0123abce"), left.with_suffix(".0123abcf")
    for folder, who in ((left, {**identify(), "start_ticks": 1}), (used, identify()), (other, {"pid": -1})):
        folder.mkdir()
        (folder / files.SUPERVISOR).write_text(json.dumps(who))
        (folder / f".{files.PLAN}.0123abcd").write_text("{")
    (other / "thesis.tex").write_text("not Prony's")
    Store(tmp_path).refresh()
    assert (left.exists(), used.exists()) == (False, True)
    assert (other / "thesis.tex").exists()


def test_a_half_written_document_goes_when_the_run_is_collected(tmp_path: Path) -> None:
    plan = make_plan(Trial("gpt-tiny", {}), Stop(), ())
    folder = tmp_path / plan.run_id
    dead = {"role": "supervisor", **identify(), "start_ticks": 1}
    files.create_folder(folder, {files.PLAN: plan.to_json(), files.SUPERVISOR: dead})
    (folder / ".record.json.0123abcd").write_text('{"half')
    (folder / ".notes").write_text("mine")
    assert collect(folder) is not None
    assert sorted(path.name for path in folder.glob(".*")) == [".notes"]
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", [".import-abcd1234", ".gpt-tiny-20261118T070000-a1b2c3.0123abcd"])
@pytest.mark.parametrize(
    ("content", "age_s", "stays"),
    [
        ((), OLD_S + 60.0, False),
        ((), 60.0, True),
        ((HOLDER,), OLD_S + 60.0, False),  # made, and not yet written to
        ((files.PLAN, f".{files.SUPERVISOR}.0123abcd"), OLD_S + 60.0, False),
        (("thesis.tex",), OLD_S + 60.0, True),
    ],
)
def test_a_place_whose_maker_was_killed_before_it_said_who_it_is(
    tmp_path: Path, name: str, content: tuple[str, ...], age_s: float, stays: bool
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for one in content:
        (folder / one).touch()
    then = time.time() - age_s
    os.utime(folder, (then, then))
    remove_leftovers(tmp_path)
    assert folder.exists() == stays


def test_half_a_report_is_removed_when_it_is_old(tmp_path: Path) -> None:
    old, young, mine = (tmp_path / name for name in (".report.html.0123abcd", ".report-a.html.0123abcd", ".notes"))
    for path in (old, young, mine):
        path.touch()
    for path in (old, mine):
        os.utime(path, (0, 0))
    Store(tmp_path).refresh()
    assert (old.exists(), young.exists(), mine.exists()) == (False, True, True)


def test_half_of_what_a_pod_sent_is_removed_with_the_next_that_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gpt-tiny-20261118T070000-a1b2c3"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name in (files.STEPS, files.RECORD):
            archive.addfile(tarfile.TarInfo(name))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            unpack(packed.getvalue(), folder)
    assert len(list(folder.glob(".*"))) == 1
    other = folder.with_name("gpt-tiny-20261118T070000-a1b2c4")
    shutil.copytree(folder, other)
    unpack(packed.getvalue(), folder)
    assert sorted(path.name for path in folder.iterdir()) == [files.RECORD, files.STEPS]
    remove_half_written(other)  # as when its job is collected, and nothing comes any more
    assert list(other.iterdir()) == []


PLANNING = """
import sys
from prony_node.contract import Plan, Trial
from prony_node.run.claim import own_plan
with own_plan(Plan("gpt-tiny-20260101T000000-abc123", Trial("gpt-tiny", {"size": "tiny"}))) as path:
    print(path.parent.name, flush=True)
    sys.stdin.readline()
"""


def planning(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a private plan in this temporary folder."""
    process = subprocess.Popen([sys.executable, "-c", PLANNING], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, "TMPDIR": str(place)})  # fmt: skip
    assert process.stdout is not None
    return process, place / process.stdout.readline().strip()


def test_the_private_plan_of_a_killed_run_is_removed_by_the_next_run(tmp_path: Path) -> None:
    killed, left = planning(tmp_path)
    killed.kill()
    killed.communicate()
    assert (left / files.PLAN).exists()
    first, used = planning(tmp_path)
    assert not left.exists()
    second, other = planning(tmp_path)
    assert used.exists(), "its run goes on"
    assert other != used
    for process in (first, second):
        process.communicate("\n")
    assert list(tmp_path.iterdir()) == []


def test_only_a_plan_of_ones_own_is_removed_and_through_no_link(make_user: Callable[..., Any], tmp_path: Path) -> None:
    dead = json.dumps({**identify(), "start_ticks": 1})
    link, others, more = (tmp_path / f"prony-plan-{name}" for name in ("linked00", "others00", "more0000"))
    for folder in (tmp_path / "precious", others, more):
        folder.mkdir()
        (folder / HOLDER).write_text(dead)
        (folder / files.PLAN).write_text("{}")
    (more / "thesis.tex").touch()
    link.symlink_to(tmp_path / "precious")
    os.chown(others, make_user().uid, -1)
    remove_temporary(tmp_path, "prony-plan-")
    assert all((folder / files.PLAN).exists() for folder in (tmp_path / "precious", others, more))


def test_a_finished_run_that_takes_the_name_of_a_killed_import_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may rename in the root exchanges the two after the look and before the removal."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place = tmp_path / ".import-abcdefgh"
    place.mkdir()
    (place / cache.HOLDER).write_text(json.dumps({"pid": gone.pid, "host": os.uname().nodename}))
    files.create_folder(tmp_path / "finished", {files.RECORD: {"id": "finished"}})
    look = cache.is_alive

    def exchange(who: object) -> bool | None:
        place.rename(tmp_path / "away")
        (tmp_path / "finished").rename(place)
        return look(who)

    monkeypatch.setattr(cache, "is_alive", exchange)
    cache.remove_leftovers(tmp_path)
    assert (place / files.RECORD).exists()


# Each makes one temporary folder, and then waits for its standard input to end.
MAKERS = {
    "prony-git-": """
from prony_node.facts import software
software._find = lambda folder: (folder, folder)
software._prepare = lambda *_: sys.stdin.readline()
software.source_facts(Path.cwd())
""",
    "prony-verify-": """
import contextlib
from prony.engine import verify
from prony.store import archive
@contextlib.contextmanager
def unpacked(*_):
    yield sys.stdin.readline()
archive.unpacked = unpacked
next(verify._of_archive(Path("/dev/null")))
""",
    "prony-survey-": """
from prony_node.power import sampler
sampler.sample = lambda *_, **__: sys.stdin.readline()
sampler.survey()
""",
    "prony-samples-": """
from prony_node.power.any_command import CommandOptions, run_command
run_command(["cat"], CommandOptions())
""",
    "prony-node-": """
import hashlib, os, runpy
from prony.sites.node import node_zip
from prony.sites.start_node import start
given = os.dup(0)
runpy.run_module = lambda *_, **__: os.read(given, 1)
node = Path("node.zip")
node.write_bytes(node_zip())
start(str(node), hashlib.sha256(node.read_bytes()).hexdigest(), "", "")
""",
}


class Maker:
    """A process that has made its temporary folder."""

    def __init__(self, prefix: str, place: Path, here: Path) -> None:
        known = set(place.iterdir())
        here.mkdir(exist_ok=True)
        code = "import sys\nfrom pathlib import Path\n" + MAKERS[prefix]
        environment = {**os.environ, "TMPDIR": str(place), "PRONY_RUNS": "/proc/none"}
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                                        cwd=here, env=environment)  # fmt: skip
        end_s = time.monotonic() + 60
        while not (found := {one.parent for one in place.glob(f"{prefix}*/{HOLDER}") if one.read_text()} - known):
            assert time.monotonic() < end_s
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.05)
        (self.folder,) = found

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("prefix", MAKERS)
def test_the_temporary_folder_of_a_killed_process_is_removed_by_the_next_of_its_kind(
    tmp_path: Path, prefix: str
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    makers = [Maker(prefix, place, tmp_path / "here")]
    try:
        makers[0].kill()
        assert makers[0].folder.exists()
        makers.append(Maker(prefix, place, tmp_path / "here"))
        assert not makers[0].folder.exists()
        makers.append(Maker(prefix, place, tmp_path / "here"))
        assert makers[1].folder.exists(), "its process lives"
    finally:
        for maker in makers:
            maker.kill()


@pytest.mark.parametrize(
    ("holder", "age_s", "stays"),
    [
        (None, 60.0, True),  # made in this moment
        (None, OLD_S + 60.0, True),  # it is not empty, and nobody says that it was ours
        (identify(), OLD_S + 60.0, True),
        ({**identify(), "start_ticks": 1}, 0.0, False),
        (ELSEWHERE, 60.0, True),
        (ELSEWHERE, OLD_S + 60.0, False),
    ],
)
def test_only_a_temporary_folder_that_nobody_uses_is_removed(
    tmp_path: Path, holder: object, age_s: float, stays: bool
) -> None:
    folder = place(tmp_path, holder, age_s).rename(tmp_path / "prony-git-abcd1234")
    remove_temporary(tmp_path, "prony-verify-")
    assert folder.exists()
    remove_temporary(tmp_path, "prony-git-")
    assert folder.exists() == stays


def test_the_temporary_folder_of_another_user_stays(make_user: Callable[..., Any], tmp_path: Path) -> None:
    folder = place(tmp_path, {**identify(), "start_ticks": 1}).rename(tmp_path / "prony-git-abcd1234")
    os.chown(folder, make_user().uid, -1)
    remove_temporary(tmp_path, "prony-git-")
    assert (folder / "run" / "steps.csv").exists()


def test_no_temporary_folder_is_made_where_others_could_replace_it(
    commons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a temporary folder for all that is not sticky, a survey would read what somebody else put there."""
    commons.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(commons))
    seen: list[Path] = []
    monkeypatch.setattr(sampler, "sample", lambda folder, **_: seen.append(folder))
    monkeypatch.setattr(sampler, "read_recording", lambda _: Recording())
    sampler.survey(0.0)
    assert not seen[0].is_relative_to(commons)
    with pytest.raises(NotPlain, match="others can write to"):
        recording.user_folder()


def test_a_folder_of_another_machine_of_this_name_stays_while_it_is_held(tmp_path: Path) -> None:
    """Two machines with one host name and one TMPDIR: the other's process is not found here, its lock is."""
    folder = tmp_path / "prony-verify-abcdefgh"
    folder.mkdir(0o700)
    (folder / HOLDER).write_text(json.dumps({**identify(), "boot_id": "another"}))
    with (folder / HOLDER).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        remove_temporary(tmp_path, "prony-verify-")
        assert folder.exists()
    remove_temporary(tmp_path, "prony-verify-")
    assert not folder.exists()


def test_the_program_of_a_job_is_not_put_where_others_can_exchange_it(tmp_path: Path) -> None:
    place, here = tmp_path / "open", tmp_path / "here"
    place.mkdir()
    here.mkdir()
    place.chmod(0o777)
    code = "import sys\nfrom pathlib import Path\n" + MAKERS["prony-node-"].replace(
        "runpy.run_module = lambda *_, **__: os.read(given, 1)",
        "runpy.run_module = lambda *_, **__: print(sys.path[0])",
    )
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run([sys.executable, "-c", code], cwd=here, env=environment, text=True, capture_output=True,
                          timeout=120, check=True)  # fmt: skip
    assert done.stdout.strip().endswith("node.zip")
    assert not done.stdout.startswith(str(place))

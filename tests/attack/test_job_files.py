"""The files of jobs: logs without end fill no disk, nobody else can write to any, and halves of them do not stay."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prony.sites import collect
from prony.sites.collect import LogTail, read_text
from prony.sites.job import BlockRun, Job, close_job, load, new_job, save_job
from prony.sites.jobs import Jobs
from prony.sites.kubernetes import Receiver
from prony.sites.site import read_site
from prony_node.contract import Plan, RequestError, Trial
from prony_node.contract.cache import JOBS_LOCK, OLD_S, remove_leftovers
from prony_node.contract.files import MOST_BYTES, Ends, Frame, encode, in_parts

GAP = re.compile(rb"\[prony: ([0-9,]+) bytes were left out here")
ENDLESS = "#!/bin/sh\nexec yes 'a line of sixty-four bytes, which is long enough for a test of logs'\n"
CLI = [sys.executable, "-m", "prony"]


@dataclass(frozen=True)
class Place:
    """A root, and a site of this machine with a program in the place of Python."""

    root: Path
    site: Path
    program: Path

    def job(self, text: str = "#!/bin/sh\n", **fields: Any) -> Job:
        self.program.write_text(text, encoding="utf-8")
        self.program.chmod(0o755)
        site = read_site(self.site)
        run = BlockRun(Plan(run_id="gpt-tiny-0", trial=Trial("gpt-tiny", {"steps": 2}), energy=False))
        return new_job(site, site.partitions[""], self.root, [run], time_s=60.0, **fields)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("prony.sites.jobs.FILES_LAG_S", 0.1)
    (tmp_path / "runs").mkdir(mode=0o755)
    program, site = tmp_path / "program", tmp_path / "here.yaml"
    site.write_text(json.dumps({"kind": "local", "python": str(program)}), encoding="utf-8")
    return Place(tmp_path / "runs", site, program)


@pytest.fixture(params=[0o000, 0o002, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def until_ended(job: Job) -> Job:
    for _ in range(300):
        Jobs(job.root, print).update()
        if load(job.folder).state == "ended":
            return load(job.folder)
        time.sleep(0.1)
    raise AssertionError("the job did not end")


def left_out(content: bytes) -> int:
    (count,) = GAP.findall(content)
    return int(count.replace(b",", b""))


def test_a_job_that_prints_without_end_is_cut_while_it_runs_and_nobody_looks(place: Place) -> None:
    """It filled the disk: the log of a job had no limit."""
    job = place.job(ENDLESS)
    Jobs(place.root, print).add([job])
    log = job.run_log(0)
    try:
        for _ in range(300):
            if log.exists() and GAP.search(read_part(log)):
                break
            time.sleep(0.1)
        else:
            raise AssertionError("its log was never cut")
    finally:
        Jobs(place.root, print).cancel([load(job.folder)])
        Jobs(place.root, print).cancel([load(job.folder)])
    until_ended(job)
    assert MOST_BYTES // 2 < log.stat().st_size <= MOST_BYTES
    assert left_out(log.read_bytes()) > 0


def read_part(log: Path) -> bytes:
    with log.open("rb") as file:
        file.seek(MOST_BYTES // 2)
        return file.read(1000)


def test_what_a_scheduler_wrote_is_cut_and_closed_once_the_job_has_ended(place: Place) -> None:
    job = save_job(place.job())
    for name in ("job.log", "run-000.log", "answer"):
        (job.folder / name).write_bytes(b"begin" + b"x" * (MOST_BYTES + 100) + b"end")
        (job.folder / name).chmod(0o666)
    close_job(job)
    for name in ("job.log", "run-000.log", "answer"):
        content = (job.folder / name).read_bytes()
        assert len(content) <= MOST_BYTES
        assert (content[:5], content[-3:]) == (b"begin", b"end")
        assert (job.folder / name).stat().st_mode & 0o022 == 0


def test_closing_a_job_cuts_nothing_through_a_link(place: Place, tmp_path: Path) -> None:
    """Others who may write to the root put a link to a folder of ours in the place of all jobs."""
    job = save_job(place.job())
    theirs = tmp_path / "thesis"
    (theirs / job.id).mkdir(parents=True)
    precious = theirs / job.id / "training.log"
    with precious.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    job.folder.parent.rename(tmp_path / "old")
    job.folder.parent.symlink_to(theirs)
    close_job(job)
    assert precious.stat().st_size == MOST_BYTES + 1
    job.folder.parent.unlink()
    (tmp_path / "old").rename(job.folder.parent)
    os.link(precious, job.folder / "job.log")
    close_job(job)
    assert precious.stat().st_size == MOST_BYTES + 1, "a file with another name elsewhere"


def test_a_log_of_ten_gigabytes_is_read_by_its_head_and_its_tail(place: Place) -> None:
    job = save_job(place.job())
    with (job.folder / "job.log").open("wb") as log:
        log.write(b"begin\n")
        log.seek(10 * 2**30)
        log.write(b"\nthe end\n")
    text = read_text(job.folder / "job.log")
    assert len(text) <= MOST_BYTES
    assert text.startswith("begin\n")
    assert text.endswith("\nthe end\n")
    assert left_out(text.encode()) + len(text) == pytest.approx(10 * 2**30, abs=1000)


def test_following_a_log_goes_on_after_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogTail(tmp_path / "job.log")
    assert log.read() == ""
    path = tmp_path / "job.log"
    path.write_bytes(b"one\ntwo\nhal")
    assert log.read() == "one\ntwo\n"
    with path.open("ab") as file:
        file.write(b"f\n")
    assert log.read() == "half\n"
    path.write_bytes(b"one\n")
    assert log.read() == ""
    with path.open("ab") as file:
        file.write(b"more\nlast")
    assert (log.read(), log.read(last=True)) == ("more\n", "last")
    monkeypatch.setattr(collect, "MOST_BYTES", 100)
    path.write_bytes(b"x" * 1000)
    assert len(LogTail(path).read()) == 1000, "a line without an end is not waited for"


def test_a_stream_is_kept_as_a_log_of_it_would_be() -> None:
    ends, numbers = Ends(40_000), itertools.count()
    for number in itertools.islice(numbers, 100_000):
        ends.add(b"%09d\n" % number)
    content = ends.text()
    assert len(content) <= 40_000
    assert content.startswith(b"000000000\n")
    assert content.endswith(b"000099999\n")
    (said,) = re.findall(rb"\n\[prony: [^]]*\]\n", content)
    assert left_out(content) + len(content) - len(said) == 1_000_000


def test_words_of_a_pod_without_end_take_neither_memory_nor_disk(place: Place) -> None:
    job = save_job(place.job())
    receiver = Receiver(job)
    for _ in range(300):
        receiver.feed(b"x" * 2**20)  # a line that never ends, too
    receiver.finish(whole=True)
    assert MOST_BYTES // 2 < (job.folder / "job.log").stat().st_size <= MOST_BYTES
    assert left_out((job.folder / "job.log").read_bytes()) > 200 * 2**20


def test_the_log_of_a_pod_is_bounded_where_it_is_written(tmp_path: Path) -> None:
    """On a volume it lies where its owner's quota is."""
    folder = tmp_path / "runs" / ".jobs" / "prony-20260101T000000-abcdef"
    folder.mkdir(parents=True)
    script = b'yes "$(printf %01000d 0)" | head -c 100000000\n'
    argv = [sys.executable, "-m", "prony_node", "carry", "--job", str(folder)]
    subprocess.run(argv, input=script, stdout=subprocess.DEVNULL, timeout=120, check=True)
    assert MOST_BYTES // 2 < (folder / "job.log").stat().st_size <= MOST_BYTES


def test_nothing_of_a_job_is_writable_by_others_whatever_the_umask(place: Place, umask: int) -> None:
    """Logs, and what a script writes, had the permissions of the umask."""
    job = place.job("#!/bin/sh\numask; echo words; exit 3\n")
    Jobs(place.root, print).add([job])
    assert until_ended(job).outcome is not None
    made = [job.folder.parent, *job.folder.parent.rglob("*")]
    assert {"ended", "job.log", "run-000.log"} <= {path.name for path in made}
    assert [path.name for path in made if path.stat().st_mode & 0o022] == []
    assert job.run_log(0).read_text() == f"{umask:04o}\nwords\n", "the run itself has the user's umask"


def test_what_comes_from_a_pod_is_writable_by_its_owner_alone(place: Place, umask: int) -> None:
    job = save_job(place.job())
    receiver = Receiver(job)
    (whole,) = in_parts(f"{job.id}/run-000.log", b"words")
    (first, *_) = in_parts(f"{job.id}/run-000.log", b"x" * 10_000)
    for frame in (whole, first):
        receiver.feed(encode(Frame({**frame.header, "file": True, "of_job": True}, frame.body)))
    receiver.feed(b"words\n" + encode(Frame({"end": 0, "bundles": []})))
    receiver.finish(whole=True)
    made = list(job.folder.rglob("*"))
    assert {"job.log", "run-000.log", ".end-000", ".parts", "00000"} <= {path.name for path in made}
    assert [path.name for path in made if path.stat().st_mode & 0o022] == []


def leave(path: Path, age_s: float) -> Path:
    """A half of a file, as its killed writer left it."""
    path.write_text('{"half')
    os.utime(path, (time.time() - age_s,) * 2)
    return path


@pytest.mark.parametrize("words", [("jobs",), ("runs",), ("logs", "latest"), ("collect",), ("query",)])
def test_what_a_killed_writer_left_among_jobs_is_removed_by_the_next_command(
    place: Place, words: tuple[str, ...]
) -> None:
    job = place.job("#!/bin/sh\n")
    Jobs(place.root, print).add([job])
    until_ended(job)
    left = [leave(job.folder / ".job.json.0123abcd.part", 120), leave(job.folder / ".fetched.json.0123abcd", 120)]
    left.append(leave(job.folder.parent / ".kubernetes-0123.json.0123abcd", 120))
    folder = job.folder.with_name(f".{job.id}.0123abcd")
    folder.mkdir()
    left.append(leave(folder / ".job.json.0123abcd.part", 120))
    os.utime(folder, (time.time() - 120,) * 2)
    stays = [leave(job.folder / ".notes", 120), leave(job.folder / ".job.json.4567abcd.part", 0)]
    subprocess.run([*CLI, *words, "--runs", str(place.root)], capture_output=True, timeout=60, check=False)
    assert [path.name for path in (*left, folder) if path.exists()] == []
    assert [path.exists() for path in stays] == [True, True], "what is no half of Prony's, or was written just now"


def test_what_somebody_may_be_writing_stays(place: Place) -> None:
    """Whoever writes to a job holds the lock; on a file system without locks a day decides."""
    job = save_job(place.job())
    half = leave(job.folder / ".job.json.0123abcd.part", OLD_S / 2)
    jobs = Jobs(place.root, print)
    with jobs._alone():
        leave(half, OLD_S / 2)
        assert remove_leftovers(place.root) == []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fcntl.flock", no_locks)
        assert remove_leftovers(place.root) == []
        leave(half, OLD_S + 60)
        assert remove_leftovers(place.root) == [half.name]
    leave(half, 120)
    assert remove_leftovers(place.root) == [half.name]


def no_locks(*_: object) -> None:
    raise OSError(95, "Operation not supported")


def test_a_link_or_another_users_half_among_jobs_stays(place: Place, tmp_path: Path) -> None:
    job = save_job(place.job())
    with Jobs(place.root, print)._alone():
        pass
    (tmp_path / "precious").mkdir()
    leave(tmp_path / "precious" / ".x.0123abcd.part", OLD_S + 60)
    (job.folder.parent / f".{job.id}.0123abcd").symlink_to(tmp_path / "precious")
    (job.folder / ".job.json.0123abcd.part").symlink_to(tmp_path / "precious" / ".x.0123abcd.part")
    assert remove_leftovers(place.root) == []
    if os.geteuid() == 0:
        half = leave(job.folder / ".job.json.4567abcd.part", 120)
        os.chown(half, 61234, 61234)
        assert remove_leftovers(place.root) == []
        os.chown(job.folder.parent, 61234, 61234)
        os.chown(half, 0, 0)
        assert remove_leftovers(place.root) == []
    assert (job.folder.parent / JOBS_LOCK).stat().st_size == 0


def test_a_wrong_python_of_a_site_is_said_by_its_key_and_file(place: Place) -> None:
    job = place.job()
    place.program.chmod(0o644)
    with pytest.raises(RequestError) as refused:
        Jobs(place.root, print).add([job])
    assert f"python: {place.program}" in str(refused.value)
    assert str(place.site) in str(refused.value)
    assert "PRONY_PYTHON" not in str(refused.value)
    assert not job.folder.exists()
    assert [path.name for path in (place.root / ".jobs").iterdir()] == [JOBS_LOCK]

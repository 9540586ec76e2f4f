"""Run folders that come back through a log: whole, once, and nowhere but where they belong."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import pytest
from kubernetes_jobs import ANY, make_job, make_run, make_site

from prony.sites import kubernetes
from prony.sites.collect import collect_all
from prony.sites.job import Job, save_job
from prony.sites.kubernetes import Receiver, unpack
from prony_node.contract.files import Frame, encode, in_parts
from prony_node.run.job_script import LARGEST_BYTES, LEFT_OUT, Sender, bundle

RUN = "gpt-tiny-20260101T000000-000000"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return save_job(make_job(make_site(ANY), [make_run(0, device="cpu")], tmp_path / "here"))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there" / RUN
    (folder / "rank1").mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    (folder / "progress.jsonl").write_text('{"step": 1}\n')
    (folder / "steps.csv").write_bytes(random.Random(0).randbytes(50_000))
    (folder / "rank1" / "rank1.log").write_text("words\n")
    return folder


def sent(folder: Path, *, record: bool = True) -> bytes:
    """The log of a pod: live frames, more progress, the record with everything, the end; other words between."""
    out = io.BytesIO()
    sender = Sender(folder.parent, out)
    sender.look()
    with (folder / "progress.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    sender.look()
    sender.write(b"@prony/1 words of someone else\n\xff\xfe\n")
    if record:
        (folder / "record.json").write_text('{"status": "ok"}')
        sender.look()  # a record without its manifest waits for it
        (folder / "manifest.json").write_text("{}")
        sender.look()
        sender.end(0)
    return out.getvalue()


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_folder_arrives_as_it_was(job: Job, there: Path) -> None:
    receiver = Receiver(job)
    receiver.feed(sent(there))
    receiver.finish(whole=True)
    assert receiver.ended
    assert content(job.root / RUN) == content(there)
    assert b"words of someone else" in (job.folder / "job.log").read_bytes()


def test_a_log_read_in_pieces_twice_and_out_of_order_gives_the_same(job: Job, there: Path) -> None:
    log = sent(there)
    chance = random.Random(1)
    for begin in (0, len(log) // 2, 0):  # again from the middle, and from the start: another process each time
        receiver, at = Receiver(job), log.rfind(b"\n", 0, begin) + 1
        while at < len(log):
            size = chance.randrange(1, 5000)
            receiver.feed(log[at : at + size])
            at += size
        receiver.finish(whole=begin == 0)
    lines = log.splitlines(keepends=True)
    chance.shuffle(lines)
    Receiver(job).feed(b"".join(lines))
    assert content(job.root / RUN) == content(there)


def test_what_is_there_when_a_pod_is_lost_is_here_as_well(job: Job, there: Path) -> None:
    receiver = Receiver(job)
    receiver.feed(sent(there, record=False))
    assert not receiver.ended
    assert (job.root / RUN / "plan.json").read_text() == "{}"
    assert (job.root / RUN / "progress.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_missing_part_is_noticed_and_comes_with_the_next_reading(job: Job, there: Path) -> None:
    log = sent(there)
    lines = log.splitlines(keepends=True)
    whole = [number for number, line in enumerate(lines) if len(line) > 7000]
    damaged = [line for number, line in enumerate(lines) if number != whole[3]]
    receiver = Receiver(job)
    receiver.feed(b"".join(damaged))
    assert not receiver.ended
    assert not (job.root / RUN / "record.json").exists()
    receiver.feed(log)
    assert receiver.ended
    assert content(job.root / RUN) == content(there)


def test_a_record_that_is_here_is_not_replaced(job: Job, there: Path) -> None:
    (job.root / RUN).mkdir(parents=True)
    (job.root / RUN / "record.json").write_text("mine")
    Receiver(job).feed(sent(there))
    assert (job.root / RUN / "record.json").read_text() == "mine"


@pytest.mark.parametrize("whole", [False, True])
def test_nobody_takes_a_folder_that_is_arriving_for_lost(
    job: Job, there: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Another verb looks at the runs after every file that is written."""
    (there / "plan.json").write_text(json.dumps(job.runs[0].plan.to_json()))
    (there / "supervisor.json").write_text(json.dumps({"role": "supervisor", "job": job.id, "pid": 1, "host": "pod"}))
    write = kubernetes._write

    def beside(root: Path, path: Path, body: bytes) -> None:
        write(root, path, body)
        assert collect_all(job.root) == []

    monkeypatch.setattr(kubernetes, "_write", beside)
    if whole:
        (there / "record.json").write_text('{"status": "ok"}')
        Receiver(job).feed(b"".join(map(encode, in_parts(RUN, bundle(there)))))
        assert content(job.root / RUN) == content(there)
    else:
        Receiver(job).feed(sent(there, record=False))
        assert {"plan.json", "supervisor.json"} <= set(content(job.root / RUN))


@pytest.mark.parametrize(
    "header",
    [
        {"append": "../progress.jsonl", "at": 0},
        {"append": "/tmp/progress.jsonl", "at": 0},
        {"append": f"{RUN}/../progress.jsonl", "at": 0},
        {"append": f"{RUN}/record.json", "at": 0},
        {"append": f"{RUN}/progress.jsonl", "at": "0"},
        {"append": f"{RUN}/progress.jsonl", "at": 99},
        {"append": 5, "at": -1},
        {"bundle": "another-run", "part": 0, "of": 1, "sha256": "0" * 64},
        {"bundle": RUN, "part": 0, "of": 10**9, "sha256": "0" * 64},
        {"bundle": RUN, "part": 0, "of": 1, "sha256": "../../x"},
        {"bundle": RUN, "part": 1, "of": 1, "sha256": "0" * 64},
        {"bundle": f"{RUN}/../../x.json", "file": True, "part": 0, "of": 1, "sha256": "0" * 64},
        {"bundle": "prony-20260101T000000-abcdef/job.json", "file": True, "of_job": True, "part": 0, "of": 1},
        {"end": 0, "bundles": [RUN]},
        {"nothing": 1},
    ],
)
def test_frames_that_are_not_of_this_job_write_nothing(job: Job, header: dict[str, object]) -> None:
    before = content(job.root.parent)
    Receiver(job).feed(encode(Frame(header, b"evil")))
    after = content(job.root.parent)
    assert {name: body for name, body in after.items() if ".parts/" not in name} == before


def test_a_bundle_that_says_it_is_of_the_job_is_still_a_run_folder(job: Job, there: Path) -> None:
    """Else a pod could put a file in the place of a run folder."""
    frames = [Frame({**frame.header, "of_job": True}, frame.body) for frame in in_parts(RUN, bundle(there))]
    Receiver(job).feed(b"".join(map(encode, frames)))
    assert content(job.root / RUN) == content(there)


def test_an_archive_stays_in_its_folder(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        for name in ("../out", "/out", "a/../../out"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("good"), io.BytesIO())
    unpack(stream.getvalue(), tmp_path / "run")
    assert set(content(tmp_path)) == {"run/good"}


def test_a_file_too_large_for_a_log_is_named_instead(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    unpack(bundle(tmp_path), tmp_path / "run")
    assert (tmp_path / "run" / LEFT_OUT).read_text() == f"{LARGEST_BYTES + 1} huge\n"


def test_a_node_other_than_the_first_has_folders_of_its_own(tmp_path: Path) -> None:
    job = save_job(make_job(make_site(), [make_run(0, nodes=2)], tmp_path))
    frames = in_parts(f"{RUN}.node1", bundle(Path(__file__).parent / "nothing"))
    for node, there in ((0, False), (1, True)):
        Receiver(job, node).feed(b"".join(encode(frame) for frame in frames))
        assert (job.folder / ".parts" / f"{node:03d}-{RUN}.node1.bundle").exists() is there


def test_a_damaged_bundle_brings_no_record(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps({"status": "ok"}))
    (tmp_path / "zeros").write_bytes(random.Random(2).randbytes(9999))
    unpack(bundle(tmp_path)[:-100], tmp_path / "run")
    assert not (tmp_path / "run" / "record.json").exists()

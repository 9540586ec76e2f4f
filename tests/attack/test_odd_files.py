"""FIFOs, devices, links and files without end under the names of a run folder's files: nothing waits or reads on."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prony.sites.collect import collect_all
from prony.sites.local import LocalRun
from prony.sites.site import example_sites, find_site
from prony.store import Store
from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.run_folder import NO, manifest_mark
from prony_node.contract.safe_files import NotPlain, plain_lines
from prony_node.contract.trial import Plan, Trial
from prony_node.run.claim import claim

REPLAY = Path(__file__).parents[1] / "replay" / "records"
SOURCE = Path(__file__).parents[2] / "src"
GOOD = "resnet50-20260302T090000-c00000"
OTHER = "resnet50-20260302T090100-c00001"
NAMES = (files.RECORD, files.PLAN, files.SUPERVISOR, files.STEPS, files.MANIFEST, files.PROGRESS, files.POWER,
         files.POWER_SAMPLES, files.RESULT, files.SUPERVISOR_LOG, files.LOG)  # fmt: skip
MEMORY = 2 * 2**30  # bytes of address space; reading one of these files whole takes more


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("/nowhere/record.json")


def endless(path: Path) -> None:
    """A sparse file of 100 GB, which takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(100 * 10**9)


# Each verb in one process, so that the test starts Python once.
SCRIPT = """
import json, sys
from typer.testing import CliRunner
from prony.cli.main import make_app
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(make_app(words[0]), words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
print("all ended")
"""


def run_verbs(*verbs: list[str], timeout_s: float = 60, memory: int = MEMORY) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(verbs)], timeout=timeout_s, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )  # fmt: skip
    assert done.stdout.strip().endswith("all ended"), done.stderr[-2000:]


def said(*words: str, runs: Path) -> str:
    """What a verb prints, on both of its outputs."""
    argv = [sys.executable, "-m", "prony", *words, "--runs", str(runs)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (GOOD, OTHER):
        shutil.copytree(REPLAY / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


@pytest.mark.parametrize("make", [fifo, link_to_zeros, link_to_itself, link_to_nothing, endless])
def test_no_verb_hangs_or_takes_the_memory_for_an_odd_file(
    root: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """One run folder for each name, with the odd file in place of that one."""
    for name in NAMES:
        folder = shutil.copytree(REPLAY / GOOD, root / f"odd-{name}")
        (folder / name).unlink(missing_ok=True)
        try:
            make(folder / name)
        except OSError as error:
            pytest.skip(f"this file system or user cannot make it: {error}")
    runs = ["--runs", str(root)]
    odd = [str(root / f"odd-{name}") for name in NAMES if name != files.RECORD]
    run_verbs(
        ["runs", *runs], ["show", odd[0], *runs], ["compare", odd[0], str(root / OTHER), *runs],
        ["query", *runs], ["verify", str(root), *runs], ["logs", odd[-1], *runs],
        ["store", "rebuild", *runs], ["store", "export", str(tmp_path / "x.tar"), *runs],
        ["store", "import", str(tmp_path / "x.tar"), "--runs", str(tmp_path / "there")],
    )  # fmt: skip
    run_verbs(["report", *runs], memory=resource.RLIM_INFINITY)  # what draws its plots reserves memory by the gigabyte


@pytest.mark.parametrize("make", [link_to_zeros, link_to_itself, link_to_nothing])
def test_a_record_that_is_a_link_is_named_by_every_verb(root: Path, make: Callable[[Path], None]) -> None:
    """A link that leads nowhere does not exist, as most questions of the system go, and the run was left out unsaid."""
    path = root / GOOD / files.RECORD
    path.unlink()
    make(path)
    for words in (["runs"], ["query"], ["report"], ["store", "rebuild"]):
        assert f"{GOOD} is left out: its record cannot be read: it is a symbolic link" in said(*words, runs=root)
    assert "it is a symbolic link" in said("show", str(root / GOOD), runs=root)
    assert f"NOT VERIFIED  {root / GOOD}" in said("verify", str(root), runs=root)
    assert f"NOT VERIFIED  {root / GOOD}" in said("verify", str(root / GOOD), runs=root)
    assert path.is_symlink(), "and nothing is written over it"


def test_a_manifest_that_is_a_link_to_nothing_is_a_manifest_that_does_not_agree(root: Path) -> None:
    link_to_nothing(root / GOOD / files.MANIFEST)
    assert manifest_mark(root / GOOD) == NO
    assert "NOT VERIFIED" in said("verify", str(root / GOOD), runs=root)


def test_a_plan_and_a_link_for_a_record_are_not_completed(root: Path) -> None:
    """The run would be listed as one without a record yet, and a supervisor would measure what it cannot write."""
    run = LocalRun(Plan(GOOD, Trial("gpt-tiny")), root)
    shutil.rmtree(run.folder)
    files.create_folder(run.folder, {files.PLAN: run.plan.to_json()})
    link_to_nothing(run.folder / files.RECORD)
    assert collect_all(root) == []
    found = Store(root).refresh()
    assert (found.unfinished, [one.folder for one in found.skipped]) == ([], [run.folder])
    with pytest.raises(RequestError, match="already holds a record"):
        claim(run.plan, run.folder)
    with pytest.raises(RequestError, match="nothing is overwritten"):
        run.collect()


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.jsonl", "x.csv", "x.parquet", "anchors.csv", "study.yaml"])
def test_a_fifo_is_not_waited_for_where_a_file_is_to_be_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    words = ["store", "import", str(tmp_path / name), "--runs", str(tmp_path / "runs")]
    if name == "anchors.csv":
        words += ["--as", "csv", "--source", "a paper"]
    run_verbs(["study", "plan", str(tmp_path / name)] if name == "study.yaml" else words, timeout_s=20)


@pytest.mark.parametrize("make", [fifo, link_to_zeros, link_to_itself, endless])
def test_an_odd_file_among_the_sites_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("PRONY_SITES", str(tmp_path))
    make(tmp_path / "odd.yaml")
    run_verbs(["site", "list"], ["site", "show", "odd"], ["jobs", "--runs", str(tmp_path / "runs")],
              ["run", "quick", "--site", str(tmp_path / "odd.yaml"), "--dry-run"], timeout_s=20)  # fmt: skip


def test_a_site_file_may_be_reached_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps their configuration in a repository links it into place."""
    monkeypatch.setenv("PRONY_SITES", str(tmp_path))
    (tmp_path / "kept").write_text(example_sites()["jureca"])
    (tmp_path / "ours.yaml").symlink_to("kept")
    assert find_site("ours").kind == "slurm"


def test_json_of_a_few_bytes_a_value_is_not_read_into_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / files.RECORD
    path.write_bytes(b"[" + b"[]," * 20_000_000 + b"[]]")
    assert files.read_json(path) is None
    path.write_bytes(b"[" + b"[]," * 1000 + b"[]]")
    assert len(files.read_json(path) or ()) == 1001


def test_lines_are_read_up_to_a_limit_and_no_line_is_without_end(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("a\nb\n")
    assert list(plain_lines(path)) == ["a\n", "b\n"]
    with pytest.raises(NotPlain):
        list(plain_lines(path, limit=3))
    endless(path)
    with pytest.raises(NotPlain):
        list(plain_lines(path))


def test_packed_samples_that_unpack_to_much_more_are_not_read(tmp_path: Path) -> None:
    from prony_node.power.recording import Writer, read_recording
    from prony_node.power.sensor import Sensor

    sensor = Sensor("made.power x", "made", "instantaneous", "gpu", "x", "Made", period_s=0.05)
    Writer(tmp_path, [sensor], {"reasons": {}}).close()
    (tmp_path / files.POWER_SAMPLES).unlink()
    line = b"0,1,0,1,\n"
    (tmp_path / f"{files.POWER_SAMPLES}.gz").write_bytes(gzip.compress(line * 1_000_000, 9))
    recording = read_recording(tmp_path)
    assert recording is not None
    assert len(recording.traces[0].readings) < 500_000

"""Jobs of this machine: they outlive the controller, end whole, and leave a record however they end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from processes import need_proc
from prony.cli.main import make_app
from prony.sites import jobs as jobs_module
from prony.sites.job import BlockRun, Job, load, make_jobs
from prony.sites.jobs import Jobs
from prony.sites.protocol import LAUNCHERS
from prony.sites.site import read_site
from prony_node.contract import Plan, Trial, files, plugins, read_record
from prony_node.contract.machine import is_alive

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0

Submit = Callable[[str], Job]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Two runs of the rank without torch, that behaves as told, as one job."""
    monkeypatch.setattr(jobs_module, "FILES_LAG_S", 0.5)

    def start(stand_in: str) -> Job:
        variables = {"PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": stand_in}
        variables["PYTHONPATH"] = str(ROOT / "tests" / "stand_in")
        file = tmp_path / "here.yaml"
        file.write_text(
            json.dumps({"kind": "local", "python": sys.executable, "environment": {"variables": variables}})
        )
        site = read_site(file)
        plans = [
            Plan(run_id=f"gpt-tiny-{number}", trial=Trial("gpt-tiny", {"steps": 2}), energy=False) for number in (0, 1)
        ]
        made, _ = make_jobs(
            site, site.partitions[""], tmp_path / "runs", [BlockRun(plan) for plan in plans], time_s=60.0
        )
        Jobs(tmp_path / "runs", print).add(made)
        return load(made[0].folder)

    return start


def until(job: Job, holds: Callable[[Job], bool]) -> Job:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        Jobs(job.root, print).update()
        now = load(job.folder)
        if holds(now):
            return now
        assert time.monotonic() < end_s, now
        time.sleep(0.1)


def measuring(job: Job) -> bool:
    progress = job.run_folder(job.runs[0]) / files.PROGRESS
    return progress.exists() and '"measure"' in progress.read_text()


def processes_of(job: Job) -> list[int]:
    """Processes of the job's session."""
    need_proc()
    found = []
    leader = json.loads(str(job.handle))["pid"]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == leader and is_alive(
                {**json.loads(str(job.handle)), "pid": int(entry.name), "start_ticks": None}
            ):
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def test_a_block_runs_to_its_end(submit: Submit) -> None:
    job = until(submit("pace=0"), lambda job: job.state == "ended")
    assert job.outcome is not None
    assert job.outcome.state == "COMPLETED"
    records = [read_record(job.run_folder(run)) for run in job.runs]
    assert [record["status"] for record in records if record] == ["ok", "ok"]


def test_cancelling_ends_every_process_and_records_what_had_begun(submit: Submit) -> None:
    job = until(submit("measure=hang"), measuring)
    assert len(processes_of(job)) >= 3
    done = CliRunner().invoke(make_app("cancel"), ["cancel", job.runs[0].plan.run_id, "--runs", str(job.root)])
    assert done.exit_code == 0, done.output
    ended = until(job, lambda job: job.state == "ended")
    assert ended.outcome is not None
    assert ended.outcome.state == "CANCELLED"
    record = read_record(job.run_folder(job.runs[0]))
    assert record is not None
    assert (record["status"], record["failure"]["kind"]) == ("interrupted", "interrupted")
    assert not job.run_folder(job.runs[1]).exists()
    until(ended, lambda job: not processes_of(job))


def test_a_job_that_is_killed_is_recorded_at_collection(submit: Submit) -> None:
    job = until(submit("measure=hang"), measuring)
    found = processes_of(job)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them sees the end of another and says so
        for pid in found:
            with contextlib.suppress(ProcessLookupError):  # a rank ends with its supervisor
                os.kill(pid, number)
    done = CliRunner().invoke(make_app("collect"), ["collect", "--wait", "--runs", str(job.root)])
    assert "recorded at collection" in done.output
    record = read_record(job.run_folder(job.runs[0]))
    assert record is not None
    assert (record["status"], record["failure"]["kind"]) == ("failed", "lost")


def test_a_sweep_that_nobody_waited_for_is_collected_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "FILES_LAG_S", 0.5)
    variables = {"PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": "pace=0.2"}
    variables["PYTHONPATH"] = str(ROOT / "tests" / "stand_in")
    file, root = tmp_path / "here.yaml", tmp_path / "runs"
    file.write_text(json.dumps({"kind": "local", "python": sys.executable, "environment": {"variables": variables}}))
    words = ["sweep", "gpt-tiny", "steps=2", "seed=0,1", "--no-energy", "--json", "--time", "5m", "--detach"]
    words += ["--site", str(file), "--out", str(root)]
    first = CliRunner().invoke(make_app("sweep"), words)
    assert first.exit_code == 0, first.output
    (job,) = Jobs(root, print).all()
    assert (first.stdout.strip(), len(job.runs)) == (job.id, 2)
    assert "the same command again collects what has ended" in first.stderr
    until(job, lambda job: job.state == "ended")
    again = CliRunner().invoke(make_app("sweep"), words)
    assert [record["status"] for record in json.loads(again.stdout)] == ["ok", "ok"]
    assert len(Jobs(root, print).all()) == 1, "nothing is submitted twice"


def test_the_launcher_of_the_guide_makes_a_run(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "developers" / "add-a-launcher.md").read_text()
    guide = types.ModuleType("guide")
    exec(
        compile(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], "docs/developers/add-a-launcher.md", "exec"),
        guide.__dict__,
    )
    monkeypatch.setitem(sys.modules, "guide", guide)
    monkeypatch.setitem(LAUNCHERS, "local", plugins.Plugin(plugins.LAUNCHERS, "local", "guide:AtOnce"))
    job = until(submit("pace=0"), lambda job: job.state == "ended")
    assert [read_record(job.run_folder(run))["status"] for run in job.runs] == ["ok", "ok"]  # type: ignore[index]

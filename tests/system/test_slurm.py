"""Runs on a real Slurm with two nodes and accounting, started here; skipped, with the reason, where there is none.

Most runs are made by a rank without torch (tests/stand_in), since what is tested is what surrounds a run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_bed import SlurmBed, why_not
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.sites import jobs as jobs_module
from prony.sites import slurm as slurm_module
from prony.sites.job import BlockRun, Job, load, make_jobs
from prony.sites.jobs import Jobs
from prony.sites.site import Site, read_site
from prony_node.contract import Plan, Trial, files, read_record

ROOT = Path(__file__).parents[2]
PATIENCE_S = 150.0

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


@pytest.fixture(scope="module")
def bed() -> Iterator[SlurmBed]:
    with tempfile.TemporaryDirectory(prefix="prony-slurm-") as folder:  # a short path: there are sockets in it
        made = SlurmBed(Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.stop()


class Cluster:
    """A root and a site file on the bed, with short pauses: no test waits for the politeness towards a real site."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runs"
        self.file = folder / "bed.yaml"
        self.warnings: list[str] = []
        self.bin = folder / "bin"
        self.bin.mkdir()

    def site(self, stand_in: str | None = "", more: str = "") -> Site:
        """`stand_in` is how the rank without torch behaves; None is the real one."""
        variables = {"OMP_NUM_THREADS": "1"}
        if stand_in is not None:
            variables |= {"PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": stand_in}
            variables["PYTHONPATH"] = str(ROOT / "tests" / "stand_in")
        document = {
            "kind": "slurm", "partition": "debug", "account": "bed", "python": sys.executable, "runs": str(self.root),
            "environment": {"variables": variables},
        }  # fmt: skip
        self.file.write_text(f"{json.dumps(document)[:-1]}{more and ', '}{more}}}")
        return read_site(self.file)

    def jobs(self) -> Jobs:
        return Jobs(self.root, self.warnings.append)

    def submit(self, site: Site, runs: list[BlockRun], **options: Any) -> list[Job]:
        made, _ = make_jobs(site, site.partitions["debug"], self.root, runs, **{"time_s": 600.0, **options})
        self.jobs().add(made)
        return [load(job.folder) for job in made]

    def wait(self, job: Job, until: Callable[[Job], bool] = lambda job: job.state == "ended") -> Job:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            self.jobs().update()
            now = load(job.folder)
            if until(now):
                return now
            assert time.monotonic() < end_s, f"{now.state}: {now.note}; {_logs(now)}"
            time.sleep(0.3)

    def wait_for_phase(self, job: Job, phase: str, number: int = 0) -> None:
        progress = job.run_folder(job.runs[number]) / files.PROGRESS
        self.wait(job, lambda _: progress.exists() and f'"{phase}"' in progress.read_text())

    def record(self, job: Job, number: int = 0) -> dict[str, Any]:
        record = read_record(job.run_folder(job.runs[number]))
        assert record is not None, _logs(job)
        return record

    def replace_command(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)


def _logs(job: Job) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(job.folder.glob("*.log")))


@pytest.fixture
def cluster(bed: SlurmBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("SLURM_CONF", bed.environment["SLURM_CONF"])
    monkeypatch.setattr(slurm_module, "ASK_EVERY_S", 0.4)
    monkeypatch.setattr(slurm_module, "PAUSES_S", (0.2, 0.4, 0.8))
    monkeypatch.setattr(jobs_module, "FILES_LAG_S", 1.0)
    made = Cluster(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


def run_of(number: int = 0, **settings: int | str) -> BlockRun:
    trial = Trial("gpt-tiny", {"steps": 2, **settings})
    return BlockRun(Plan(run_id=f"gpt-tiny-{number:03d}", trial=trial, energy=False))


def prony(*words: str) -> Any:
    return CliRunner().invoke(make_app(words[0]), list(words))


def test_a_run_on_one_node_and_one_on_two_with_torchrun(cluster: Cluster) -> None:
    site = cluster.site(None)
    small = {"device": "cpu", "batch_size": 1, "sequence": 16, "compile": "off"}
    counts = {1: 1, 2: 4}  # nodes to all devices of the run
    one, two = (cluster.submit(site, [run_of(n, nodes=n, devices=all_, **small)])[0] for n, all_ in counts.items())
    ended = cluster.wait(one), cluster.wait(two)
    assert [job.outcome.state for job in ended if job.outcome] == ["COMPLETED", "COMPLETED"]
    for job, ranks in zip(ended, counts.values(), strict=True):
        record = cluster.record(job)
        assert (record["status"], record["failure"]) == ("ok", None)
        assert record["work"]["devices"] == ranks
        assert record["facts"]["environment"]["SLURM_JOB_ID"] == job.handle
    assert [rank["node"] for rank in cluster.record(two)["parallel"]["ranks"]] == [0, 0, 1, 1]


def test_a_command_line_at_a_site_is_as_one_here(cluster: Cluster) -> None:
    cluster.site("pace=0.05")
    dry = prony("run", "gpt-tiny", "steps=2", "--site", str(cluster.file), "--time", "5m", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "#SBATCH --gres=gpu:1" in dry.output, "what the file leaves out was asked from sinfo"
    assert not cluster.root.exists()
    done = prony("run", "gpt-tiny", "steps=2", "--site", str(cluster.file), "--time", "5m", "--json", "--no-energy")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (record["status"], record["trial"]["settings"]) == ("ok", {"steps": 2})
    (job,) = cluster.jobs().all()
    cluster.wait(job)  # the record is there a moment before Slurm says that the job has ended
    listed = json.loads(prony("jobs", "--json", "--runs", str(cluster.root)).stdout)
    assert [(job["state"], job["recorded"]) for job in listed] == [("ended", 1)]
    said = prony("logs", record["id"], "--runs", str(cluster.root)).stdout
    assert "prony: run 000 ended with exit code 0" in said
    again = prony("run", "gpt-tiny", "steps=2", "--site", str(cluster.file), "--dry-run")
    assert "#SBATCH --time=" in again.output, "what it took before is known now"
    longer = prony("run", "gpt-tiny", "steps=2000000", "--site", str(cluster.file), "--dry-run")
    assert "--time says how long" in longer.output, "a short run tells nothing of a long one"


def test_a_study_in_a_block_of_twenty_trials(cluster: Cluster) -> None:
    cluster.site("pace=0")
    study = cluster.file.with_name("study.yaml")
    study.write_text("workloads: gpt-tiny\nsettings: {steps: 2, seed: 0:19:1}\norder: given\n")
    more = ["--site", str(cluster.file), "--json", "--no-energy", "--out", str(cluster.root)]
    done = prony("study", "run", str(study), *more)
    assert done.exit_code == 0, done.output
    (job,) = cluster.jobs().all()
    assert len(job.runs) == 20
    records = [cluster.record(job, number) for number in range(20)]
    assert {record["status"] for record in records} == {"ok"}
    assert [record["trial"]["settings"]["seed"] for record in records] == list(range(20))
    assert [record["started"] for record in records] == sorted(record["started"] for record in records)
    assert {record["facts"]["environment"]["SLURM_JOB_ID"] for record in records} == {job.handle}
    again = prony("study", "resume", str(study), *more)
    assert [record["id"] for record in json.loads(again.stdout)] == [record["id"] for record in records]
    assert len(cluster.jobs().all()) == 1, "what is finished is not submitted again"


def test_a_scaling_series_of_one_and_of_two_nodes_is_one_command(cluster: Cluster) -> None:
    """The ranks are real; the two nodes meet without anyone having said where."""
    cluster.site(None)
    words = [
        "scale",
        "gpt-tiny",
        "devices=1,2",
        "device=cpu",
        "sequence=16",
        "--strong",
        "--nodes",
        "2",
        "--no-diagnose",
    ]
    words += ["--max-time", "2s", "--tolerance", "20%", "--repeats", "1", "--site", str(cluster.file), "--time", "10m"]
    left = prony(*words, "--detach")
    assert left.exit_code == 0, left.output
    assert "strong scaling keeps 8 on all devices together" in left.stderr
    one, two = cluster.jobs().all()
    assert left.stdout.split() == [one.id, two.id]
    assert [[run.plan.trial.settings["devices"] for run in job.runs] for job in (one, two)] == [[1, 2], [4]]
    done = prony(*words, "--json")
    assert done.exit_code == 0, done.output
    (series,) = json.loads(done.stdout)["series"]
    assert [(point["devices"], point["nodes"]) for point in series["points"]] == [(1, 1), (2, 1), (4, 2)]
    assert all(point["efficiency"]["value"] > 0 for point in series["points"]), series
    assert [rank["node"] for rank in cluster.record(two)["parallel"]["ranks"]] == [0, 0, 1, 1]
    assert len(cluster.jobs().all()) == 2, "what was under way was waited for, and not submitted again"
    again = prony(*words)
    assert again.stderr.count("finished before (ok") == 3
    assert "strong scaling: 8 samples per step" in again.stdout


def test_cancel_of_what_runs_and_of_what_waits(bed: SlurmBed, cluster: Cluster) -> None:
    site = cluster.site("measure=hang")
    running, waiting = cluster.submit(site, [run_of(0), run_of(1)], block=1)
    bed.call("scontrol", "hold", str(waiting.handle))
    cluster.wait_for_phase(running, "measure")
    cluster.wait(waiting, lambda job: "JobHeldAdmin" in job.note)
    cancelled = prony("cancel", running.runs[0].plan.run_id, str(waiting.handle), "--runs", str(cluster.root))
    assert cancelled.exit_code == 0, cancelled.output
    for job in (running, waiting):
        ended = cluster.wait(job)
        assert ended.outcome is not None
        assert ended.outcome.state == "CANCELLED"
        record = cluster.record(job)
        assert (record["status"], record["failure"]["kind"]) == ("interrupted", "interrupted")
        assert f"job {job.handle} was cancelled" in record["failure"]["message"]
    assert "its supervisor was interrupted by SIGTERM in phase measure" in cluster.record(running)["failure"]["message"]


def test_the_signal_before_the_time_limit_saves_the_record(cluster: Cluster) -> None:
    (job,) = cluster.submit(cluster.site("measure=hang"), [run_of(0), run_of(1)], time_s=60.0)
    ended = cluster.wait(job)
    record = cluster.record(job)
    assert record["failure"]["kind"] == "time-limit"
    # Slurm sends it up to a minute early, so the run may be in any phase by then.
    assert "the time limit of the job was near in phase" in record["failure"]["message"]
    assert ended.outcome is not None
    assert ended.outcome.state == "COMPLETED", "it ended by itself, in time"
    assert not job.run_folder(job.runs[1]).exists(), "what had no time left did not begin"


def test_a_node_that_goes_down_under_the_job_is_recorded_and_the_run_made_again(
    bed: SlurmBed, cluster: Cluster
) -> None:
    (job,) = cluster.submit(cluster.site("pace=3", "retry_node_failure: 1"), [run_of(0)])
    cluster.wait_for_phase(job, "cold_start")
    node = bed.call("squeue", "-h", "-j", str(job.handle), "-o", "%N").strip()
    bed.call("scontrol", "update", f"nodename={node}", "state=down", "reason=a test")
    try:
        ended = cluster.wait(job)
        assert ended.outcome is not None
        assert ended.outcome.state == "NODE_FAIL"
        record = cluster.record(job)
        assert (record["status"], record["failure"]["kind"]) == ("failed", "node-failure")
        again = load(cluster.root / ".jobs" / str(ended.followed_by))
        cluster.wait(again)
        assert cluster.record(again)["status"] == "ok"
        assert again.runs[0].plan.run_id == "gpt-tiny-000-attempt2"
    finally:
        bed.resume(node)


def test_a_wrong_partition_is_refused_in_words_and_leaves_nothing(cluster: Cluster) -> None:
    cluster.site("")
    cluster.file.write_text(cluster.file.read_text().replace('"debug"', '"nope"'))
    done = prony("run", "gpt-tiny", "steps=2", "--site", str(cluster.file), "--time", "5m")
    assert done.exit_code == 2
    assert "Slurm refused the job: invalid partition specified: nope" in done.output
    assert [path.name for path in cluster.root.iterdir()] == [".jobs"]
    assert cluster.jobs().all() == []


def test_a_full_queue_is_waited_for(bed: SlurmBed, cluster: Cluster) -> None:
    bed.limit_jobs(1)
    try:
        first, second = cluster.submit(cluster.site("pace=1"), [run_of(0), run_of(1)], block=1)
        assert (first.state, second.state) == ("submitted", "waiting")
        assert "the queue is full: AssocMaxSubmitJobLimit" in second.note
        cluster.wait(second)
    finally:
        bed.limit_jobs(-1)
    assert [cluster.record(job)["status"] for job in (first, second)] == ["ok", "ok"]


def test_slurms_controller_killed_and_restarted_midway(bed: SlurmBed, cluster: Cluster) -> None:
    (job,) = cluster.submit(cluster.site("pace=3"), [run_of(0)])
    cluster.wait_for_phase(job, "build")
    bed.keep_state(str(job.handle))
    bed.stop_daemon("slurmctld", signal.SIGKILL)
    try:
        cluster.replace_command("squeue", 'exec timeout 1 /usr/bin/squeue "$@"')  # it would be patient for a minute
        time.sleep(1.0)  # until the last answer is too old to be used
        assert cluster.jobs().update().ended == []
        assert any("asked for again later" in warning for warning in cluster.warnings)
    finally:
        bed.start_controller()
    ended = cluster.wait(job)
    assert ended.outcome is not None
    assert (ended.outcome.state, cluster.record(job)["status"]) == ("COMPLETED", "ok")


def test_our_own_controller_killed_midway_loses_nothing(cluster: Cluster) -> None:
    cluster.site("pace=1")
    argv = [sys.executable, "-m", "prony", "run", "gpt-tiny", "steps=2", "--site", str(cluster.file), "--time", "5m"]
    controller = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not list(cluster.root.glob(f"[!.]*/{files.PROGRESS}")):
            assert time.monotonic() < end_s
            time.sleep(0.1)
    finally:
        controller.kill()
        controller.wait()
    collected = prony("collect", "--wait", "--runs", str(cluster.root))
    assert collected.exit_code == 0, collected.output
    (job,) = cluster.jobs().all()
    assert cluster.record(job)["status"] == "ok"
    kept = (job.run_folder(job.runs[0]) / files.RECORD).read_bytes()
    assert "no job is open" in prony("collect", "--runs", str(cluster.root)).output
    assert (job.run_folder(job.runs[0]) / files.RECORD).read_bytes() == kept


def test_sbatch_that_fails_twice_and_then_works(cluster: Cluster) -> None:
    cluster.replace_command(
        "sbatch",
        'count=$(cat "${0%/*}"/count 2>/dev/null || echo 0); echo $((count + 1)) >"${0%/*}"/count\n'
        'if [ "$count" -lt 2 ]; then echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1; fi\n'
        'exec /usr/bin/sbatch "$@"',
    )
    (job,) = cluster.submit(cluster.site("pace=0"), [run_of(0)])
    assert sum("Unable to contact slurm controller" in warning for warning in cluster.warnings) == 2
    cluster.wait(job)
    assert cluster.record(job)["status"] == "ok"


def test_sacct_that_is_not_available(cluster: Cluster) -> None:
    cluster.replace_command("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    good, bad = cluster.submit(cluster.site("pace=0"), [run_of(0), run_of(1)], block=1)
    ended = cluster.wait(good), cluster.wait(bad)
    assert [job.outcome.state for job in ended if job.outcome] == ["COMPLETED", "COMPLETED"]
    assert any("accounting storage is disabled" in warning for warning in cluster.warnings)
    assert cluster.record(good)["status"] == "ok"


def test_a_site_is_checked_and_its_nodes_are_screened(cluster: Cluster) -> None:
    cluster.site("pace=0")
    checked = prony("site", "check", str(cluster.file))
    assert "a job ran on" in checked.output
    assert "fail     accelerators  torch finds 0" in checked.output, "the GPUs of this Slurm are pretended"
    assert checked.exit_code == 1
    screened = prony("screen", str(cluster.file), "debug", "gpt-tiny", "device=cpu", "steps=2", "--time", "5m")
    assert screened.exit_code == 0, screened.output
    assert "n0" in screened.output
    assert "n1" in screened.output
    assert "can be told from 4 on" in screened.output
    nodes = {
        job.node: cluster.record(job)["facts"]["environment"]["SLURM_JOB_NODELIST"]  # of one node, so its name
        for job in cluster.jobs().all()
        if job.node
    }
    assert nodes == {"n0": "n0", "n1": "n1"}

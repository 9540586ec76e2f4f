"""Jobs from their first file to the records they end in, with a scheduler that does as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jobs_for_tests import SLURM, make_run, make_site

from prony.sites.collect import collect, collect_all
from prony.sites.job import LOG, BlockRun, Job, find_job, into_blocks, load, load_jobs, make_jobs, new_job, save_job
from prony.sites.jobs import Jobs, runs_never_begun
from prony.sites.protocol import QueueFull, Rendered, Status, Statuses, Unanswered
from prony.sites.site import Partition, Site
from prony.sites.slurm import failure_of
from prony_node.contract import Plan, RequestError, files, read_record
from prony_node.contract.machine import identify
from prony_node.contract.record import Failure


class Pretended:
    """A scheduler whose answers the test writes."""

    def __init__(self) -> None:
        self.answers: dict[str, Status] = {}
        self.submissions: list[str] = []
        self.cancelled: list[str] = []
        self.refuse: BaseException | None = None
        self.refused_nodes = 0  # a job of as many is refused for good

    def render(self, job: Job) -> Rendered:
        return Rendered({"job.sh": f"# {job.id}\n"}, ("submit", job.id))

    def submit(self, job: Job, rendered: Rendered) -> str:
        if self.refuse is not None:
            raise self.refuse
        if job.nodes == self.refused_nodes:
            raise RequestError("Slurm refused the job: too many nodes")
        self.submissions.append(job.id)
        handle = str(len(self.submissions))
        self.answers[handle] = Status("queued", "PENDING", "Priority")
        return handle

    def status(self, jobs: Sequence[Job]) -> Statuses:
        return Statuses({job.handle: self.answers[job.handle] for job in jobs if job.handle in self.answers})

    def cancel(self, jobs: Sequence[Job]) -> None:
        self.cancelled += [str(job.handle) for job in jobs]

    def failure(self, job: Job) -> dict[str, str]:
        assert job.outcome is not None
        return failure_of(job.outcome, str(job.handle), job.time_s)

    def fetch(self, job: Job) -> None:
        (job.folder / LOG).write_text("prony: run 000 ended with exit code 127\n")
        job.run_log(0).write_text("bash: line 1: python: command not found\n")

    def nodes(self, site: Site, partition: Partition) -> list[str]:
        return []


class Cluster:
    """Jobs of a root with a pretended scheduler and a clock of its own."""

    def __init__(self, root: Path, text: str = SLURM) -> None:
        self.root, self.site = root, make_site(text)
        self.scheduler, self.now = Pretended(), datetime(2026, 1, 1, tzinfo=UTC)
        self.warnings: list[str] = []
        self.jobs = self.again()

    def again(self) -> Jobs:
        """Another controller: nothing of the one before but its files."""
        return Jobs(self.root, self.warnings.append, lambda kind, warn: self.scheduler, lambda: self.now)

    def add(self, runs: Sequence[BlockRun], size: int = 20) -> list[Job]:
        made, _ = make_jobs(self.site, self.site.partitions["gpu"], self.root, runs, block=size)
        self.jobs.add(made)
        return made

    def end(self, state: str, handle: str = "1", reason: str = "") -> Any:
        self.scheduler.answers[handle] = Status("ended", state, reason, "1:0")
        self.jobs.update()
        self.now += timedelta(seconds=10)
        return self.jobs.update()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def begin(cluster: Cluster, job: Job, run: BlockRun, **more: Any) -> Path:
    """What a supervisor of this job does first."""
    folder = job.run_folder(run)
    holder = {"role": "supervisor", **identify(), "start_ticks": 1, "job": job.id, **more}
    files.create_folder(folder, {files.PLAN: run.plan.to_json(), files.SUPERVISOR: holder})
    return folder


def test_a_job_is_all_in_its_folder(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(0), make_run(1)])
    assert {path.name for path in job.folder.iterdir()} == {
        "job.json", "job.log", "job.sh", "node.zip", "plan-000.json", "plan-001.json",
    }  # fmt: skip
    kept = load(job.folder)
    assert (kept.state, kept.handle, kept.runs) == ("submitted", "1", job.runs)
    assert kept.site == cluster.site
    assert Plan.from_json(files.read_json(job.plan_file(1))) == job.runs[1].plan
    assert save_job(kept) == load(job.folder)
    asked = replace(kept, partition=replace(kept.partition, accelerators=3, gres="gpu:b", arch="arm64"))
    assert save_job(asked) == load(job.folder), "what Slurm said of the partition is not asked again"


def test_a_run_of_a_job_is_left_to_its_scheduler(cluster: Cluster) -> None:
    """On the machine of the job itself the supervisor is seen to be gone, but why it is only the scheduler knows."""
    (job,) = cluster.add([make_run(0)])
    folder = begin(cluster, job, job.runs[0])
    assert collect(folder) is None
    assert collect_all(cluster.root) == []


@pytest.mark.parametrize(
    ("state", "status", "kind"),
    [
        ("TIMEOUT", "failed", "time-limit"), ("OUT_OF_MEMORY", "failed", "out-of-memory"),
        ("NODE_FAIL", "failed", "node-failure"), ("PREEMPTED", "interrupted", "interrupted"),
        ("CANCELLED", "interrupted", "interrupted"), ("FAILED", "failed", "lost"),
    ],
)  # fmt: skip
def test_the_end_of_a_job_is_the_record_of_what_had_begun(cluster: Cluster, state: str, status: str, kind: str) -> None:
    (job,) = cluster.add([make_run(0), make_run(1)])
    folder = begin(cluster, job, job.runs[0])
    changes = cluster.end(state)
    record = read_record(folder)
    assert record is not None
    assert (record["status"], record["failure"]["kind"]) == (status, kind)
    assert changes.recorded == [folder]
    assert not job.run_folder(job.runs[1]).exists()
    assert runs_never_begun(load(job.folder)) == [job.runs[1]]


def test_what_the_supervisor_saw_is_part_of_the_reason(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(0)])
    folder = begin(cluster, job, job.runs[0], ended="interrupted by SIGTERM in phase measure after 20 steps")
    cluster.end("NODE_FAIL")
    record = read_record(folder)
    assert record is not None
    assert record["failure"]["kind"] == "node-failure"
    assert "its supervisor was interrupted by SIGTERM in phase measure" in record["failure"]["message"]


def test_collecting_twice_and_after_a_week_changes_nothing(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(0)])
    folder = begin(cluster, job, job.runs[0])
    cluster.jobs = cluster.again()
    cluster.now += timedelta(days=7)
    cluster.end("NODE_FAIL")
    record, kept = (folder / files.RECORD).read_bytes(), (job.folder / "job.json").read_bytes()
    for _ in range(3):
        cluster.now += timedelta(days=1)
        changes = cluster.again().update()
        assert (changes.ended, changes.recorded, changes.submitted, changes.retried) == ([], [], [], [])
    assert ((folder / files.RECORD).read_bytes(), (job.folder / "job.json").read_bytes()) == (record, kept)


def test_a_job_that_never_ran_says_why_in_one_record(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(number) for number in range(3)])
    cluster.end("FAILED")
    record = read_record(job.run_folder(job.runs[0]))
    assert record is not None
    message = record["failure"]["message"]
    assert "never began; neither did 2 after it" in message
    assert "python: command not found" in message
    assert not job.run_folder(job.runs[1]).exists()


def test_a_run_that_ended_by_itself_is_not_touched(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(0), make_run(1)])
    folder = begin(cluster, job, job.runs[0])
    from prony_node.contract.run_folder import Parts, assemble

    own = assemble(job.runs[0].plan, Parts(), started="", ended="", failure=Failure("time-limit", "near"))
    files.write_once(folder / files.RECORD, own)
    assert cluster.end("COMPLETED").recorded == []
    assert read_record(folder) == own
    assert not job.run_folder(job.runs[1]).exists()


def test_a_lost_node_is_tried_again_and_each_attempt_is_recorded(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SLURM + "retry_node_failure: 1\n")
    (job,) = cluster.add([make_run(0), make_run(1)])
    folder = begin(cluster, job, job.runs[0])
    changes = cluster.end("NODE_FAIL")
    (again,) = changes.retried
    assert load(job.folder).followed_by == again.id
    name = job.runs[0].plan.run_id
    assert [run.plan.run_id for run in again.runs] == [f"{name}-attempt2", job.runs[1].plan.run_id]
    assert [run.plan.trial for run in again.runs] == [run.plan.trial for run in job.runs]
    assert cluster.scheduler.submissions == [job.id, again.id], "the next attempt is submitted at once"
    begin(cluster, again, again.runs[0])
    assert cluster.end("NODE_FAIL", "2").retried == [], "one more attempt was allowed, not two"
    first, second = read_record(folder), read_record(again.run_folder(again.runs[0]))
    assert first is not None
    assert second is not None
    assert [record["failure"]["kind"] for record in (first, second)] == ["node-failure", "node-failure"]
    assert find_job(load_jobs(tmp_path), name).id == job.id


def test_no_more_jobs_than_the_site_allows_are_in_the_queue(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, SLURM + "limits: {jobs: 2}\n")
    made = cluster.add([make_run(number) for number in range(5)], size=1)
    assert len(cluster.scheduler.submissions) == 2
    waiting = [load(job.folder) for job in made if load(job.folder).state == "waiting"]
    assert len(waiting) == 3
    assert "here allows 2 of our jobs in the queue at once" in waiting[0].note
    cluster.jobs = cluster.again()
    cluster.end("COMPLETED")
    assert len(cluster.scheduler.submissions) == 3


def test_a_full_queue_keeps_the_job_for_later(cluster: Cluster) -> None:
    cluster.scheduler.refuse = QueueFull("AssocMaxSubmitJobLimit")
    made = cluster.add([make_run(0), make_run(1)], size=1)
    assert [load(job.folder).state for job in made] == ["waiting", "waiting"]
    assert "the queue is full: AssocMaxSubmitJobLimit" in load(made[0].folder).note
    cluster.scheduler.refuse = None
    cluster.again().update()
    assert [load(job.folder).state for job in made] == ["submitted", "submitted"]


def test_a_job_that_is_refused_leaves_nothing(cluster: Cluster) -> None:
    cluster.scheduler.refuse = RequestError("Slurm refused the job: invalid partition")
    with pytest.raises(RequestError, match="invalid partition"):
        cluster.add([make_run(0)])
    assert cluster.jobs.all() == []
    assert [path.name for path in cluster.root.iterdir()] == [".jobs"]


def test_a_request_is_taken_up_whole_or_not_at_all(cluster: Cluster) -> None:
    cluster.scheduler.refused_nodes = 4
    with pytest.raises(RequestError, match="too many nodes"):
        cluster.add([make_run(0), make_run(1, nodes=4), make_run(2)])
    assert cluster.scheduler.cancelled == ["1"], "what was submitted before is not left to run"
    assert [job.cancelled for job in cluster.jobs.all()] == [True]
    assert "is cancelled" in cluster.warnings[-1]


def test_what_another_job_is_refused_for_keeps_no_new_one_out(cluster: Cluster) -> None:
    cluster.scheduler.refuse = QueueFull("full")
    (old,) = cluster.add([make_run(0, nodes=4)])
    cluster.scheduler.refuse, cluster.scheduler.refused_nodes = None, 4
    (new,) = cluster.add([make_run(1)])
    assert load(new.folder).state == "submitted"
    ended = load(old.folder)
    assert ended.outcome is not None
    assert ended.outcome.state == "REFUSED"


def test_a_scheduler_that_does_not_answer_refuses_no_job_that_waits(cluster: Cluster) -> None:
    cluster.scheduler.refuse = QueueFull("full")
    (job,) = cluster.add([make_run(0)])
    cluster.scheduler.refuse = Unanswered("Slurm took no job after 4 tries: Unable to contact slurm controller")
    cluster.again().update()
    waiting = load(job.folder)
    assert (waiting.state, waiting.tried) == ("waiting", True)
    assert "Unable to contact" in waiting.note
    cluster.scheduler.refuse = None
    cluster.again().update()
    assert (load(job.folder).state, load(job.folder).tried) == ("submitted", False)


def test_a_controller_that_ended_while_it_submitted_is_remembered(cluster: Cluster) -> None:
    cluster.scheduler.refuse = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        cluster.add([make_run(0)])
    (job,) = cluster.jobs.all()
    assert (job.state, job.tried) == ("waiting", True), "the next one asks whether the scheduler has it"


def test_a_job_whose_files_were_not_all_written_gets_them_before_it_goes(cluster: Cluster) -> None:
    made, _ = make_jobs(cluster.site, cluster.site.partitions["gpu"], cluster.root, [make_run(0)])
    save_job(made[0])
    cluster.again().update()
    assert {"node.zip", "plan-000.json"} <= {path.name for path in made[0].folder.iterdir()}


def test_a_job_that_nobody_knows_is_waited_for_before_it_is_lost(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(0)])
    folder = begin(cluster, job, job.runs[0])
    cluster.scheduler.answers["1"] = Status("unknown", "", "squeue does not list it")
    cluster.jobs.update()
    cluster.now += timedelta(seconds=60)
    cluster.jobs.update()
    assert read_record(folder) is None
    cluster.scheduler.answers["1"] = Status("running", "RUNNING")
    cluster.jobs.update()
    assert load(job.folder).seen_ended is None
    cluster.scheduler.answers["1"] = Status("unknown", "", "squeue does not list it")
    cluster.jobs.update()
    cluster.now += timedelta(seconds=200)
    cluster.jobs.update()
    record = read_record(folder)
    assert record is not None
    assert record["failure"]["kind"] == "lost"


def test_cancelling(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(0)])
    assert [one.id for one in cluster.jobs.cancel([job])] == [job.id]
    assert cluster.scheduler.cancelled == ["1"]
    cluster.end("CANCELLED", reason="by a person")
    assert cluster.jobs.cancel([job]) == []
    cluster.scheduler.refuse = QueueFull("full")
    (waiting,) = cluster.add([make_run(1)])
    assert cluster.jobs.cancel([waiting])[0].state == "ended"
    record = read_record(waiting.run_folder(waiting.runs[0]))
    assert record is not None
    assert record["status"] == "interrupted"


def test_blocks_keep_the_order_and_do_not_mix_node_counts() -> None:
    runs = [make_run(0), make_run(1), make_run(2, nodes=2), make_run(3), make_run(4), make_run(5)]
    assert [[run.plan.run_id[-1] for run in block] for block in into_blocks(runs, 2)] == [
        ["0", "1"],
        ["2"],
        ["3", "4"],
        ["5"],
    ]


def test_the_time_limit_comes_from_the_estimate_with_a_margin() -> None:
    site = make_site(SLURM)
    runs = [make_run(0), make_run(1, steps=10)]
    gpu = site.partitions["gpu"]
    known = {run.plan.run_id: 100.0 for run in runs}
    ((job,), doubts) = make_jobs(site, gpu, Path("/r"), runs, estimates_s=known)
    assert (job.time_s, doubts) == (480.0, []), "two minutes, 1.5 times 100 s, and 1.5 times what may be measured"
    ((job,), doubts) = make_jobs(site, gpu, Path("/r"), runs, estimates_s=dict.fromkeys(known, 9000.0))
    assert job.time_s == 14400.0
    assert "allows 240" in doubts[0]
    with pytest.raises(RequestError, match=r"cannot be told from steps.*--time"):
        make_jobs(site, gpu, Path("/r"), runs)
    ((job,), _) = make_jobs(site, gpu, Path("/r"), runs, time_s=60.0)
    assert job.time_s == 60.0
    with pytest.raises(RequestError, match="block of 0"):
        make_jobs(site, gpu, Path("/r"), runs, block=0)


def test_a_job_is_found_by_what_a_person_remembers_of_it(tmp_path: Path) -> None:
    site = make_site(SLURM)
    jobs = [
        replace(new_job(site, site.partitions["gpu"], tmp_path, [make_run(number)]), handle=str(10 + number))
        for number in range(2)
    ]
    assert find_job(jobs, "11") is jobs[1]
    assert find_job(jobs, jobs[0].runs[0].plan.run_id) is jobs[0]
    assert find_job(jobs, "000001") is jobs[1]
    assert find_job(jobs, jobs[1].id) is jobs[1]
    with pytest.raises(RequestError, match="no job or run 'x'"):
        find_job(jobs, "x")


def test_a_job_of_a_newer_prony_is_left_alone(cluster: Cluster) -> None:
    (job,) = cluster.add([make_run(0)])
    document = files.read_json(job.folder / "job.json")
    assert isinstance(document, dict)
    files.write_whole(job.folder / "job.json", {**document, "schema": "prony.job/99"})
    assert load_jobs(cluster.root) == []
    cluster.jobs.update()

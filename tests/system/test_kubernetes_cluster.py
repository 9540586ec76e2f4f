"""Jobs on a real API server and kubelet: `make test-kubernetes`.

The image there has Python and no torch: a run ends as a record that says so, which needs all that a good one needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes_bed import Cluster, why_not

from prony.sites import jobs as jobs_module
from prony.sites.job import ENDED_STATE, BlockRun, Job, load, new_job
from prony.sites.jobs import Jobs
from prony.sites.site import choose_partition, read_site
from prony_node.contract import Plan, Trial
from prony_node.contract.record import read_record

WANTED = os.environ.get("PRONY_TEST_KUBERNETES")
REASON = why_not() if WANTED else "builds a Kubernetes; `make test-kubernetes` runs it"
pytestmark = [pytest.mark.skipif(REASON is not None, reason=REASON or ""), pytest.mark.slow]
SITE = """\
kind: kubernetes
partitions: {cpu: {accelerators: 0}}
container: {image: IMAGE}
kubernetes: {namespace: NAMESPACE, shared_memory: 64Mi}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("kubernetes"))
    before = os.environ.get("KUBECONFIG")
    try:
        made.start()
        os.environ["KUBECONFIG"] = str(made.kubeconfig)
        yield made
    finally:
        made.stop()
        os.environ.pop("KUBECONFIG", None)
        if before is not None:
            os.environ["KUBECONFIG"] = before


class Bed:
    def __init__(self, root: Path) -> None:
        self.warnings: list[str] = []
        self.jobs = Jobs(root, self.warnings.append)

    def submit(self, *ask: str, image: str = "localhost/node:1", namespace: str = "default") -> Job:
        text = SITE.replace("IMAGE", image).replace("NAMESPACE", namespace)
        folder = self.jobs.root.parent / f"site-{namespace}-{hash(image) % 10**6}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "here.yaml").write_text(text, encoding="utf-8")
        site = read_site(folder / "here.yaml")
        run = BlockRun(
            Plan(run_id=f"gpt-tiny-{time.time_ns()}", trial=Trial("gpt-tiny", {"device": "cpu"}), energy=False)
        )
        job = new_job(site, choose_partition(site, None), self.jobs.root, [] if ask else [run], ask=ask, time_s=300.0)
        self.jobs.add([job])
        return load(job.folder)

    def until(self, job: Job, good: Callable[[Job], bool], patience_s: float = 240.0) -> Job:
        end_s = time.monotonic() + patience_s
        while not good(load(job.folder)):
            assert time.monotonic() < end_s, f"{load(job.folder)}\n{self.warnings}"
            self.jobs.update()
            time.sleep(0.5)
        return load(job.folder)

    def end(self, job: Job) -> Job:
        return self.until(job, lambda now: now.state == ENDED_STATE)

    def running(self, job: Job) -> Job:
        return self.until(job, lambda now: now.note.startswith("running"))


@pytest.fixture
def bed(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr(jobs_module, "MISSING_AFTER_S", 20.0)
    return Bed(tmp_path / "runs")


def test_a_run_is_submitted_followed_and_collected_and_leaves_nothing(bed: Bed, cluster: Cluster) -> None:
    job = bed.end(bed.submit())
    record = read_record(job.run_folder(job.runs[0]))
    assert record is not None
    assert record["failure"]["kind"] == "missing-library"
    assert job.outcome is not None
    assert (job.outcome.state, job.outcome.exit_code) == ("COMPLETED", "0")
    assert "run 000 ended with exit code 1" in (job.folder / "job.log").read_text()
    path = f"/apis/batch/v1/namespaces/default/jobs/{job.handle}"
    assert cluster.get(path)["kind"] == "Status", "the Job is gone once its results are here"


def test_the_exit_code_of_a_job_is_known(bed: Bed) -> None:
    job = bed.end(bed.submit("no", "such", "question"))
    assert job.outcome is not None
    assert (job.outcome.state, job.outcome.exit_code) == ("FAILED", "2")


def test_a_cancelled_job_keeps_its_log(bed: Bed) -> None:
    job = bed.running(bed.submit("power", "--", "sleep", "200"))
    bed.jobs.cancel([job])
    job = bed.end(job)
    assert job.outcome is not None
    assert job.outcome.state == "CANCELLED"
    assert (job.folder / ".end-000").exists(), "the last frame came although the pod was ended"


def test_a_quota_that_is_used_up_is_why_it_waits(bed: Bed, cluster: Cluster) -> None:
    cluster.send("POST", "/api/v1/namespaces", {"metadata": {"name": "poor"}})
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    cluster.send("POST", "/api/v1/namespaces/poor/resourcequotas", quota)
    time.sleep(5)  # for the quota to be counted
    job = bed.until(bed.submit("doctor", namespace="poor"), lambda now: "exceeded quota" in now.note)
    bed.jobs.cancel([job])
    assert bed.end(job).outcome is not None


def test_an_image_that_is_missing_is_why_it_waits(bed: Bed) -> None:
    job = bed.until(bed.submit("doctor", image="localhost/none:1"), lambda now: "Image" in now.note)
    bed.jobs.cancel([job])
    assert bed.end(job).outcome is not None


def test_an_evicted_pod_is_a_failure_of_its_node(bed: Bed, cluster: Cluster) -> None:
    job = bed.running(bed.submit("power", "--", "sleep", "200"))
    pods = cluster.get(f"/api/v1/namespaces/default/pods?labelSelector=prony-job={job.handle}")["items"]
    assert isinstance(pods, list)
    name = pods[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    cluster.send("POST", f"/api/v1/namespaces/default/pods/{name}/eviction", eviction)
    job = bed.end(job)
    assert bed.jobs.launcher(job).failure(job)["kind"] == "node-failure"

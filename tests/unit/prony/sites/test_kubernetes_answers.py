"""What pods, Jobs and events say: why a job waits, how it ended, and what that means for its run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony.sites.job import JobOutcome
from prony.sites.kubernetes_answers import (
    IMAGE_PATIENCE_S,
    ContainerState,
    KubernetesEvent,
    KubernetesJob,
    Pod,
    failure_of,
    read_event,
    read_job,
    read_pod,
    status_of,
)
from prony.sites.protocol import Status

MADE = "2026-01-01T00:00:00Z"
NOW_S = 1767225600.0 + 60.0  # a minute later


def pod(phase: str = "Pending", state: dict[str, Any] | None = None, **status: object) -> Pod:
    containers = [{"state": state}] if state is not None else []
    metadata = {"name": "job-x", "labels": {"prony-job": "job"}, "creationTimestamp": MADE}
    document = {"metadata": metadata, "spec": {"nodeName": "n7"}}
    return read_pod({**document, "status": {"phase": phase, "containerStatuses": containers, **status}})


def ended(code: int, reason: str = "Error", **status: object) -> Pod:
    return pod("Failed", {"terminated": {"exitCode": code, "reason": reason, "finishedAt": MADE}}, **status)


def job(*conditions: dict[str, str], suspend: bool = False) -> KubernetesJob:
    return read_job(
        {"metadata": {"name": "job"}, "spec": {"suspend": suspend}, "status": {"conditions": list(conditions)}}
    )


def event(name: str, reason: str, message: str) -> KubernetesEvent:
    return read_event({"involvedObject": {"name": name}, "reason": reason, "message": message, "lastTimestamp": MADE})


CREATING = {"waiting": {"reason": "ContainerCreating"}}
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available."}]
QUOTA = event("job", "FailedCreate", 'pods "job-x" is forbidden: exceeded quota: small, requested: pods=1')


@pytest.mark.parametrize(
    ("known", "pods", "events", "words"),
    [
        (None, [pod(conditions=UNSCHEDULABLE)], [], "no node takes it: 0/3 nodes are available."),
        (None, [pod(state={"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "none"'}})], [],
         'ImagePullBackOff: Back-off pulling image "none"'),
        (None, [pod(state=CREATING)], [event("job-x", "Pulling", 'Pulling image "big"')],
         'Pulling: Pulling image "big"'),
        (None, [pod(state=CREATING)], [], "its container is being made"),
        (job(), [], [QUOTA], 'FailedCreate: pods "job-x" is forbidden: exceeded quota: small, requested: pods=1'),
        (job(), [], [], "it has no pod yet"),
        (job(suspend=True), [], [], "it waits for its queue to admit it"),
        (job(suspend=True), [], [event("job", "QuotaReserved", "waits for 8 GPUs")], "QuotaReserved: waits for 8 GPUs"),
    ],
)  # fmt: skip
def test_why_a_job_waits(known: Any, pods: list[Any], events: list[Any], words: str) -> None:
    status = status_of(known, pods, events, 1, NOW_S)
    assert status is not None
    assert (status.phase, status.reason) == ("queued", words)


def test_a_job_whose_pods_all_run_runs() -> None:
    assert status_of(None, [pod("Running")], [], 1, NOW_S) == Status("running", "RUNNING", "on n7")
    half = status_of(None, [pod("Running"), pod("Pending", conditions=UNSCHEDULABLE)], [], 2, NOW_S)
    assert half is not None
    assert half.phase == "queued"
    assert status_of(None, [], [], 1, NOW_S) is None


def disrupted(reason: str) -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}


@pytest.mark.parametrize(
    ("known", "pods", "state", "code", "kind"),
    [
        (None, [pod("Succeeded")], "COMPLETED", "0", "lost"),
        (None, [ended(3)], "FAILED", "3", "lost"),
        (None, [ended(124)], "TIMEOUT", "124", "time-limit"),
        (None, [ended(137, "OOMKilled")], "OUT_OF_MEMORY", "137", "out-of-memory"),
        (None, [pod("Failed", reason="DeadlineExceeded")], "TIMEOUT", "", "time-limit"),
        (None, [pod("Failed", reason="Evicted", message="low on memory")], "EVICTED", "", "node-failure"),
        (None, [pod("Failed", reason="NodeLost")], "NODE_FAIL", "", "node-failure"),
        (None, [pod("Failed", conditions=disrupted("PreemptionByScheduler"))],
         "PREEMPTED", "", "interrupted"),
        (None, [pod("Failed", conditions=disrupted("DeletionByTaintManager"))],
         "NODE_FAIL", "", "node-failure"),
        (job(FAILED), [], "GONE", "", "node-failure"),
        (job({"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}), [], "TIMEOUT", "", "time-limit"),
        (job({"type": "Complete", "status": "True"}), [], "COMPLETED", "0", "lost"),
        (None, [pod(state={"waiting": {"reason": "InvalidImageName", "message": "bad"}})], "IMAGE", "", "request"),
    ],
)  # fmt: skip
def test_how_a_job_ended_and_what_that_means(known: Any, pods: list[Any], state: str, code: str, kind: str) -> None:
    status = status_of(known, pods, [], 1, NOW_S)
    assert status is not None
    assert (status.phase, status.state, status.exit_code) == ("ended", state, code)
    assert failure_of(JobOutcome(status.state, status.reason, code), "job", 600.0, False)["kind"] == kind
    assert failure_of(JobOutcome(status.state), "job", 600.0, True)["kind"] == "interrupted"


def test_an_image_that_never_comes_ends_the_job_after_a_while() -> None:
    waiting = pod(state={"waiting": {"reason": "ErrImagePull", "message": "not found"}})
    for after_s, phase in ((IMAGE_PATIENCE_S, "queued"), (IMAGE_PATIENCE_S + 61.0, "ended")):
        status = status_of(None, [waiting], [], 1, NOW_S - 60.0 + after_s)
        assert status is not None
        assert status.phase == phase


def test_a_pod_that_ended_while_it_was_deleted_is_not_to_blame() -> None:
    document = {"metadata": {"name": "job-x", "deletionTimestamp": MADE}, "status": {"phase": "Failed"}}
    found = status_of(job(), [read_pod(document)], [], 1, NOW_S)
    assert found is not None
    assert (found.phase, found.state) == ("ended", "GONE")


def test_old_news_of_pods_do_not_say_how_a_job_ended() -> None:
    """Seen on a cluster: a Job failed seconds after its pod was seen to wait, and the pod was called gone."""
    failed = job({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"})
    stale = status_of(failed, [pod("Pending")], [], 1, NOW_S, fresh=False)
    assert stale is not None
    assert (stale.phase, stale.state) == ("running", "COLLECTING")
    then = status_of(failed, [ended(1)], [], 1, NOW_S, fresh=False)
    assert then == Status("ended", "FAILED", "", "1")
    gone = status_of(failed, [], [], 1, NOW_S, fresh=True)
    assert gone is not None
    assert gone.state == "GONE"


def test_of_several_pods_the_first_that_failed_is_the_cause() -> None:
    later = replace(ended(143), ended=ContainerState("Error", None, "143", "2026-01-01T00:00:09Z"))
    status = status_of(None, [later, ended(137, "OOMKilled")], [], 2, NOW_S)
    assert status is not None
    assert status.state == "OUT_OF_MEMORY"


@given(message=st.text(max_size=500), reason=st.text(max_size=30))
def test_whatever_the_words_one_line_results(message: str, reason: str) -> None:
    waiting = pod(state={"waiting": {"reason": reason, "message": message}})
    status = status_of(None, [waiting], [event("job-x", reason, message)], 1, NOW_S)
    assert status is not None
    assert "\n" not in status.reason
    assert len(status.reason) < 700

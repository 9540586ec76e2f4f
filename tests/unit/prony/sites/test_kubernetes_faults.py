"""An API server that conflicts, forgets, throttles, fails or is silent: a warning and another try, nothing lost."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import kmock
import pytest
from kubernetes_jobs import ANY, make_job, make_run, make_site
from kubernetes_mock import Mock, mock_server

from prony.sites import kubernetes_api
from prony.sites.job import NODE_ZIP, SUBMITTED, Job, JobOutcome, load, save_job
from prony.sites.jobs import Jobs
from prony.sites.kubernetes import FETCHED, Kubernetes
from prony.sites.kubernetes_api import Api, ApiProblem
from prony.sites.protocol import QueueFull, Rendered, Status
from prony_node.contract.errors import RequestError
from prony_node.contract.files import Frame, encode, in_parts
from prony_node.contract.record import read_record
from prony_node.run.job_script import bundle

JOBS, PODS = "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NAME = "prony-20260101t000000-abcdef"
START_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def refusal(status: int, message: str = "no") -> Callable[[], object]:
    """An answer that is an error, as Kubernetes words them."""

    def refuse() -> object:
        raise kmock.KubernetesError(status=status, message=message, details={"kind": "test"})

    return refuse


OWN = {"metadata": {"name": NAME, "uid": "1"}}  # what a server answers that has made the object


class Bed:
    """A launcher before a mock, with a clock that moves when it sleeps."""

    def __init__(self, mock: Mock, root: Path) -> None:
        self.mock, self.server = mock, mock.server
        self.now_s = START_S
        self.answers: dict[tuple[str, str], list[object]] = {}
        self.warnings: list[str] = []
        self.slept_s: list[float] = []
        self.launcher = self.another()
        for path in (JOBS, CONFIG_MAPS):
            self.answer(f"post {path}", OWN)
            self.answer(f"delete {path}/{NAME}", {})
        self.answer(f"get {EVENTS}", listed())
        self.job = save_job(make_job(make_site(ANY), [make_run(0, device="cpu")], root))
        (self.job.folder / NODE_ZIP).write_bytes(b"zip")
        self.submitted = save_job(
            replace(self.job, state=SUBMITTED, handle=NAME, submitted=datetime.fromtimestamp(START_S, UTC).isoformat())
        )

    def another(self) -> Kubernetes:
        def api(context: str | None, namespace: str) -> Api:
            return Api(context, namespace, host=self.mock.url)

        return Kubernetes(self.warnings.append, api, lambda: self.now_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def submit(self) -> str:
        return self.launcher.submit(self.job, Rendered({}, ()))

    def status(self, after_s: float = 5.0) -> Status | None:
        self.now_s += after_s
        return self.launcher.status([self.submitted]).of.get(NAME)

    def answer(self, words: str, *answers: object) -> None:
        """These answers in turn, the last again and again; `watch` stands before those of a watch."""
        kind, _, path = words.partition(" ")
        known = kind != "watch" and (kind, path) in self.answers
        self.answers[kind, path] = list(answers)
        if kind != "watch" and not known:
            self.server[words] << (lambda request: self._give(kind, path, request))

    def _give(self, kind: str, path: str, request: Any) -> Any:
        left = self.answers["watch" if request.params.get("watch") else kind, path]
        one = left.pop(0) if len(left) > 1 else left[0]
        return one() if callable(one) else one


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with mock_server() as mock:
        yield Bed(mock, tmp_path)


def pod(phase: str = "Running", version: str = "5", **status: object) -> dict[str, Any]:
    labels = {"prony-job": NAME}
    metadata = {
        "name": f"{NAME}-x",
        "labels": labels,
        "resourceVersion": version,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": metadata, "spec": {"nodeName": "node1"}, "status": {"phase": phase, **status}}  # fmt: skip


def listed(*items: dict[str, Any], version: str = "5") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version}, "items": list(items)}


def watched(*events: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(json.dumps({"type": kind, "object": thing}).encode() + b"\n" for kind, thing in events)


def test_what_is_submitted_is_there_and_owned(bed: Bed) -> None:
    assert bed.submit() == NAME
    assert [words.split()[0] for words in bed.mock.asked] == ["POST", "POST"]
    inputs = next(request for request in bed.server if request.url.path.endswith("configmaps")).data
    assert inputs["metadata"]["ownerReferences"][0]["name"] == NAME
    assert set(inputs["binaryData"]) == {"node.zip"}


@pytest.mark.parametrize("fault", [500, 502, 503, 504])
def test_a_server_that_fails_twice_takes_the_job_the_third_time(bed: Bed, fault: int) -> None:
    bed.answer(f"post {JOBS}", refusal(fault), refusal(fault), OWN)
    assert bed.submit() == NAME
    assert len(bed.warnings) == 2
    assert bed.slept_s == [1.0, 4.0]


def test_a_server_that_throttles_is_given_the_time_it_asks_for(bed: Bed) -> None:
    bed.server[f"post {JOBS}"] ** 9 << 429 << kmock.headers({"Retry-After": "17"})
    with pytest.raises(RequestError, match="429"):
        bed.submit()
    assert bed.slept_s == [17.0, 17.0, 17.0]


def test_a_try_that_was_heard_after_all_is_not_an_error(bed: Bed) -> None:
    bed.answer(f"post {JOBS}", refusal(409, f'jobs.batch "{NAME}" already exists'))
    bed.answer(f"get {JOBS}/{NAME}", OWN)
    assert bed.submit() == NAME
    assert "GET /apis/batch/v1/namespaces/default/jobs/" + NAME in bed.mock.asked
    assert not bed.warnings


def test_a_conflict_that_passes_is_tried_again(bed: Bed) -> None:
    bed.answer(f"post {JOBS}", refusal(409, "the object has been modified; please apply again"), OWN)
    assert bed.submit() == NAME
    assert "has been modified" in bed.warnings[0]


def test_a_full_quota_makes_the_job_wait_and_what_is_forbidden_is_refused(bed: Bed) -> None:
    full = refusal(403, "jobs is forbidden: exceeded quota: small, used: 4")
    bed.answer(f"post {JOBS}", full, refusal(403, "you may not"), refusal(422, "spec.template: Invalid value"))
    with pytest.raises(QueueFull, match="exceeded quota"):
        bed.submit()
    with pytest.raises(RequestError, match=r"Kubernetes refused the job: .* 403: you may not"):
        bed.submit()
    with pytest.raises(RequestError, match="Invalid value"):
        bed.submit()
    assert not bed.warnings, "none of this passes by trying again"


def test_half_a_submission_leaves_nothing(bed: Bed) -> None:
    bed.answer(f"post {CONFIG_MAPS}", refusal(403, "no ConfigMaps for you"))
    with pytest.raises(RequestError, match="no ConfigMaps"):
        bed.submit()
    assert bed.mock.asked[-1] == f"DELETE {JOBS}/{NAME}"


def test_a_silent_server_is_a_warning(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "PATIENCE_S", 0.3)
    bed.answer(f"post {JOBS}", lambda: asyncio.sleep(1), OWN)
    assert bed.submit() == NAME
    assert "did not answer" in bed.warnings[0]


def test_no_server_at_all_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ApiProblem, match="did not answer") as problem:
        Api(None, "default", host="http://127.0.0.1:9").list_all("Pod", "")
    assert problem.value.passing


def test_after_a_list_only_changes_are_asked_for(bed: Bed) -> None:
    bed.answer(f"get {PODS}", listed(pod("Pending")))
    bed.answer(f"watch {PODS}", watched(("MODIFIED", pod("Running", "9"))))
    bed.answer(f"get {JOBS}", listed())
    bed.answer(f"watch {JOBS}", b"")
    phases = [bed.status() for _ in range(5)]
    assert [status.phase for status in phases if status] == ["queued", "queued", "queued", "running", "running"]
    versions = [request.params.get("resourceVersion") for request in bed.server if request.url.path == PODS]
    assert versions[:2] == [None, "5"]


@pytest.mark.parametrize(
    "expired",
    [
        refusal(410, "too old resource version"),
        watched(("ERROR", {"code": 410, "message": "too old resource version: 5 (80)"})),
    ],
)
def test_a_watch_that_has_expired_begins_anew_with_a_list(bed: Bed, expired: object) -> None:
    bed.answer(f"get {PODS}", listed(pod("Pending")), listed(pod("Running", "90"), version="90"))
    bed.answer(f"watch {PODS}", expired, b"")
    bed.answer(f"get {JOBS}", listed())
    bed.answer(f"watch {JOBS}", b"")
    phases = [status.phase for _ in range(9) if (status := bed.status())]
    assert phases[0] == "queued"
    assert phases[-1] == "running"
    assert not bed.warnings, "this is how watches end"


def test_a_watch_that_is_cut_goes_on_from_its_last_whole_line(bed: Bed) -> None:
    cut = watched(("MODIFIED", pod("Running", "8"))) + b'{"type": "MODIFIED", "object": {"metad'
    bed.answer(f"get {PODS}", listed(pod("Pending")))
    bed.answer(f"watch {PODS}", cut, b"")
    bed.answer(f"get {JOBS}", listed())
    bed.answer(f"watch {JOBS}", b"")
    bed.answer(f"get {PODS}/{NAME}-x/log", b"")
    for _ in range(8):
        status = bed.status()
    assert status is not None
    assert status.phase == "running"
    assert [r.params["resourceVersion"] for r in bed.server if r.params.get("watch") and r.url.path == PODS][:2] == [
        "5",
        "8",
    ]


@pytest.mark.parametrize("fault", [refusal(500), refusal(429), b"<html>not JSON</html>", b"[1, 2]", refusal(401)])
def test_a_look_that_fails_is_a_warning_and_the_pause_grows(bed: Bed, fault: object) -> None:
    bed.answer(f"get {PODS}", fault)
    bed.answer(f"get {JOBS}", fault)
    asked_at = []
    for _ in range(120):
        before = len(bed.mock.asked)
        assert bed.status(1.0) is None
        if len(bed.mock.asked) > before:
            asked_at.append(bed.now_s - START_S)
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses == [10.0, 20.0, 40.0]
    assert len(bed.warnings) == len(asked_at)


ENDED = {"containerStatuses": [{"state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:05Z"}}}]}


def ended_bed(bed: Bed, log: Callable[[], object] | bytes) -> None:
    bed.answer(f"get {PODS}", listed(pod("Succeeded", **ENDED)))
    bed.answer(f"watch {PODS}", b"")
    bed.answer(f"get {JOBS}", listed())
    bed.answer(f"watch {JOBS}", b"")
    bed.answer(f"get {PODS}/{NAME}-x/log", log, b"words\n" + encode(Frame({"end": 0, "bundles": []})))
    bed.answer(f"delete {JOBS}/{NAME}", {})


@pytest.mark.parametrize("fault", [refusal(500, "kubelet"), refusal(429), refusal(504)])
def test_a_job_has_not_ended_before_its_log_is_here(bed: Bed, fault: Callable[[], object]) -> None:
    ended_bed(bed, fault)
    first, second = bed.status(), bed.status()
    assert first is not None
    assert (first.phase, first.state) == ("running", "COLLECTING")
    assert second == Status("ended", "COMPLETED", "", "0")
    assert bed.mock.asked[-1] == f"DELETE {JOBS}/{NAME}"
    assert (bed.submitted.folder / "job.log").read_bytes() == b"words\n"


def test_a_log_that_cannot_be_read_is_asked_for_more_and_more_seldom(bed: Bed) -> None:
    ended_bed(bed, b"")
    bed.answer(f"get {PODS}/{NAME}-x/log", refusal(500, "kubelet"))
    asked_at = []
    for _ in range(100):
        before = bed.mock.asked.count(f"GET {PODS}/{NAME}-x/log")
        status = bed.status(1.0)
        assert status is not None
        assert status.state == "COLLECTING"
        if bed.mock.asked.count(f"GET {PODS}/{NAME}-x/log") > before:
            asked_at.append(bed.now_s - START_S)
    assert [later - earlier for earlier, later in pairwise(asked_at)] == [5.0, 10.0, 20.0, 40.0]


def test_a_log_that_is_gone_ends_the_job_all_the_same(bed: Bed) -> None:
    ended_bed(bed, refusal(404, "not found"))
    status = bed.status()
    assert status is not None
    assert status.phase == "ended"
    assert "not complete" in bed.warnings[0]


def test_how_a_job_ended_is_known_after_the_cluster_forgot_it(bed: Bed) -> None:
    ended_bed(bed, b"")
    assert bed.status() is not None
    before = len(bed.mock.asked)
    assert bed.another().status([bed.submitted]).of[NAME].state == "COMPLETED"
    assert len(bed.mock.asked) == before


def test_a_job_that_was_deleted_behind_our_back_is_unknown(bed: Bed) -> None:
    for path in (PODS, JOBS):
        bed.answer(f"get {path}", listed())
        bed.answer(f"watch {path}", b"")
    assert [bed.status(), bed.status()] == [None, Status("unknown", "", "the cluster no longer knows it")]


def another_pod() -> dict[str, Any]:
    other = pod("Running", "9")
    return {**other, "metadata": {**other["metadata"], "name": f"{NAME}-y"}}


@pytest.mark.parametrize("again", [False, True], ids=["by a watch", "by a list"])
def test_a_pod_that_the_cluster_began_in_place_of_an_evicted_one_does_not_count(bed: Bed, again: bool) -> None:
    """Kubernetes 1.20 does so whatever the back-off limit is; how often a run is tried is ours to say."""
    bed.answer(f"get {PODS}", listed(pod("Running")), listed(another_pod(), version="9"))
    news = watched(("DELETED", pod("Running", "8")), ("ADDED", another_pod()))
    bed.answer(f"watch {PODS}", refusal(410, "too old resource version") if again else news, b"")
    bed.answer(f"get {JOBS}", listed({"metadata": {"name": NAME}}))
    bed.answer(f"watch {JOBS}", b"")
    for name in (f"{NAME}-x", f"{NAME}-y"):
        bed.answer(f"get {PODS}/{name}/log", b"")
    found = [bed.status() for _ in range(9)]
    assert found[0] is not None
    assert found[0].phase == "running"
    assert found[-1] is not None
    assert (found[-1].phase, found[-1].state) == ("ended", "GONE")
    assert f"its pod {NAME}-x was deleted" in found[-1].reason
    assert f"DELETE {JOBS}/{NAME}" in bed.mock.asked


def test_a_running_pod_is_ended_by_its_deadline_which_leaves_its_log(bed: Bed) -> None:
    bed.answer(f"get {PODS}", listed(pod("Running")))
    bed.answer(f"patch {PODS}/{NAME}-x", {})
    bed.answer(f"delete {JOBS}/{NAME}", {})
    bed.launcher.cancel([bed.submitted])
    assert bed.server[-1].data == {"spec": {"activeDeadlineSeconds": 1}}
    bed.launcher.cancel([replace(bed.submitted, cancelled=True)])
    assert bed.mock.asked[-1] == f"DELETE {JOBS}/{NAME}"


def test_what_does_not_run_yet_is_deleted_and_has_ended(bed: Bed) -> None:
    bed.answer(f"get {PODS}", listed(pod("Pending")))
    bed.answer(f"delete {JOBS}/{NAME}", refusal(500), {})
    bed.launcher.cancel([bed.submitted])
    status = bed.status()
    assert status is not None
    assert status.state == "CANCELLED"
    assert (bed.submitted.folder / FETCHED).exists()


def many(count: int, root: Path) -> list[Job]:
    site, run = make_site(ANY), make_run(0, device="cpu")
    moment = datetime.fromtimestamp(START_S, UTC).isoformat()
    return [
        make_job(site, [run], root, id=f"prony-{n:04d}", handle=f"prony-{n:04d}", state=SUBMITTED, submitted=moment)
        for n in range(count)
    ]


def test_a_thousand_jobs_and_three_who_follow_them_make_one_call_in_five_seconds(bed: Bed, tmp_path: Path) -> None:
    jobs = many(1000, tmp_path)
    for job in jobs:
        job.folder.mkdir(parents=True)
    pods = []
    for job in jobs:
        one = pod("Running")
        one["metadata"] |= {"name": f"{job.id}-x", "labels": {"prony-job": job.handle}}
        pods.append(one)
    bed.answer(f"get {PODS}", listed(*pods))
    bed.answer(f"watch {PODS}", b"")
    bed.answer(f"get {JOBS}", listed())
    bed.answer(f"watch {JOBS}", b"")
    bed.server["get"] << b""  # logs
    launchers = [bed.launcher, bed.another(), bed.another()]
    for look in range(24):
        bed.now_s += 2.5
        found = launchers[look % 3].status(jobs).of
    assert len(found) == 1000
    assert {status.phase for status in found.values()} == {"running"}
    assert len(bed.mock.asked) <= 12


def write_kubeconfig(path: Path, server: str) -> None:
    user, context = {"token": "secret-token"}, {"cluster": "far", "user": "me"}
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "other",
        "clusters": [{"name": "far", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "far", "context": context}, {"name": "other", "context": context}],
    }  # fmt: skip
    path.write_text(json.dumps(document), encoding="utf-8")


def test_the_users_own_kubeconfig_says_where_and_who(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kubernetes.config.kube_config as library

    write_kubeconfig(tmp_path / "config", bed.mock.url)
    monkeypatch.setattr(library, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    bed.answer(f"get {PODS}", listed())
    Api("far", "default").list_all("Pod", "")
    assert bed.server[-1].headers["Authorization"] == "Bearer secret-token"
    with pytest.raises(RequestError, match="no kubeconfig with the context 'none' can be used"):
        Api("none", "default")


def test_words_of_an_error_hold_no_token(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import kubernetes.config.kube_config as library

    write_kubeconfig(tmp_path / "config", "http://127.0.0.1:9")
    monkeypatch.setattr(library, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    with pytest.raises(ApiProblem) as problem:
        Api("far", "default").list_all("Pod", "")
    assert "secret" not in str(problem.value)


REPLAY = Path(__file__).parents[3] / "replay" / "records"


def whole_way(bed: Bed, tmp_path: Path, text: str) -> tuple[Jobs, Job]:
    """A job submitted through `Jobs`, as a verb does it."""
    jobs = Jobs(
        tmp_path / "way",
        bed.warnings.append,
        lambda kind, warn: bed.launcher,
        lambda: datetime.fromtimestamp(bed.now_s, UTC),
        check=lambda job, warn: None,  # there is no image to look at
    )
    job = make_job(make_site(text), [make_run(0, device="cpu")], jobs.root)
    jobs.add([job])
    return jobs, load(job.folder)


def follow(bed: Bed, jobs: Jobs, job: Job) -> Job:
    for _ in range(10):
        bed.now_s += 5.0
        jobs.update()
    return load(job.folder)


def test_a_job_goes_its_whole_way_from_manifest_to_record(bed: Bed, tmp_path: Path) -> None:
    jobs, job = whole_way(bed, tmp_path, ANY)
    assert (job.handle, job.state) == (NAME, SUBMITTED)
    (there,) = REPLAY.glob("*d00001")
    name = job.runs[0].plan.run_id
    frames = [*in_parts(name, bundle(there)), Frame({"end": 0, "bundles": [name]})]
    ended_bed(bed, b"".join(map(encode, frames)))
    ended = follow(bed, jobs, job)
    assert ended.outcome == JobOutcome("COMPLETED", "", "0")
    record = read_record(jobs.root / name)
    assert record is not None
    assert record["status"] == "ok"
    assert not bed.warnings


def test_a_run_whose_pod_was_evicted_is_recorded_and_tried_again(bed: Bed, tmp_path: Path) -> None:
    jobs, job = whole_way(bed, tmp_path, ANY + "retry_node_failure: 1\n")
    run = job.runs[0].plan
    plan = in_parts(f"{run.run_id}/plan.json", json.dumps(run.to_json()).encode())
    log = b"".join(encode(Frame({**frame.header, "file": True}, frame.body)) for frame in plan)
    ended_bed(bed, log)
    bed.answer(f"get {PODS}/{NAME}-x/log", log)
    bed.answer(f"get {PODS}", listed(pod("Failed", reason="Evicted", message="The node was low on resource: memory.")))
    ended = follow(bed, jobs, job)
    record = read_record(jobs.root / run.run_id)
    assert record is not None
    assert record["failure"]["kind"] == "node-failure"
    assert "low on resource: memory" in record["failure"]["message"]
    assert ended.followed_by is not None
    assert load(jobs.root / ".jobs" / ended.followed_by).runs[0].plan.run_id == f"{run.run_id}-attempt2"


def test_without_the_client_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(RequestError, match=r"pip install 'prony\[kubernetes\]'"):
        Api(None, "default")

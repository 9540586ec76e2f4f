"""Calls to a Kubernetes API server, and the view of all jobs of a root that is kept up to date by them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from prony.sites.kubernetes_answers import (
    KubernetesEvent,
    KubernetesJob,
    KubernetesNode,
    KubernetesObject,
    Pod,
    object_name,
    read_event,
    read_job,
    read_node,
    read_pod,
)
from prony.sites.kubernetes_manifest import Manifest
from prony.sites.protocol import PAUSES_S, Warn
from prony_node.contract import files
from prony_node.contract.errors import RequestError, is_digits
from prony_node.contract.plugins import install_command
from prony_node.contract.safe_files import open_plain
from prony_node.contract.typed import Malformed, decode, encode

CONNECT_S = 10.0
PATIENCE_S = 60.0  # for one answer
LOG_PATIENCE_S = 300.0
PASSING = (0, 408, 429, 500, 502, 503, 504)  # 0: no answer came; these may be different the next time
LONGEST_PAUSE_S = 60.0
Made = TypeVar("Made")


class ApiProblem(Exception):
    """A call that failed: its status (0 where no answer came), a sentence, and how long the server asks to wait."""

    def __init__(self, status: int, sentence: str, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after_s = status, retry_after_s

    @property
    def passing(self) -> bool:
        return self.status in PASSING


@dataclass(frozen=True)
class ObjectList:
    """All objects of a kind, and the version from which on changes can be asked for."""

    objects: list[KubernetesObject]
    version: str | None


@dataclass(frozen=True)
class ObjectChange:
    """An object as it is now, or as it last was before it was deleted."""

    object: KubernetesObject
    deleted: bool


@dataclass(frozen=True)
class ObjectChanges:
    """What a look at changes brought, and the version to go on from (None: begin anew with a list)."""

    changes: list[ObjectChange]
    version: str | None


class Api:
    """One cluster, one namespace."""

    def __init__(self, context: str | None, namespace: str, host: str | None = None) -> None:
        """`host` is a server without credentials, for tests; else the kubeconfig, or the pod we are in, says which."""
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise RequestError(
                "a Kubernetes site needs the Kubernetes client, which is not installed here: "
                f"{install_command('kubernetes')}"
            ) from error
        self.namespace = namespace
        if host is not None:
            configuration = client.Configuration()
            configuration.host = host
        else:
            configuration = client.Configuration()
            _load(config, configuration, context)
        configuration.retries = False  # ours are counted and said
        self._client = client.ApiClient(configuration)

    def create(self, document: Manifest) -> KubernetesObject:
        return self._json("POST", self._path(document["kind"]), body=document)

    def get(self, kind: str, name: str) -> KubernetesObject:
        return self._json("GET", f"{self._path(kind)}/{name}")

    def list_all(self, kind: str, selector: str, fields: str = "") -> ObjectList:
        """All at once: one call, whatever their number."""
        query = {"labelSelector": selector, "fieldSelector": fields}
        answer = self._json("GET", self._path(kind), {key: value for key, value in query.items() if value})
        version = (answer.get("metadata") or {}).get("resourceVersion")
        return ObjectList(_objects(answer), None if version is None else str(version))

    def changes(self, kind: str, selector: str, version: str, seconds: int = 1) -> ObjectChanges:
        """What happened since a version; what the server no longer remembers is asked for with a list."""
        query = {
            "labelSelector": selector, "resourceVersion": version, "watch": "true",
            "timeoutSeconds": str(seconds), "allowWatchBookmarks": "true",
        }  # fmt: skip
        try:
            text = b"".join(self._stream(self._path(kind), query, seconds + PATIENCE_S))
        except ApiProblem as error:
            if error.status == 410:
                return ObjectChanges([], None)
            raise
        return read_changes(text, version)

    def log(self, pod: str, container: str, since_s: int | None) -> Iterator[bytes]:
        query = {"container": container, **({"sinceSeconds": str(since_s)} if since_s is not None else {})}
        return self._stream(f"{self._path('Pod')}/{pod}/log", query, LOG_PATIENCE_S)

    def end_pod(self, pod: str) -> None:
        """Its time is over from now on: unlike a deleted pod it keeps its log."""
        self._json("PATCH", f"{self._path('Pod')}/{pod}", body={"spec": {"activeDeadlineSeconds": 1}})

    def delete_job(self, name: str, *, now: bool = False) -> None:
        body = {"propagationPolicy": "Background", **({"gracePeriodSeconds": 0} if now else {})}
        self._json("DELETE", f"{self._path('Job')}/{name}", body=body)

    def nodes(self) -> list[KubernetesNode]:
        return [read_node(one) for one in _objects(self._json("GET", "/api/v1/nodes"))]

    def _path(self, kind: str) -> str:
        group = "/apis/batch/v1" if kind == "Job" else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{kind.lower()}s"

    def _json(self, method: str, path: str, query: dict[str, str] | None = None, body: Any = None) -> KubernetesObject:
        data = b"".join(self._stream(path, query or {}, PATIENCE_S, method, body))
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ApiProblem(0, f"the API server gave an answer that cannot be read: {data[:80]!r}") from error
        if not isinstance(document, dict):
            raise ApiProblem(0, f"the API server gave an answer that cannot be read: {data[:80]!r}")
        return document

    def _stream(
        self, path: str, query: dict[str, str], patience_s: float, method: str = "GET", body: Any = None
    ) -> Iterator[bytes]:
        """The bytes of an answer as they come."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json, */*", "Content-Type": kind}
        try:
            request = self._client.param_serialize(
                method, path, query_params=list(query.items()), header_params=headers, body=body,
                auth_settings=["BearerToken"],
            )  # fmt: skip
            answer = self._client.call_api(*request, _request_timeout=(CONNECT_S, patience_s))
            if not 200 <= answer.status <= 299:
                raise _problem(answer.status, answer.headers, answer.read() or b"")
            yield from answer.response.stream(65536)
        except (HTTPError, OSError, ApiException) as error:  # TLS ends as an exception of the client's own
            raise ApiProblem(0, f"the API server did not answer: {_short(error)}") from error


def read_changes(text: bytes, version: str) -> ObjectChanges:
    """The changes of a watch; a line that is cut is the next watch's, an expired version needs a list."""
    changes: list[ObjectChange] = []
    newest: str | None = version
    for line in text.split(b"\n"):
        try:
            event = json.loads(line)
            kind, thing = event["type"], event["object"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if kind == "ERROR":
            return ObjectChanges(changes, None)
        if not isinstance(thing, dict) or not isinstance(thing.get("metadata") or {}, dict):
            continue
        newest = str((thing.get("metadata") or {}).get("resourceVersion") or newest)
        if kind != "BOOKMARK":
            changes.append(ObjectChange(thing, deleted=kind == "DELETED"))
    return ObjectChanges(changes, newest)


def _objects(answer: KubernetesObject) -> list[KubernetesObject]:
    return [item for item in answer.get("items") or () if isinstance(item, dict)]


def persist(what: str, call: Callable[[], Made], warn: Warn, sleep: Callable[[float], None] = time.sleep) -> Made:
    """Call until it works; what may pass is a warning and another try, after the pause that the server asks for."""
    for pause_s in PAUSES_S:
        try:
            return call()
        except ApiProblem as error:
            if not error.passing:
                raise
            wait_s = min(LONGEST_PAUSE_S, max(pause_s, error.retry_after_s or 0.0))
            warn(f"{what}: {error}; trying again in {wait_s:g} s")
            sleep(wait_s)
    return call()


def _load(config: Any, configuration: Any, context: str | None) -> None:
    """The user's kubeconfig; inside a pod without one, the pod's own account."""
    try:
        config.load_kube_config(context=context, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            named = f" with the context {context!r}" if context else ""
            raise RequestError(f"no kubeconfig{named} can be used: {_short(error)}") from error


def _problem(status: int, headers: Mapping[str, str], body: bytes) -> ApiProblem:
    """What the server says, in its own words."""
    text = body.decode(errors="replace")
    try:
        said = str(json.loads(text)["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        said = text.strip()[:200] or "nothing"
    after = headers.get("Retry-After") or ""
    after_s = float(after) if is_digits(after) else None
    return ApiProblem(status, f"the API server answered {status}: {said}", after_s)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


ASK_EVERY_S = 5.0
LONGEST_VIEW_PAUSE_S = 120.0
Seen = TypeVar("Seen", Pod, KubernetesJob, KubernetesEvent)


@dataclass(frozen=True)
class ViewState:
    """What is kept of the looks at a root's objects, for the next process that looks: each by its name."""

    selector: str
    pods: Mapping[str, Pod] = field(default_factory=dict)
    jobs: Mapping[str, KubernetesJob] = field(default_factory=dict)
    events: Mapping[str, KubernetesEvent] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)  # of a job, the pod that was deleted
    versions: Mapping[str, str] = field(default_factory=dict)  # of a kind, from which on changes can be asked for
    listed_s: Mapping[str, float] = field(default_factory=dict)  # of a kind, when all of it were last seen
    looked_s: Mapping[str, float] = field(default_factory=dict)  # of a kind, when it was last asked for
    turn: int = 0  # of the other calls
    failures: int = 0  # since the last call that worked
    next_s: float = 0.0  # the earliest time of the next call


class View:
    """Pods, Jobs and events of one root, as last seen."""

    def __init__(
        self, path: Path, api: Callable[[], Api], selector: str, warn: Warn, clock: Callable[[], float]
    ) -> None:
        self._path, self._api, self._selector, self._warn, self._clock = path, api, selector, warn, clock
        self._state = self._load()

    def refresh(self, others: Sequence[Callable[[], object]], events_of: str | None) -> None:
        """One call, if it is time for one: what was looked at longest ago. `others` take their turn like the kinds."""
        with self._alone():
            state = self._load()
            now_s = self._clock()
            if now_s < state.next_s <= now_s + LONGEST_VIEW_PAUSE_S:
                self._state = state
                return
            kinds = ["Pod", "Job", *(["Event"] if events_of else []), *(["other"] if others else [])]
            kind = min(kinds, key=lambda one: (state.looked_s.get(one, 0.0), kinds.index(one)))
            state = replace(state, looked_s={**state.looked_s, kind: now_s})
            pause_s = ASK_EVERY_S
            try:
                if kind == "other":
                    turn = state.turn
                    state = replace(state, turn=turn + 1)
                    others[turn % len(others)]()
                else:
                    state = self._look(state, kind, events_of or "")
                state = replace(state, failures=0)
            except ApiProblem as error:
                state = replace(state, failures=state.failures + 1)
                pause_s = min(LONGEST_VIEW_PAUSE_S, max(ASK_EVERY_S * 2**state.failures, error.retry_after_s or 0.0))
                self._warn(f"{error}; the jobs are asked for again in {pause_s:g} s")
            # From the end of the call on: a slow server is not asked more often for being slow.
            self._state = replace(state, next_s=self._clock() + pause_s)
            self._save()

    def pods(self) -> dict[str, list[Pod]]:
        """The pods of each job, by its name."""
        found: dict[str, list[Pod]] = {}
        for pod in self._state.pods.values():
            found.setdefault(pod.job, []).append(pod)
        return found

    def jobs(self) -> Mapping[str, KubernetesJob]:
        return self._state.jobs

    def taken(self) -> Mapping[str, str]:
        """The jobs a pod of which was deleted, and its name: an older cluster begins another in its place, unasked."""
        return self._state.taken

    def events(self) -> list[KubernetesEvent]:
        return list(self._state.events.values())

    def listed_s(self, kind: str) -> float | None:
        """When all of a kind were last seen; None where they never were."""
        return self._state.listed_s.get(kind)

    def _look(self, state: ViewState, kind: str, events_of: str) -> ViewState:
        version = state.versions.get(kind)
        begun_s = self._clock()
        news: ObjectList | ObjectChanges
        if kind == "Event" or version is None:
            fields = f"involvedObject.kind={events_of}" if kind == "Event" else ""
            news = self._api().list_all(kind, "" if kind == "Event" else self._selector, fields)
        else:
            news = self._api().changes(kind, self._selector, version)
        versions = {name: own for name, own in state.versions.items() if name != kind}
        if news.version is not None:
            versions[kind] = news.version
        if isinstance(news, ObjectList) or news.version is not None:  # else too old for the server: a list comes next
            state = replace(state, listed_s={**state.listed_s, kind: begun_s})
        state = replace(state, versions=versions)
        if kind == "Job":
            return replace(state, jobs=_after(state.jobs, news, read_job)[0])
        if kind == "Event":
            return replace(state, events=_after(state.events, news, read_event)[0])
        pods, gone = _after(state.pods, news, read_pod)
        return replace(state, pods=pods, taken={**state.taken, **{pod.job: pod.name for pod in gone}})

    def _load(self) -> ViewState:
        try:
            own = self._path.lstat().st_uid == os.geteuid()  # what another says of our jobs is not believed
        except OSError:
            own = False
        try:
            state = decode(ViewState, files.read_json(self._path)) if own else None
        except (Malformed, LookupError):  # of another version of Prony
            state = None
        return state if state is not None and state.selector == self._selector else ViewState(self._selector)

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # nowhere to keep it: each process for itself
            files.write_whole(self._path, encode(self._state))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_plain(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _after(
    known: Mapping[str, Seen], news: ObjectList | ObjectChanges, read: Callable[[KubernetesObject], Seen]
) -> tuple[dict[str, Seen], list[Seen]]:
    """What there is after the news, and what is gone since."""
    if isinstance(news, ObjectList):
        there = {object_name(one): read(one) for one in news.objects}
        return there, [known[name] for name in known.keys() - there.keys()]
    there, gone = dict(known), []
    for change in news.changes:
        if change.deleted:
            there.pop(object_name(change.object), None)
            gone.append(read(change.object))
        else:
            there[object_name(change.object)] = read(change.object)
    return there, gone

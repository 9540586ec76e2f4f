"""Calls to a Kubernetes API server through the official client: JSON in, JSON out, and errors that say what to do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from prony.launch.calls import PAUSES_S
from prony.launch.protocol import Warn
from prony_node.contract.digits import is_digits
from prony_node.contract.errors import RequestError

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
class Watched:
    """What a look at changes brought: the events, and the version to go on from (None: begin anew with a list)."""

    events: list[dict[str, Any]]
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
                "pip install 'prony[kubernetes]'"
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

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._json("POST", self._path(document["kind"]), body=document)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self._json("GET", f"{self._path(kind)}/{name}")

    def list_all(self, kind: str, selector: str, fields: str = "") -> dict[str, Any]:
        """All at once: one call, whatever their number."""
        query = {"labelSelector": selector, "fieldSelector": fields}
        return self._json("GET", self._path(kind), {key: value for key, value in query.items() if value})

    def changes(self, kind: str, selector: str, version: str, seconds: int = 1) -> Watched:
        """What happened since a version; what the server no longer remembers is asked for with a list."""
        query = {
            "labelSelector": selector, "resourceVersion": version, "watch": "true",
            "timeoutSeconds": str(seconds), "allowWatchBookmarks": "true",
        }  # fmt: skip
        try:
            text = b"".join(self._stream(self._path(kind), query, seconds + PATIENCE_S))
        except ApiProblem as error:
            if error.status == 410:
                return Watched([], None)
            raise
        return read_changes(text, version)

    def log(self, pod: str, container: str, since_s: int | None) -> Iterator[bytes]:
        query = {"container": container, **({"sinceSeconds": str(since_s)} if since_s is not None else {})}
        return self._stream(f"{self._path('Pod')}/{pod}/log", query, LOG_PATIENCE_S)

    def end_pod(self, pod: str) -> None:
        """Its time is over from now on: unlike a deleted pod it keeps its log."""
        self._json("PATCH", f"{self._path('Pod')}/{pod}", body={"spec": {"activeDeadlineSeconds": 1}})

    def delete_job(self, name: str, *, now: bool = False) -> None:
        body: dict[str, Any] = {"propagationPolicy": "Background", **({"gracePeriodSeconds": 0} if now else {})}
        self._json("DELETE", f"{self._path('Job')}/{name}", body=body)

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._json("GET", "/api/v1/nodes").get("items") or []
        return found

    def _path(self, kind: str) -> str:
        group = "/apis/batch/v1" if kind == "Job" else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{kind.lower()}s"

    def _json(self, method: str, path: str, query: dict[str, str] | None = None, body: Any = None) -> dict[str, Any]:
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


def read_changes(text: bytes, version: str) -> Watched:
    """The events of a watch; a line that is cut is the next watch's, an expired version needs a list."""
    events: list[dict[str, Any]] = []
    newest: str | None = version
    for line in text.split(b"\n"):
        try:
            event = json.loads(line)
            kind, thing = event["type"], event["object"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if kind == "ERROR":
            return Watched(events, None)
        if not isinstance(thing, dict) or not isinstance(thing.get("metadata") or {}, dict):
            continue
        newest = str((thing.get("metadata") or {}).get("resourceVersion") or newest)
        if kind != "BOOKMARK":
            events.append(event)
    return Watched(events, newest)


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

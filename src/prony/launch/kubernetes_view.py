"""What is known of all jobs of a root in a cluster: kept in a file, brought up to date by one call in 5 s at most.

The first look is a list, the following ones are what changed since (a short watch): an answer is as small as the news,
whatever the number of jobs. Processes that follow the same jobs share the file and its turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prony.launch.kubernetes_answers import Facts, event_facts, job_facts, pod_facts
from prony.launch.kubernetes_api import Api, ApiProblem
from prony.launch.protocol import Warn
from prony_node.contract import files
from prony_node.contract.plain import open_plain

ASK_EVERY_S = 5.0
LONGEST_PAUSE_S = 120.0
READ: dict[str, Callable[[Facts], Facts]] = {"Pod": pod_facts, "Job": job_facts, "Event": event_facts}


class View:
    """Pods, Jobs and events of one root, as last seen."""

    def __init__(
        self, path: Path, api: Callable[[], Api], selector: str, warn: Warn, clock: Callable[[], float]
    ) -> None:
        self._path, self._api, self._selector, self._warn, self._clock = path, api, selector, warn, clock
        self._state: dict[str, Any] = self._load()

    def refresh(self, others: Sequence[Callable[[], object]], events_of: str | None) -> None:
        """One call, if it is time for one: what was looked at longest ago. `others` take their turn like the kinds."""
        with self._alone():
            self._state = self._load()
            now_s = self._clock()
            if now_s < float(self._state.get("next_s") or 0.0) <= now_s + LONGEST_PAUSE_S:
                return
            kinds = ["Pod", "Job", *(["Event"] if events_of else []), *(["other"] if others else [])]
            looked: dict[str, float] = self._state.setdefault("looked_s", {})
            kind = min(kinds, key=lambda one: (looked.get(one) or 0.0, kinds.index(one)))
            looked[kind] = now_s
            pause_s = ASK_EVERY_S
            try:
                if kind == "other":
                    turn = int(self._state.get("turn") or 0)
                    self._state["turn"] = turn + 1
                    others[turn % len(others)]()
                else:
                    self._look(kind, events_of or "")
                self._state["failures"] = 0
            except ApiProblem as error:
                failures = int(self._state.get("failures") or 0) + 1
                self._state["failures"] = failures
                pause_s = min(LONGEST_PAUSE_S, max(ASK_EVERY_S * 2**failures, error.retry_after_s or 0.0))
                self._warn(f"{error}; the jobs are asked for again in {pause_s:g} s")
            # From the end of the call on: a slow server is not asked more often for being slow.
            self._state["next_s"] = self._clock() + pause_s
            self._save()

    def of(self, kind: str) -> dict[str, list[Facts]]:
        """What is known of each job, by its name."""
        found: dict[str, list[Facts]] = {}
        for facts in ((self._state.get(kind) or {}).get("of") or {}).values():
            found.setdefault(str(facts.get("job")), []).append(facts)
        return found

    def taken(self) -> dict[str, str]:
        """The jobs a pod of which was deleted, and its name: an older cluster begins another in its place, unasked."""
        return dict((self._state.get("Pod") or {}).get("taken") or {})

    def events(self) -> list[Facts]:
        kept = self._state.get("Event") or {}
        return list((kept.get("of") or {}).values())

    def listed_s(self, kind: str) -> float | None:
        """When all of a kind were last seen; None where they never were."""
        kept = self._state.get(kind) or {}
        return kept.get("listed_s")

    def _look(self, kind: str, events_of: str) -> None:
        kept = self._state.setdefault(kind, {})
        version = kept.get("version")
        read = READ[kind]
        begun_s = self._clock()
        if kind == "Event" or version is None:
            fields = f"involvedObject.kind={events_of}" if kind == "Event" else ""
            answer = self._api().list_all(kind, "" if kind == "Event" else self._selector, fields)
            items = [item for item in answer.get("items") or () if isinstance(item, dict)]
            before, kept["of"] = kept.get("of") or {}, {_name(item): read(item) for item in items}
            for name in before.keys() - kept["of"].keys():
                _take(kept, before[name])
            kept["version"] = (answer.get("metadata") or {}).get("resourceVersion")
        else:
            seen = self._api().changes(kind, self._selector, str(version))
            for event in seen.events:
                name = _name(event["object"])
                if event["type"] == "DELETED":
                    kept["of"].pop(name, None)
                    _take(kept, read(event["object"]))
                else:
                    kept["of"][name] = read(event["object"])
            kept["version"] = seen.version
            if seen.version is None:  # too old for the server: the next look is a list
                return
        kept["listed_s"] = begun_s

    def _load(self) -> dict[str, Any]:
        try:
            own = self._path.lstat().st_uid == os.geteuid()  # what another says of our jobs is not believed
        except OSError:
            own = False
        state = files.read_json(self._path) if own else None
        good = isinstance(state, dict) and state.get("selector") == self._selector
        return dict(state) if good and isinstance(state, dict) else {"selector": self._selector}

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # nowhere to keep it: each process for itself
            files.write_whole(self._path, self._state)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_plain(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _take(kept: dict[str, Any], facts: Facts) -> None:
    kept.setdefault("taken", {})[str(facts.get("job"))] = str(facts.get("name"))


def _name(item: dict[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name"))

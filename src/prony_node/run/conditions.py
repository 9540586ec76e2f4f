"""Facts and conditions of the machine while a run goes on, on this node and on the others."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.record import LEVELS
from prony_node.contract.run_folder import Parts, make_check
from prony_node.contract.trial import Plan

SAMPLE_EVERY_S = 1.0
FACTS_PATIENCE_S = 20.0
SAMPLER_PATIENCE_S = 5.0


def gather_facts(workload: str = "") -> dict[str, Any]:
    """Host, software, container, environment, source and fingerprint; what fails leaves its reason."""
    facts: dict[str, Any] = {}
    for name, ask in _questions(workload).items():
        try:
            facts[name] = ask()
        except Exception as error:  # one fact that cannot be had must not cost the others, or the run
            facts[name] = {"reason": f"{type(error).__name__}: {error}"}
    if "reason" in facts["fingerprint"]:
        facts["fingerprint"] = {"machine": None, "software": None, "parts": {}, **facts["fingerprint"]}
    return facts


def _questions(workload: str) -> dict[str, Callable[[], dict[str, Any]]]:
    def ask(name: str, *arguments: Any) -> Callable[[], dict[str, Any]]:
        def call() -> dict[str, Any]:
            from prony_node import facts

            answer: dict[str, Any] = getattr(facts, name)(*arguments)
            return answer

        return call

    def fingerprint() -> dict[str, Any]:
        from prony_node.run.questions import fingerprint_for

        return fingerprint_for(workload)

    return {
        "host": ask("host_facts"),
        "software": ask("software_facts"),
        "container": ask("container_facts"),
        "environment": ask("environment_facts"),
        "source": ask("source_facts", Path.cwd()),
        "fingerprint": fingerprint,
    }


Watched = dict[str, Any]  # of a host: `devices`, each with `facts` and `samples`, or the `reason` why it has none


class FactsWriter:
    """Writes facts.json in the background."""

    def __init__(self, folder: Path, workload: str) -> None:
        self._path, self._workload = folder / files.FACTS, workload
        self._thread = threading.Thread(target=self._write, name="facts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Wait for the file, but not for ever."""
        if self._thread.ident is not None:
            self._thread.join(FACTS_PATIENCE_S)

    def _write(self) -> None:
        try:
            files.write_whole(self._path, gather_facts(self._workload))
        except (OSError, ValueError, TypeError) as error:
            print(f"prony_node: no facts were written: {error}", flush=True)


class ConditionSampler:
    """Samples of clocks, throttling and foreign processes, from when the rank has named its device."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self._folder, self._ranks = folder, ranks
        self._samples: dict[str, list[dict[str, Any]]] = {}  # by device
        self._reason = "the rank named no device"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start_when_ready(self) -> None:
        if self._thread is None and len(self._devices()) >= self._ranks:
            self._thread = threading.Thread(target=self._sample, name="conditions", daemon=True)
            self._thread.start()

    def finish(self) -> Watched:
        """What was seen of each device of this host: its facts and its samples, or why there are none."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(SAMPLER_PATIENCE_S)
        if self._reason and not self._samples:
            return {"reason": self._reason}
        return {"devices": {name: {"facts": device, "samples": list(self._samples.get(name, []))}
                            for name, device in distinct(self._devices()).items()}}  # fmt: skip

    def _devices(self) -> list[dict[str, Any]]:
        """The facts of each rank's device on this host, as they wrote them."""
        paths = {self._folder, *files.rank_folders(self._folder).values()}
        found = [files.read_json(path / files.DEVICE) for path in sorted(paths)]
        own = [device for device in found if isinstance(device, dict)]
        return [device for device in own if device.get("host") in (None, platform.node())]

    def _sample(self) -> None:
        try:
            from prony_node.facts.watch import Watch

            watches = {name: Watch(device) for name, device in distinct(self._devices()).items()}
        except Exception as error:
            self._reason = f"{type(error).__name__}: {error}"
            return
        self._reason = ""
        next_s = time.monotonic()
        while not self._stop.is_set():
            try:
                for name, watch in watches.items():
                    self._samples.setdefault(name, []).append(watch.sample())
            except Exception as error:
                self._reason = f"{type(error).__name__}: {error}"
                return
            next_s = max(next_s + SAMPLE_EVERY_S, time.monotonic())
            self._stop.wait(next_s - time.monotonic())
        for name, watch in watches.items():
            self._samples.setdefault(name, []).append(watch.last_sample())


def judged(watched: Watched, window: Any) -> list[tuple[str, list[dict[str, str]]]]:
    """The checks of each device's conditions within the steady window, by that host's clock."""
    try:
        from prony_node.facts.watch_checks import watch_checks

        edges = (float(window[0]), float(window[1]))
        return [(name, watch_checks(one["samples"], edges, one["facts"])) for name, one in watched["devices"].items()]
    except Exception as error:  # what was seen may come from another node's file
        reason = watched.get("reason") or f"{type(error).__name__}: {error}"
        return [("", [make_check("throttled", "unknown", f"conditions could not be judged: {reason}")])]


def distinct(devices: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each device once, whatever number of ranks computes on it, by a name for a person."""
    found: dict[str, dict[str, Any]] = {}
    for device in devices:
        address = (device.get("pci") or {}).get("address")
        name = str(device.get("uuid") or address or device.get("kind") or "cpu")
        found.setdefault(name, device)
    return found


def worst_of(checks: list[tuple[str, list[dict[str, str]]]]) -> list[dict[str, str]]:
    """One check of each name: the worst of the devices, which it names where there are several."""
    worst: dict[str, dict[str, str]] = {}
    for device, made in checks:
        for one in made:
            before = worst.get(one["name"])
            if before is None or LEVELS.index(one["level"]) > LEVELS.index(before["level"]):
                said = f"{device}: {one['message']}" if device and len(checks) > 1 else one["message"]
                worst[one["name"]] = {**one, "message": said}
    return list(worst.values())


PATIENCE_S = 10.0  # for the other nodes to end: their ranks and samplers are told to as the first one's are


def node_name(who: dict[str, Any]) -> str:
    return f"node {who['node']} ({who['host']})"


def wait_for_others(folder: Path, count: int) -> None:
    """Until what they wrote is whole: of the files of a node, node.json comes last."""
    there = [own for node in range(1, count) if (own := files.node_folder(folder, node)).is_dir()]
    end_s = time.monotonic() + PATIENCE_S
    while not all((own / files.NODE).exists() for own in there) and time.monotonic() < end_s:
        time.sleep(0.1)


def why_unseen(own: Path, node: int) -> str:
    """Why the folder of a node says nothing; empty where it does."""
    if not own.is_dir():
        return f"its folder {own.name} cannot be seen from the first node"
    if node and not (own / files.NODE).exists():
        return f"its supervisor had not ended {PATIENCE_S:.0f} s after the first one's"
    return ""


def conditions_of_run(plan: Plan, folder: Path, parts: Parts, watched: Watched) -> list[dict[str, str]]:
    """Whether a device of any node was held back, or shared, within the steady window; without one, nothing is said."""
    window = parts.result.get("window_monotonic")
    if not (isinstance(window, list) and len(window) == 2):
        return []
    count = int(plan.trial.settings.get("nodes", 1))
    if count == 1:
        return worst_of(judged(watched, window))
    wait_for_others(folder, count)
    found = []
    for who in parts.result.get("nodes") or []:
        seen = watched if who["node"] == 0 else _watched_on(folder, who["node"])
        found += [
            (f"{node_name(who)} {device}".rstrip(), made) for device, made in judged(seen, who["window_monotonic"])
        ]
    return worst_of(found)


def _watched_on(folder: Path, node: int) -> Watched:
    own = files.node_folder(folder, node)
    if why := why_unseen(own, node):
        return {"reason": why}
    told = files.read_json(own / files.NODE)
    watched = told.get("watched") if isinstance(told, dict) else None
    return watched if isinstance(watched, dict) else {"reason": "its supervisor said nothing of them"}

"""Facts and conditions of the machine while a run goes on, on this node and on the others."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from prony_node.contract import files
from prony_node.contract.facts import (
    ConditionSample,
    ContainerFacts,
    DeviceConditions,
    DeviceFacts,
    GatheredFacts,
    HostConditions,
    HostFacts,
    Provenance,
    SoftwareFacts,
    SourceFacts,
)
from prony_node.contract.record import LEVELS, Check
from prony_node.contract.run_folder import Parts, parse_device, read_node_end
from prony_node.contract.trial import Plan
from prony_node.contract.typed import encode

SAMPLE_EVERY_S = 1.0
FACTS_PATIENCE_S = 20.0
SAMPLER_PATIENCE_S = 5.0


Room = TypeVar("Room")


def gather_facts(workload: str = "") -> GatheredFacts:
    """Host, software, container, environment, source and fingerprint; what fails leaves its reason."""
    from prony_node import facts
    from prony_node.run.questions import fingerprint_for

    return GatheredFacts(
        _asked(facts.host_facts, lambda why: HostFacts(more=why)),
        _asked(facts.software_facts, lambda why: SoftwareFacts(more=why)),
        _asked(facts.container_facts, lambda why: ContainerFacts(more=why)),
        _asked(facts.environment_facts, lambda why: why),
        _asked(lambda: facts.source_facts(Path.cwd()), lambda why: SourceFacts(more=why)),
        _asked(lambda: fingerprint_for(workload), lambda why: Provenance(more=why)),
    )


def _asked(ask: Callable[[], Room], without: Callable[[dict[str, str]], Room]) -> Room:
    """One fact that cannot be had must not cost the others, or the run."""
    try:
        return ask()
    except Exception as error:
        return without({"reason": f"{type(error).__name__}: {error}"})


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
            files.write_whole(self._path, encode(gather_facts(self._workload)))
        except (OSError, ImportError, ValueError, TypeError) as error:
            print(f"prony_node: no facts were written: {error}", flush=True)


class ConditionSampler:
    """Samples of clocks, throttling and foreign processes, from when the rank has named its device."""

    def __init__(self, folder: Path, ranks: int = 1) -> None:
        self._folder, self._ranks = folder, ranks
        self._samples: dict[str, list[ConditionSample]] = {}  # by device
        self._reason = "the rank named no device"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start_when_ready(self) -> None:
        if self._thread is None and len(self._devices()) >= self._ranks:
            self._thread = threading.Thread(target=self._sample, name="conditions", daemon=True)
            self._thread.start()

    def finish(self) -> HostConditions:
        """What was seen of each device of this host: its facts and its samples, or why there are none."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(SAMPLER_PATIENCE_S)
        if self._reason and not self._samples:
            return HostConditions(reason=self._reason)
        return HostConditions({
            name: DeviceConditions(device, tuple(self._samples.get(name, [])))
            for name, device in distinct(self._devices()).items()
        })  # fmt: skip

    def _devices(self) -> list[DeviceFacts]:
        """The facts of each rank's device on this host, as they wrote them."""
        paths = {self._folder, *files.rank_folders(self._folder).values()}
        found = [parse_device(files.read_json(path / files.DEVICE)) for path in sorted(paths)]
        return [device for device in found if device is not None and device.host in (None, platform.node())]

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


def judged(watched: HostConditions, window: Sequence[float] | None) -> list[tuple[str, list[Check]]]:
    """The checks of each device's conditions within the steady window, by that host's clock."""
    try:
        from prony_node.facts.watch import watch_checks

        if window is None:
            raise ValueError("it has no steady window")
        edges = (float(window[0]), float(window[1]))
        if watched.devices is not None:
            return [(name, watch_checks(one.samples, edges, one.facts)) for name, one in watched.devices.items()]
        reason = watched.reason or "nothing was seen"
    except Exception as error:  # what was seen may come from another node's file
        reason = f"{type(error).__name__}: {error}"
    return [("", [Check("throttled", "unknown", f"conditions could not be judged: {reason}")])]


def distinct(devices: Iterable[DeviceFacts]) -> dict[str, DeviceFacts]:
    """Each device once, whatever number of ranks computes on it, by a name for a person."""
    found: dict[str, DeviceFacts] = {}
    for device in devices:
        found.setdefault(device.uuid or device.address or device.kind or "cpu", device)
    return found


def worst_of(checks: Sequence[tuple[str, Iterable[Check]]]) -> list[Check]:
    """One check of each name: the worst of the devices, which it names where there are several."""
    worst: dict[str, Check] = {}
    for device, made in checks:
        for one in made:
            before = worst.get(one.name)
            if before is None or LEVELS.index(one.level) > LEVELS.index(before.level):
                said = f"{device}: {one.message}" if device and len(checks) > 1 else one.message
                worst[one.name] = replace(one, message=said)
    return list(worst.values())


PATIENCE_S = 10.0  # for the other nodes to end: their ranks and samplers are told to as the first one's are


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


def conditions_of_run(plan: Plan, folder: Path, parts: Parts, watched: HostConditions) -> list[Check]:
    """Whether a device of any node was throttled, or shared, within the steady window; without one, nothing is said."""
    window = parts.result.window
    if window is None:
        return []
    count = int(plan.trial.settings.get("nodes", 1))
    if count == 1:
        return worst_of(judged(watched, window))
    wait_for_others(folder, count)
    found = []
    for who in parts.result.nodes or ():
        seen = watched if who.node == 0 else _watched_on(folder, who.node)
        found += [(f"{who.node_name} {device}".rstrip(), made) for device, made in judged(seen, who.window_monotonic)]
    return worst_of(found)


def _watched_on(folder: Path, node: int) -> HostConditions:
    own = files.node_folder(folder, node)
    if why := why_unseen(own, node):
        return HostConditions(reason=why)
    told = read_node_end(own)
    return told.watched if told is not None else HostConditions(reason="its supervisor said nothing of them")

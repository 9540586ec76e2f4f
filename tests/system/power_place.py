"""A made-up GPU, synthesised as a recording, and a place to start `prony power` in: for the tests beside this file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import need_proc
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor

ROOT = Path(__file__).parents[2]
PRONY = [str(Path(sys.executable).parent / "prony"), "power"]
PART = "GPU-5f1c0a3e-0000-4000-8000-000000000001"
SAMPLER = "prony_node.power.sampler"
PATIENCE_S = 60.0


def make_recording(folder: Path) -> Path:
    """200 W by a counter and by a power sensor; busy, so that nobody waits to see it idle."""
    folder.mkdir()
    counter = Sensor("made.energy", "made", "counter", "gpu", PART, "Made GPU, counter", period_s=0.1)
    power = Sensor("made.power", "made", "instantaneous", "gpu", PART, "Made GPU, power", period_s=0.05)
    writer = Writer(folder, [counter, power], {"reasons": {}, "busy_at_start": {PART: "90 % utilised"}})
    for number in range(1200):
        at_s = 0.05 * number
        writer.add(counter, [Reading(at_s, at_s + 1e-4, 20.0 * (number // 2))])
        writer.add(power, [Reading(at_s, at_s + 1e-4, 200.0)])
    writer.close()
    return folder


class Place:
    """A folder of one test, and the environment in which the made-up GPU is there."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "here"
        self.tmp = self.here / "tmp"
        self.tmp.mkdir(parents=True)
        recording = make_recording(folder / "recording")
        own = {"PRONY_POWER_REPLAY": str(recording), "TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT / "src")}
        self.environment = {**os.environ, **own}

    def without_sensor(self) -> None:
        self.environment["PRONY_POWER_REPLAY"] = str(self.here / "nothing")

    def power(self, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self.run([*PRONY, *words], **more)

    def run(self, words: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.run(words, cwd=self.here, env=self.environment, timeout=120, **{**streams, **more})

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE

        def listen() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it, as nohup does

        return subprocess.Popen(
            [*PRONY, *words],
            cwd=self.here,
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            preexec_fn=listen,
        )

    def samplers(self) -> list[str]:
        """The samplers that were started from here."""
        need_proc()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                cwd = str((entry / "cwd").readlink())
            except OSError:
                continue
            if SAMPLER in words and cwd == str(self.here):
                found.append(entry.name)
        return found


def wait_for(what: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while not what() and time.monotonic() < end_s:
        time.sleep(0.05)
    return what()

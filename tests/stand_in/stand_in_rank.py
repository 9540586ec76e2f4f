"""A rank without torch, for tests of what surrounds a rank: same files, same phases, a chosen end.

PRONY_STAND_IN holds words: a phase with what happens in it (`measure=hang`, `build=crash`, `end=segfault`),
`pace=SECONDS` for the length of each phase, `rate=batch` for a rate that grows with the batch until it saturates, and
`checks=fail` for a check that fails on batches of more than 8 samples.
Of several ranks, the one whose number stands before: `1:measure=kill`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.trial import Plan, Trial
from prony_node.parallel.place import place_of
from prony_node.run.processes import enter_rank_folder

# As the first rank waits for what the others saw, for ever when one has failed, and with a stack that looks like it.
WAIT = 'import time\nwhile not (other.exists() and \'"status": "ok"\' in other.read_text()):\n    time.sleep(0.05)'
PHASES = ("build", "cold_start", "measure", "teardown")


def main(plan_file: str, out: str) -> int:
    folder = Path(out)
    wishes = dict(word.split("=", 1) for word in os.environ.get("PRONY_STAND_IN", "").split())
    pace_s = float(wishes.pop("pace", "0.05"))
    grows = wishes.pop("rate", "") == "batch"
    fails = wishes.pop("checks", "") == "fail"
    plan = Plan.from_json(json.loads(Path(plan_file).read_text()))
    place = place_of(plan.trial.settings)
    if place.size > 1:
        folder = enter_rank_folder(place, folder)
        wishes = {key[2:]: wish for key, wish in wishes.items() if key.startswith(f"{place.rank}:")}
    misbehave(wishes.get("import"), folder)
    with (folder / files.STACKS).open("w") as stacks, (folder / files.PROGRESS).open("a") as progress:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        for number, phase in enumerate(PHASES):
            if phase == "cold_start":
                files.write_whole(folder / files.DEVICE, {"name": "stand-in", "kind": "cpu"})
            line = {"time": time.time(), "phase": phase, "steps": 10 * number, "rate": 5.0}
            line |= {
                "unit": "images/s",
                "half_width": 0.02,
                "target": plan.stop.tolerance,
                "elapsed_s": 0.0,
                "left_s": 1.0,
            }
            progress.write(json.dumps(line) + "\n")
            progress.flush()
            time.sleep(pace_s)
            misbehave(wishes.get(phase), folder)
        if place.size > 1 and place.rank == 0:
            exec(compile(WAIT, "torch/distributed/stand_in.py", "exec"), {"other": folder / "rank1" / files.RESULT})
        if plan.walk:
            walk(plan, folder, fails)
        files.write_whole(folder / files.RESULT, grown(result(plan), plan, fails) if grows else result(plan))
        misbehave(wishes.get("end"), folder)
    return 0


def misbehave(wish: str | None, folder: Path) -> None:
    if wish == "hang":
        time.sleep(600)
    elif wish == "deaf":  # hangs and does not listen to SIGTERM either
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif wish == "chatter":  # hangs while a thread goes on printing
        threading.Thread(target=chatter, daemon=True).start()
        time.sleep(600)
    elif wish == "crawl":  # goes on for ever, with signs of progress
        with (folder / files.PROGRESS).open("a") as progress:
            while True:
                print(json.dumps({"time": time.time(), "phase": "measure", "steps": 1}), file=progress, flush=True)
                time.sleep(0.1)
    elif wish == "flood":  # 200 MB of numbered lines, as fast as it can
        for number in range(200):
            os.write(1, b"".join(b"%099d\n" % (10_000 * number + line) for line in range(10_000)))
    elif wish == "crash":
        raise ValueError("the stand-in was asked to crash")
    elif wish == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif wish == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif wish == "leave":  # ends without a result
        sys.exit(0)
    elif wish == "orphan":  # leaves a process behind that has left the group as well
        argv = [sys.executable, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(argv, start_new_session=True)
        (folder / "orphan.pid").write_text(str(child.pid))
    elif wish in ("request", "missing-library", "out-of-memory"):
        failure = {"kind": wish, "message": f"the stand-in was asked for {wish}"}
        files.write_whole(folder / files.RESULT, {"status": "failed", "failure": failure})
        sys.exit(1)
    elif wish == "nonsense":
        metrics = {"throughput": {"value": "much"}}
        files.write_whole(folder / files.RESULT, {"status": "ok", "metrics": metrics})
        sys.exit(0)


def chatter() -> None:
    while True:
        print("I am here", flush=True)
        time.sleep(0.05)


def result(plan: Plan) -> dict[str, object]:
    rate = {"value": 5.0, "low": 4.9, "high": 5.1, "unit": "images/s", "source": "invented"}
    rate |= {"scope": "all devices", "interval": "within one run"}
    now_s = time.monotonic()
    return {
        "status": "ok",
        "unit": "images",
        "effective": {**plan.trial.settings, "batch_size": 4},
        "metrics": {"throughput": rate},
        "phases": {"steady": {"seconds": 1.0, "steps": 10}},
        "steady": None,
        "checks": [{"name": "steady", "level": "pass", "message": "invented"}],
        "work": {"samples": 40, "steps": 10, "devices": 1},
        "stop_reason": "tolerance",
        "window_monotonic": [now_s - 0.1, now_s],
    }


def walk(plan: Plan, folder: Path, fails: bool) -> None:
    """A result for each size, until one has no memory."""
    for size in plan.walk:
        of_size = replace(plan, trial=Trial(plan.trial.workload, {**plan.trial.settings, "batch_size": size}))
        found = grown(result(of_size), of_size, fails)
        own = folder / files.WALK / str(size)
        own.mkdir(parents=True)
        files.write_whole(own / files.RESULT, found)
        if found["status"] != "ok":
            return


def grown(made: dict[str, object], plan: Plan, fails: bool) -> dict[str, object]:
    """The same with the rate of a batch: half of the highest at 8 samples; from 64 samples on there is no memory."""
    batch = int(plan.trial.settings.get("batch_size", 4))
    if fails and batch > 8:
        made = {**made, "checks": [{"name": "parameters", "level": "fail", "message": "invented"}]}
    if batch >= 64:
        return {"status": "failed", "failure": {"kind": "out-of-memory", "message": "invented"}}
    value = 100.0 * batch / (batch + 8)
    rate = {**made["metrics"]["throughput"], "value": value, "low": 0.99 * value, "high": 1.01 * value}  # type: ignore[index]
    return {**made, "metrics": {"throughput": rate}, "effective": {**plan.trial.settings, "batch_size": batch}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

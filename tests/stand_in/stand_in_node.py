"""The node program without torch and without a rank: the files of a run folder in the same steps, in milliseconds.

It answers `-m prony_node fingerprint|devices`, and `-m prony_node PLAN OUT` as a supervisor does: it takes the folder
over, writes facts, progress, result and record, and an interrupted record when its controller goes away. Once there is
a result it ends its work whoever is gone. PRONY_STAND_IN_MEMORY=N: batches of more than N samples run out of memory;
PRONY_STAND_IN_FAILS=KIND: every run fails so; PRONY_STAND_IN_PACE: seconds between two steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from prony_node.contract import files
from prony_node.contract.machine import identify
from prony_node.contract.record import Failure
from prony_node.contract.run_folder import (
    SUPERVISOR,
    assemble,
    node_source_hash,
    read_parts,
    write_manifest,
)
from prony_node.contract.trial import Plan

HERE = {"machine": "stand-in", "software": "stand-in"}
CONTROLLER = os.getppid()


def main(words: list[str]) -> int:
    assert words[:2] == ["-m", "prony_node"]
    if words[2] == "fingerprint":
        print(json.dumps(HERE))
    elif words[2] == "devices":
        print(json.dumps({"kind": "cpu", "devices": ["cpu"]}))
    else:
        supervise(Path(words[2]), Path(words[3]))
    return 0


def supervise(plan_file: Path, folder: Path) -> None:
    started = now()
    plan = Plan.from_json(
        json.loads(sys.stdin.read() if str(plan_file) == "-" else plan_file.read_text(encoding="utf-8"))
    )
    batch, fails = int(plan.trial.settings.get("batch_size", 1)), os.environ.get("PRONY_STAND_IN_FAILS")
    some_s = 0.02 if batch % 3 == 1 else 0.001
    pace_s = float(os.environ.get("PRONY_STAND_IN_PACE", some_s))
    if (folder / files.RECORD).exists():  # collected before we came
        return
    files.write_whole(folder / files.SUPERVISOR, {"role": "supervisor", **identify()})
    time.sleep(pace_s)
    software = {"prony_node_source": node_source_hash()}
    files.write_whole(folder / files.FACTS, {"fingerprint": HERE, "software": software})
    with (folder / files.PROGRESS).open("a", encoding="utf-8") as progress:
        for phase in ("build", "cold_start", "measure"):
            progress.write(json.dumps({"time": time.time(), "phase": phase}) + "\n")
            progress.flush()
            time.sleep(pace_s)
            if os.getppid() != CONTROLLER:
                return record(plan, folder, started, Failure("interrupted", "the controller went away"))
    if batch > int(os.environ.get("PRONY_STAND_IN_MEMORY", 10**9)):
        return record(plan, folder, started, Failure("out-of-memory", f"no room for {batch}"))
    if fails:
        return record(plan, folder, started, Failure(fails, "as it was asked to"))
    rate = {"value": 5.0 * batch, "unit": "images/s", "source": "invented", "scope": "all devices"}
    power = {"value": 100.0, "unit": "W", "source": "invented", "scope": "all devices"}
    metrics = {"throughput": rate, "power": power}
    files.write_whole(folder / files.RESULT, {"status": "ok", "unit": "images", "metrics": metrics, "effective": {}})
    time.sleep(10 * pace_s)
    if os.getppid() != CONTROLLER:
        time.sleep(2.0)  # longer than the next controller takes to start
    return record(plan, folder, started, None)


def record(plan: Plan, folder: Path, started: str, failure: Failure | None) -> None:
    made = assemble(plan, read_parts(folder), started=started, ended=now(), failure=failure)
    files.write_once(folder / files.RECORD, made)
    write_manifest(folder, SUPERVISOR)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A rank without torch, on a device that never was: what a try of batch_size=auto sees, without the memory.

PRONY_STAND_IN holds words: `fits=N`, the largest batch that the device takes, and `above=END`, what becomes of a larger
one (memory, segfault, leave, error, hang, shrink; memory unless told), and `set=N`, the samples of a data set.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.trial import Plan

ROOM = 1_000_000


def main(plan_file: str, out: str) -> int:
    folder = Path(out)
    with (folder / files.STACKS).open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        plan = Plan.from_json(json.loads(Path(plan_file).read_text()))
        wishes = dict(word.split("=", 1) for word in os.environ["PRONY_STAND_IN"].split())
        batch, fits = int(plan.trial.settings["batch_size"]), int(wishes["fits"])
        found: dict[str, Any] = {"memory_room": ROOM}
        found["effective"] = plan.trial.settings
        if "set" in wishes:
            found["data"] = {"samples": int(wishes["set"])}
        if batch <= fits:
            found |= {"status": "ok", "memory_held": ROOM // 10 + (ROOM - ROOM // 10) * batch // (fits + 1)}
        else:
            found |= {"status": "failed", **end_of(wishes.get("above", "memory"), batch)}
        files.write_whole(folder / files.RESULT, found)
    return 0 if found["status"] == "ok" else 1


def end_of(wish: str, batch: int) -> dict[str, Any]:
    print(f"the stand-in has no room for {batch}", flush=True)
    if wish == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if wish == "leave":
        os._exit(3)
    if wish == "hang":
        time.sleep(600)
    kind = "exception" if wish == "error" else "out-of-memory"
    shrunk = {"memory_room": ROOM // 2} if wish == "shrink" else {}
    return {"failure": {"kind": kind, "message": f"the stand-in says {wish}"}, **shrunk}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

"""What a record says, field by field, for ten kinds of run: held against tests/golden/records.

Figures, times and what a machine is are left out. What stays: which fields there are, which metrics have a value and in
which unit, which checks were made, the effective settings, how a run ended. PRONY_GOLDEN=write renews the files; look
at the difference before committing it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "records"
sys.path.insert(0, str(ROOT / "tests" / "unit" / "prony_node" / "data"))
import small_sets  # noqa: E402

from prony_node.contract import files  # noqa: E402

pytestmark = pytest.mark.slow

SHORT = ("size=tiny", "device=cpu", "cores=1", "steps=8")
EXAMPLE = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/how-to/own-model.md").read_text(encoding="utf-8"), re.DOTALL
)[-1]
BROKEN = (
    EXAMPLE.replace("loss=lambda network, batch: F.cross_entropy(network(batch[0]), batch[1])", "loss=loss")
    + """

STEPS = []


def loss(network, batch):
    STEPS.append(None)
    if len(STEPS) > 12:
        raise ValueError("the thirteenth loss")
    return F.cross_entropy(network(batch[0]), batch[1])
"""
)
CASES = {
    "training": ("gpt-tiny", *SHORT),
    "inference": ("gpt-tiny", *SHORT, "mode=infer"),
    "data-set": ("resnet50", *SHORT, "data={images}", "batch_size=4"),
    "quality": ("resnet50", "size=tiny", "device=cpu", "cores=1", "data={images}", "batch_size=4", "epochs=1"),
    "ddp": ("gpt-tiny", *SHORT, "devices=2"),
    "pipeline": ("gpt-tiny", *SHORT, "devices=2", "pp=2", "batch_size=2"),
    "collective": ("allreduce", "device=cpu", "devices=2", "largest=4KiB"),
    "failure": ("./broken.py", "device=cpu", "steps=40"),
    "out-of-memory": ("mobilenetv3-small", "size=tiny", "device=cpu", "cores=1", "memory_cap=1", "steps=2",
                      "batch_size=4096"),
    "interrupted": ("gpt-tiny", "size=tiny", "device=cpu", "cores=1"),
}  # fmt: skip
FAILING = {"failure": 1, "out-of-memory": 1, "interrupted": 130}
QUICK = ("inference", "data-set", "quality")  # whose ranks need not import torch again
HELD = ("schema", "status", "unit", "repeat", "stop")  # and the parts below


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("golden")
    small_sets.imagenet(place / "images", each=16)
    (place / "broken.py").write_text(BROKEN)
    return place


@pytest.mark.parametrize("name", CASES)
def test_a_record_is_what_it_was(name: str, place: Path, quick_ranks: dict[str, str]) -> None:
    if name == "out-of-memory" and not sys.platform.startswith("linux"):
        pytest.skip("the cap on a CPU's memory is Linux's")
    for number in range(3):
        record = make(name, place, place / f"runs-{name}-{number}", quick_ranks if name in QUICK else {})
        if not held_up(record):
            break
    shown = json.dumps(outline(record, place), indent=1, sort_keys=True) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("PRONY_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8"), f"{path} differs; PRONY_GOLDEN=write renews it"


def held_up(record: dict[str, Any]) -> bool:
    """Whether a step took so long on a loaded machine that the few steps of the run have no interval."""
    rate = record["metrics"].get("throughput") or {}
    return record["status"] == "ok" and str(rate.get("interval")).startswith("none")


def make(name: str, place: Path, runs: Path, ranks: dict[str, str]) -> dict[str, Any]:
    """The record of one run, whatever its end; a run is interrupted when it measures."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PRONY_") or key == "PRONY_LOCKS"}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(runs), **ranks}
    words = [word.replace("{images}", str(place / "images")) for word in CASES[name]]
    limit = [] if any(word.startswith(("steps", "epochs")) for word in words) else ["--max-time", "3s"]
    limit = ["--max-time", "100s", "--tolerance", "0.01%"] if name == "interrupted" else limit
    argv = [sys.executable, "-m", "prony", "run", *words, *limit, "--no-energy"]
    with subprocess.Popen(
        argv, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        if name == "interrupted":
            until_it_measures(runs)
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[0].decode()
    assert process.returncode == FAILING.get(name, 0), said
    (path,) = runs.glob("*/record.json")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def until_it_measures(runs: Path) -> None:
    for _ in range(600):
        if any('"phase": "measure"' in path.read_text() for path in runs.glob(f"*/{files.PROGRESS}")):
            return
        time.sleep(0.1)
    raise AssertionError("it never measured")


def outline(record: dict[str, Any], place: Path) -> dict[str, Any]:
    """A record without its figures."""
    trial = record["trial"]
    text = json.dumps(
        {
            **{key: record[key] for key in HELD if key in record},
            "fields": sorted(record),
            "trial": {**{key: kind(value) for key, value in trial.items()}, "settings": trial["settings"]},
            "effective": trial["effective"],
            "metrics": {name: told(metric) for name, metric in record["metrics"].items()},
            "phases": {name: sorted(phase) for name, phase in record["phases"].items()},
            "checks": sorted(check["name"] for check in record["checks"]),
            "facts": sorted(record["facts"]),
            "work": {key: kind(value) for key, value in (record.get("work") or {}).items()},
            "failure": without_allocator(masked(record.get("failure"))),
            "learning": sorted(record.get("learning") or {}),
            "parallel": sorted(record.get("parallel") or {}),
            "collective": sorted(record.get("collective") or {}),
        }
    )
    found: dict[str, Any] = json.loads(text.replace(str(place), "PLACE"))
    if (stop := found.get("stop")) and stop.get("reason"):
        stop["reason"] = stop["reason"].partition(", but")[0]  # what was missing differs with the machine's load
    return found


def told(metric: dict[str, Any]) -> dict[str, Any]:
    if metric.get("value") is None:
        return {"value": None, "reason": masked(metric.get("reason"))}
    return {key: kind(value) if key in ("value", "low", "high") else masked(value) for key, value in metric.items()}


def without_allocator(failure: Any) -> Any:
    """The allocator's own words differ between architectures."""
    if isinstance(failure, dict) and isinstance(failure.get("message"), str):
        failure["message"] = re.sub(r"\[enforce fail at .*?(?=; before the run)", "ALLOCATOR", failure["message"])
    return failure


def kind(value: object) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def masked(value: Any) -> Any:
    """Text with its numbers left out, in whatever holds it."""
    if isinstance(value, str):
        return re.sub(r"\d[\d.,]*", "#", value)
    if isinstance(value, dict):
        return {key: masked(one) for key, one in value.items()}
    if isinstance(value, list):
        return [masked(one) for one in value]
    return value if value is None or isinstance(value, bool) else kind(value)

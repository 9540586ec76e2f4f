"""Each setting through a real rank on this machine's CPU: it takes effect, or it is refused with its kind.

Most ranks are made of a process that has imported torch already (tests/stand_in/forked_rank.py).
"""

from __future__ import annotations

import contextlib
import csv
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from processes import need_proc
from prony_node.contract import Plan, Stop, Trial, files
from prony_node.contract.run_folder import assemble, read_parts
from prony_node.contract.settings import Value
from prony_node.run.watchdog import last_progress

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STOP = Stop(tolerance=0.05, min_time_s=0.2, max_time_s=1.0)
ANY: dict[str, Value] = {"device": "cpu", "batch_size": 2, "cores": "1", "steps": 3}
TINY: dict[str, Value] = {**ANY, "sequence": 8}
MEMORY_LIMIT_B = 16 * 2**30


def limit_memory() -> None:
    """What is too large must be refused here, not taken from whoever shares this machine."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_B, MEMORY_LIMIT_B))


@dataclass(frozen=True)
class Place:
    """A folder for one run, and how its rank is started."""

    folder: Path
    module: str
    variables: dict[str, str]

    def make_run(self, workload: str = "gpt-tiny", settings: dict[str, Value] | None = None) -> dict[str, Any]:
        """The record of one rank, started as the supervisor starts it; nothing of it may be left running."""
        plan = Plan(run_id="x", trial=Trial(workload, TINY if settings is None else settings), stop=STOP)
        files.write_whole(self.folder / files.PLAN, plan.to_json())
        argv = [sys.executable, "-m", self.module, str(self.folder / files.PLAN), str(self.folder)]
        environment = {**os.environ, **self.variables, "XDG_CACHE_HOME": str(self.folder / "home")}
        with (self.folder / files.LOG).open("wb") as log:
            rank = subprocess.Popen(
                argv, env=environment, stdout=log, stderr=log, start_new_session=True, preexec_fn=limit_memory
            )
            code = rank.wait(timeout=240)
        end_s = time.monotonic() + 60.0
        while is_left(rank.pid) and time.monotonic() < end_s:  # what it started ends with it, a moment later
            time.sleep(0.02)
        assert not is_left(rank.pid)
        record = assemble(
            plan, read_parts(self.folder), started="2026-01-01T00:00:00+00:00", ended="2026-01-01T00:01:00+00:00"
        )
        assert code == (0 if record["status"] == "ok" else 1)
        return record

    def good_run(self, workload: str = "gpt-tiny", **given: Value) -> dict[str, Any]:
        """A run that ended well, with what must hold for every such run."""
        asked = {**(TINY if workload == "gpt-tiny" else ANY), **given}
        record = self.make_run(workload, asked)
        assert record["failure"] is None, (self.folder / files.LOG).read_text()[-3000:]
        effective, work = record["trial"]["effective"], record["work"]
        assert asked.items() <= effective.items()
        assert not [check for check in record["checks"] if check["level"] == "fail"]
        samples = effective["batch_size"] * effective.get("grad_accumulation", 1)
        assert work["samples"] == work["steps"] * samples
        phases = record["phases"]
        assert work["total_steps"] == sum(phases[name]["steps"] for name in ("cold_start", "warm_up", "steady"))
        with (self.folder / files.STEPS).open() as file:
            rows = list(csv.DictReader(file))
        assert sum(int(row["steps"]) for row in rows) == effective["steps"]
        assert record["metrics"]["throughput"]["value"] > 0
        assert record["metrics"]["flops_per_sample"]["value"] > 0
        assert record["facts"]["devices"]
        return record


@pytest.fixture
def place(tmp_path: Path, quick_ranks: dict[str, str]) -> Place:
    return Place(tmp_path, quick_ranks["PRONY_RANK_MODULE"], quick_ranks)


@pytest.fixture
def from_the_start(tmp_path: Path) -> Place:
    """Where the rank is a process of its own, which imports torch."""
    return Place(tmp_path, "prony_node.run.rank", {"PYTHONPATH": str(ROOT / "src")})


def is_left(group: int) -> bool:
    """Whether a process of this group is there still."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory, quick_ranks: dict[str, str]) -> dict[str, Any]:
    return Place(tmp_path_factory.mktemp("fp32"), quick_ranks["PRONY_RANK_MODULE"], quick_ranks).good_run()


def loss(record: dict[str, Any]) -> float:
    return float(record["metrics"]["loss_first"]["value"])


def test_defaults_on_a_cpu_are_those_of_an_expert(plain_run: dict[str, Any]) -> None:
    effective = plain_run["trial"]["effective"]
    assert (effective["precision"], effective["compile"], effective["graphs"]) == ("fp32", "off", False)
    assert (effective["optimizer"], effective["fused"], effective["data"]) == ("adamw", True, "device")
    assert plain_run["unit"] == "tokens"
    assert plain_run["metrics"]["data_wait_share"]["value"] is None


def test_another_seed_is_another_run(plain_run: dict[str, Any], place: Place) -> None:
    assert loss(place.good_run(seed=1)) != loss(plain_run)


@pytest.mark.parametrize(
    "given",
    [
        {"precision": "bf16", "grad_accumulation": 2},
        {"precision": "bf16-pure", "optimizer": "sgd"},
        {"precision": "fp16", "fused": False},
        {"precision": "fp16", "fused": True, "optimizer": "adam"},
        {"preset": "plain", "grad_accumulation": 3, "data": "host"},
    ],
    ids=lambda given: " ".join(f"{name}={value}" for name, value in given.items()),
)
def test_a_training_run_with(place: Place, given: dict[str, Value]) -> None:
    record = place.good_run(**given)
    checks = {check["name"]: check["level"] for check in record["checks"]}
    assert checks["finite"] == "pass"
    if given.get("preset") == "plain":
        effective = record["trial"]["effective"]
        assert (effective["precision"], effective["fused"]) == ("default", False)


def test_recomputed_work_is_recorded_apart(plain_run: dict[str, Any], place: Place) -> None:
    record = place.good_run(recompute=True)
    assert record["metrics"]["recomputed_flops_per_sample"]["value"] > 0
    assert record["metrics"]["flops_per_sample"] == plain_run["metrics"]["flops_per_sample"]
    assert loss(record) == loss(plain_run)  # the same seed: the same weights and samples


def test_a_run_has_the_kernels_that_its_settings_name(place: Place) -> None:
    named = place.good_run("resnet50", size="tiny", kernels="compiled-norms,folded-stem")
    library = place.good_run("resnet50", size="tiny", kernels="library")
    assert loss(named) == pytest.approx(loss(library), rel=1e-3)
    assert loss(named) != loss(library)  # the same sums, in another order


def test_batches_from_the_host(place: Place) -> None:
    record = place.good_run(data="host", workers=2, prefetch=2)
    assert 0 <= record["metrics"]["data_wait_share"]["value"] <= 1
    assert record["metrics"]["cpu_utilisation"]["value"] > 0


def test_inference(place: Place) -> None:
    record = place.good_run(mode="infer", precision="bf16")
    checks = {check["name"]: check["level"] for check in record["checks"]}
    assert (checks["outputs"], checks["finite"]) == ("pass", "pass")
    latency = [record["metrics"][f"latency_p{q}"]["value"] for q in (50, 90, 99)]
    assert latency == sorted(latency)
    assert record["phases"]["latency"]["steps"] >= 20
    assert "optimizer" not in record["trial"]["effective"]


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler here")
def test_a_compiled_run_says_what_its_cache_was(from_the_start: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else torch compiles and tries a program for each kind of vector unit first, which takes as long as the model.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")  # longer than the few kernels take
    given: dict[str, Value] = {"size": "tiny", "image_size": 16, "mode": "infer"}
    record = from_the_start.good_run("wideresnet", **given, compile="default", compile_cache="cold")
    assert {check["name"]: check["level"] for check in record["checks"]}["outputs"] == "pass"
    cache = record["phases"]["cold_start"]["compile_cache"]
    assert (cache["state"], cache["hits"]) == ("cold", 0)
    assert cache["misses"] > 0
    assert "cold" in record["metrics"]["cold_start"]["source"]


def test_epochs_need_a_data_set(place: Place) -> None:
    given = {name: value for name, value in TINY.items() if name != "steps"}
    record = place.make_run(settings={**given, "epochs": 1})
    assert record["failure"]["kind"] == "request"
    assert "gpt-tiny has no data set of a known size" in record["failure"]["message"]


@pytest.mark.parametrize(
    ("workload", "given", "kind", "sentence"),
    [
        ("gpt-tiny", {"cores": "999"}, "request", "this machine lets us use"),
        ("gpt-tiny", {"graphs": True}, "request", "needs a device with graphs"),
        ("gpt-tyni", {}, "request", "did you mean 'gpt-tiny'?"),
        ("gpt-175b", {"sequence": 2048}, "out-of-memory", "GiB were free on cpu"),
        ("gpt-tiny", {"batch_size": 10**9}, "out-of-memory", "were free on cpu"),
    ],
)
def test_what_cannot_be_is_a_failure_of_its_kind(
    place: Place, workload: str, given: dict[str, Value], kind: str, sentence: str
) -> None:
    record = place.make_run(workload, {**TINY, **given})
    assert record["failure"]["kind"] == kind
    assert sentence in record["failure"]["message"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what this test wants to be missing")
def test_a_device_that_is_not_here(place: Place) -> None:
    record = place.make_run(settings={**TINY, "device": "cuda"})
    assert record["failure"]["kind"] == "missing-device"
    assert "device=cuda is not here" in record["failure"]["message"]


def test_a_forked_rank_ends_with_whoever_asked_for_it(place: Place) -> None:
    """What the tests above rest on: a supervisor that kills its rank has killed the fork."""
    need_proc()
    plan = Plan(run_id="x", trial=Trial("gpt-tiny", {**TINY, "steps": 10**6}), stop=STOP)
    files.write_whole(place.folder / files.PLAN, plan.to_json())
    argv = [sys.executable, "-m", place.module, str(place.folder / files.PLAN), str(place.folder)]
    asking = subprocess.Popen(argv, env={**os.environ, **place.variables}, cwd=place.folder)
    while (last_progress(place.folder) or {}).get("phase") != "measure":
        assert asking.poll() is None
        time.sleep(0.02)
    assert len(working_in(place.folder)) == 2, "who asked, and the rank"
    asking.kill()
    asking.wait()
    end_s = time.monotonic() + 60.0
    while working_in(place.folder) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert working_in(place.folder) == []


def working_in(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == folder:
                found.append(entry.name)
    return found

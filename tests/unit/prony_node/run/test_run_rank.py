"""A failure has the right kind and a sentence, and a rank that fails leaves what it knew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from prony_node.backends.torch.backend import MissingDevice
from prony_node.contract import Plan, RequestError, Trial, files
from prony_node.contract.record import FAILURES, Phase
from prony_node.contract.run_folder import RankResult
from prony_node.contract.settings import Value
from prony_node.measure.batch_search import OutOfMemory
from prony_node.run import rank
from prony_node.run.journal import Journal

FREE = "5.0 GiB of 8.0 GiB were free on cpu"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RequestError("steps and epochs are both lengths"), "request", "steps and epochs are both lengths"),
        (ModuleNotFoundError("No module named 'timm'", name="timm.models"), "missing-library",
         "needs timm, which is not installed here: pip install 'prony[vision]'"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "missing-library", "pip install 'prony[node]'"),
        (ModuleNotFoundError("No module named 'einops'", name="einops"), "missing-library", "needs einops, which"),
        (ModuleNotFoundError("No module named 'prony_node.measure.protocol'", name="prony_node.measure.protocol"),
         "request", "Task is in prony_node.backends.torch.task"),
        (MissingDevice("device=cuda is not here"), "missing-device", "device=cuda is not here"),
        (OutOfMemory("the weights alone need 9 GiB"), "out-of-memory", "the weights alone need 9 GiB"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out-of-memory", "Tried to allocate"),
        (RuntimeError("CUDA error: out of memory"), "out-of-memory", "CUDA error"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
         "out-of-memory", "you tried to allocate 9"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), "out-of-memory", "MPS"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out-of-memory", "CUBLAS"),
        (MemoryError(), "out-of-memory", ""),
        (ValueError("ran out of memory of what to say"), "exception", "ValueError: ran out"),
        (RuntimeError("shape\n  mismatch"), "exception", "RuntimeError: shape mismatch"),
        (ImportError("libcudart.so.12: cannot open shared object file"), "missing-library", "loaded here: libcudart"),
    ],
)  # fmt: skip
def test_a_failure_has_its_kind_and_a_sentence(error: Exception, kind: str, message: str) -> None:
    found = rank.describe(error)
    assert found.kind == kind
    assert kind in FAILURES
    assert message in found.message
    assert "\n" not in found.message


def test_out_of_memory_says_what_was_free() -> None:
    silent = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    assert rank.describe(silent, FREE).message.endswith(f"9 bytes; before the run {FREE}")
    telling = torch.OutOfMemoryError("CUDA out of memory. GPU 0 has 9 GiB of which 1 GiB is free")
    assert FREE not in rank.describe(telling, FREE).message  # torch said it, for the very moment
    assert FREE not in rank.describe(ValueError("x"), FREE).message


def test_a_long_message_is_cut() -> None:
    assert len(rank.describe(RuntimeError("x" * 10_000)).message) < 700


def run_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, settings: dict[str, Value] | None = None
) -> tuple[int, dict[str, Any]]:
    """A run that comes so far and then fails, or does not."""

    def stand_in(plan: Plan, journal: Journal, place: object) -> RankResult:
        journal.keep(unit="tokens", memory_free=FREE)
        journal.add(phases={"build": Phase(1.0, 0)})
        if error is not None:
            raise error
        return journal.result

    monkeypatch.setattr(rank, "run", stand_in)
    monkeypatch.setattr(rank.faulthandler, "register", lambda *_, **__: None)
    plan = folder / files.PLAN
    plan.write_text(json.dumps(Plan(run_id="x", trial=Trial("gpt-tiny", settings or {})).to_json()))
    code = rank.main([str(plan), str(folder)])
    result = files.read_json(folder / files.RESULT)
    assert isinstance(result, dict)
    return code, result


def test_a_good_run_ends_in_a_good_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, result = run_rank(tmp_path, monkeypatch, None)
    assert (code, result["status"]) == (0, "ok")
    assert not (tmp_path / files.STACKS).exists()  # nobody asked where it stood


def test_a_failed_run_keeps_what_was_known_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, result = run_rank(tmp_path, monkeypatch, MemoryError("no room"))
    assert (code, result["status"]) == (1, "failed")
    assert result["failure"] == {"kind": "out-of-memory", "message": f"no room; before the run {FREE}"}
    assert result["phases"]["build"]["seconds"] == 1.0


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"memory_cap": 1, "device": "cpu"}, True), ({"memory_cap": 1, "device": "cuda"}, False), ({}, False)],
)
def test_the_allocator_of_a_capped_cpu_is_told_not_to_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Value], told: bool
) -> None:
    """The kernel counts what is reserved, so the cap would refuse what fits."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    run_rank(tmp_path, monkeypatch, None, settings)
    assert ("MIMALLOC_DISALLOW_ARENA_ALLOC" in os.environ) is told


FAILS_WHEN_JUDGED = """
import sys
from prony_node.measure.batch_search import OutOfMemory
from prony_node.run import judge, rank

def fail(*_):
    raise OutOfMemory("no room to judge")

judge.judge_learning = fail
sys.exit(rank.main(sys.argv[1:]))
"""


def test_the_series_outlasts_a_run_that_fails_when_it_is_judged(tmp_path: Path) -> None:
    """Its rate and its energy are told from there."""
    settings = {"size": "tiny", "device": "cpu", "batch_size": 2, "steps": 3}
    plan = Plan(run_id="x", trial=Trial("wideresnet", settings))
    (tmp_path / files.PLAN).write_text(json.dumps(plan.to_json()))
    argv = [sys.executable, "-c", FAILS_WHEN_JUDGED, str(tmp_path / files.PLAN), str(tmp_path)]
    assert subprocess.run(argv, capture_output=True).returncode == 1
    result = json.loads((tmp_path / files.RESULT).read_text())
    assert result["failure"]["message"].startswith("no room to judge")
    assert "throughput" in result["metrics"]
    assert len((tmp_path / files.STEPS).read_text().splitlines()) > 1

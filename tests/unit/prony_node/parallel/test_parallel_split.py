"""A gpt that is split over devices gives the parameters and the loss of one process over the same samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOLERANCE = 1e-9
SCRIPT = Path(__file__).parent / "split_steps.py"
TWO = {"grad_accumulation": 2}
CASES: dict[str, dict[str, Any]] = {
    "tp": {"devices": 2, "tp": 2},
    "pp": {"devices": 2, "pp": 2, **TWO},
    "pp, interleaved": {"devices": 2, "pp": 2, "schedule": "interleaved", "grad_accumulation": 4},
    "dp and tp": {"devices": 4, "dp": 2, "tp": 2},
    "dp and tp, fsdp": {"devices": 4, "dp": 2, "tp": 2, "parallel": "fsdp"},
    "dp and pp": {"devices": 4, "dp": 2, "pp": 2, **TWO},
    "dp and pp, interleaved, fsdp": {
        "devices": 4, "dp": 2, "pp": 2, "schedule": "interleaved", "parallel": "fsdp", **TWO,
    },
    "pp and tp": {"devices": 4, "pp": 2, "tp": 2, **TWO},
    "pp of four, recomputed": {"devices": 4, "pp": 4, "grad_accumulation": 4, "recompute": "on"},
    "pp and tp, attention recomputed": {"devices": 4, "pp": 2, "tp": 2, "recompute": "selective", **TWO},
    "dp, pp and tp": {"devices": 8, "dp": 2, "pp": 2, "tp": 2, **TWO},
    "dp, pp and tp, fsdp": {"devices": 8, "dp": 2, "pp": 2, "tp": 2, "parallel": "fsdp", **TWO},
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every rank of every case found: all of it in one start."""
    out = tmp_path_factory.mktemp("split") / "found.json"
    words = [sys.executable, str(SCRIPT), str(out), json.dumps(list(CASES.values()))]
    subprocess.run(words, check=True, timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"})
    document = json.loads(out.read_text())
    return {"alone": document["loss"], **dict(zip(CASES, document["cases"], strict=True))}


@pytest.mark.parametrize("case", CASES)
def test_the_parameters_and_the_loss_are_those_of_one_process(found: dict[str, Any], case: str) -> None:
    ranks = found[case]
    assert len(ranks) == CASES[case]["devices"]
    assert max(rank["apart"] for rank in ranks) <= TOLERANCE
    assert sum(rank["loss"] for rank in ranks) / len(ranks) == pytest.approx(found["alone"], abs=TOLERANCE)


def test_the_bytes_on_the_wire_are_those_of_the_algorithm(found: dict[str, Any]) -> None:
    layers, hidden, vocabulary, sequence, samples, width = 4, 128, 1024, 16, 16, 8
    stream, embedding = samples * sequence * hidden * width, vocabulary * hidden * width
    # Twice forward and twice backward in each layer, the embedding, the logits; of a ring of two each sends all of it.
    shared = (4 * layers + 2) * stream + 3 * samples * sequence * width  # and three numbers a token for the loss
    assert [rank["sent"] for rank in found["tp"]] == [shared, shared]
    staged = stream + embedding  # forward or backward, in two micro-batches; the gradient of the tied embedding
    assert [rank["sent"] for rank in found["pp"]] == [staged, staged]
    weights = layers // 2 * (12 * hidden * hidden + 2 * hidden) * width + embedding  # of the first stage
    replicas = found["dp and pp, interleaved, fsdp"]
    assert replicas[0]["sent"] == 3 * stream / 2 + embedding / 2 + 2 * weights / 2  # gathered and scattered, once each


def test_a_run_that_splits_no_model_loads_none_of_it() -> None:
    """Torch's DTensor and pipelines take a while to import: every run would wait for them, if this fails."""
    code = (
        "import sys, torch, prony_node.run.run, prony_node.backends.torch.backend\n"
        "from prony_node.contract.machine import Machine\n"
        "from prony_node.backends.torch.model import replicas_of\n"
        "from prony_node.workloads import build_task, find_workload\n"
        "workload = find_workload('gpt-tiny')\n"
        "settings = workload.effective({'device': 'cpu', 'size': 'tiny'}, Machine('cpu', None, 1))\n"
        "task = build_task(workload, settings)\n"
        "assert replicas_of(settings, torch.device('cpu'), task.split) is None\n"
        "print([name for name in sys.modules if name.startswith(('torch.distributed.tensor', "
        "'torch.distributed.pipelining', 'prony_node.parallel.split', 'prony_node.workloads.language_split'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr

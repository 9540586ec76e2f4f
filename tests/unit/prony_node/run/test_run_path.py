"""The way from a rank to the measured loop is short, and a rank imports the code of its own workload alone."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from prony_node import workloads
from prony_node.contract import Plan, Trial, files
from prony_node.run import measuring
from prony_node.run.journal import Journal
from prony_node.run.run import run

PLAN = Plan(run_id="x", trial=Trial("gpt-tiny", {"size": "tiny", "device": "cpu", "batch_size": 2, "steps": 2}))
MOST_CALLS = 6


class Reached(Exception):
    """The measured loop was called."""


def test_at_most_six_calls_lead_from_the_rank_to_the_measured_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loop(*given: object, **named: object) -> None:
        raise Reached

    monkeypatch.setattr(measuring, "measured_loop", loop)
    with pytest.raises(Reached) as caught:
        run(PLAN, Journal(tmp_path))
    frames = [one for one in traceback.extract_tb(caught.value.__traceback__) if "/prony_node/run/" in one.filename]
    names = ["main", *(one.name for one in frames if "/tests/" not in one.filename)]
    assert names == ["main", "run", "run_model", "measure"]
    assert len(names) <= MOST_CALLS  # each of them calls the next, and the last one the loop


MODULES = """
import json, sys
from prony_node.run import rank
code = rank.main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""


def test_the_rank_of_a_token_workload_imports_no_other_model_code(tmp_path: Path) -> None:
    """The torch-free configurations of all families are a table; their models are imported where they are built."""
    (tmp_path / files.PLAN).write_text(json.dumps(PLAN.to_json()))
    argv = [sys.executable, "-c", MODULES, str(tmp_path / files.PLAN), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    assert "prony_node.workloads.language" in modules
    others = ("image", "detect", "dino", "segment", "reconstruct", "ceilings")
    families = tuple(f"prony_node.workloads.{name}" for name in others)
    assert all((Path(workloads.__file__).parent / f"{name}.py").is_file() for name in others)
    assert [name for name in modules if name.startswith(families) and not name.endswith("_config")] == []
    assert not {"torchvision", "timm", "transformers", "segmentation_models_pytorch"} & set(modules)

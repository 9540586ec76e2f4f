"""A gpt that is split over two devices of this node trains, in bf16, with NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("split", ["tp=2", "pp=2", "pp=2 schedule=interleaved", "tp=2 compile=default"])
def test_a_split_model_trains(device: torch.device, tmp_path: Path, split: str) -> None:
    if torch.accelerator.device_count() < 2:
        pytest.skip("a model is split over two devices, and there is one here: NCCL takes no device twice")
    argv = [sys.executable, "-m", "prony", "run", "gpt-tiny", "devices=2", *split.split(), "steps=100", "--json"]
    done = subprocess.run(
        argv, env={**os.environ, "PRONY_RUNS": str(tmp_path)}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    levels = {check["name"]: check["level"] for check in record["checks"]}
    assert (levels["loss"], levels["parameters"], levels["finite"]) == ("pass", "pass", "pass")

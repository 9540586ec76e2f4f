"""A training run that stops training inside its window must not pass: real runs of model files on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MODEL = '''"""A perceptron whose backward pass is left out while SKIPPING holds."""

import time

import torch
from torch import nn

from prony_node.data.synthetic import image_sampler
from prony_node.backends.torch.task import Task
from prony_node.workloads.config import Workload

WORKLOAD = Workload(
    name="mymodel", help="a perceptron", module=__file__, unit="images", parameters=None, source="mine",
    batch={"train/cpu": 256, "infer/cpu": 64, "train/accelerator": 4096, "infer/accelerator": 4096},
    memory_gib={"train": 1.0, "infer": 1.0}, optimizer="OPTIMIZER",
)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
        self.calls, self.since_s = 0, None

    def forward(self, images):
        if not torch.is_grad_enabled() or images.device.type == "meta":
            return self.layers(images)
        self.calls += 1
        if self.calls > 40 and self.since_s is None:
            self.since_s = time.monotonic()
        if not (SKIPPING):
            return self.layers(images)
        with torch.no_grad():
            answer = self.layers(images)
        return answer + DEPENDS


def build(workload, settings):
    return Task(
        unit="images",
        units_per_sample=1,
        model=Counted,
        loss=lambda network, batch: nn.functional.cross_entropy(network(batch[0]), batch[1]),
        predict=lambda network, batch: network(batch[0]),
        sample=image_sampler(classes=10, size=28),
        learning_rate=1e-3,
        weight_decay=WEIGHT_DECAY,
    )
'''
ONE_BIAS = "0 * self.layers[-1].bias"
ALL_ZERO = "0 * sum(one.sum() for one in self.parameters())"
AFTER_40 = "self.calls > 40"
EVERY_SECOND_AFTER_40 = "self.calls > 40 and self.calls % 2"
NEVER = "False"
FOR_TWO_SECONDS = "self.since_s is not None and time.monotonic() < self.since_s + 2.0"


def checks_of(
    folder: Path,
    ranks: dict[str, str],
    *words: str,
    skipping: str,
    depends: str = ONE_BIAS,
    optimizer: str = "adam",
    decay: float = 0.0,
) -> tuple[dict[str, str], dict[str, Any]]:
    """The levels of the checks of a run, and its record."""
    text = MODEL.replace("SKIPPING)", f"{skipping})").replace("DEPENDS", depends).replace("OPTIMIZER", optimizer)
    (folder / "mymodel.py").write_text(text.replace("WEIGHT_DECAY", str(decay)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    environment = {**kept, **ranks, "PRONY_RUNS": str(folder / "runs")}
    argv = [sys.executable, "-m", "prony", "run", "./mymodel.py", "device=cpu", *words, "--json"]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    record = json.loads(done.stdout)
    return {check["name"]: check["level"] for check in record["checks"]}, record


def test_a_run_that_trains_throughout_passes(tmp_path: Path, quick_ranks: dict[str, str]) -> None:
    levels, record = checks_of(tmp_path, quick_ranks, "steps=300", skipping=NEVER)
    assert (levels["updates"], levels["still-training"], levels["parameters"]) == ("pass", "pass", "pass")
    work = record["work"]
    assert (work["loop_steps"], work["optimizer_steps"], work["skipped_steps"]) == (300, 300, 0)
    assert record["phases"]["further_steps"]["steps"] >= 1


@pytest.mark.parametrize(
    ("depends", "optimizer", "decay"),
    [(ONE_BIAS, "sgd", 0.0), (ALL_ZERO, "adamw", 0.1)],
    ids=["one-bias-left", "weight-decay-goes-on"],
)
def test_a_backward_pass_that_is_skipped_after_40_calls_fails(
    tmp_path: Path, quick_ranks: dict[str, str], depends: str, optimizer: str, decay: float
) -> None:
    levels, _ = checks_of(
        tmp_path, quick_ranks, "steps=300", skipping=AFTER_40, depends=depends, optimizer=optimizer, decay=decay
    )
    assert levels["parameters"] == "pass"  # over the whole run each of them did change
    assert levels["still-training"] == "fail"


def test_a_backward_pass_that_is_skipped_every_second_time_fails(tmp_path: Path, quick_ranks: dict[str, str]) -> None:
    levels, record = checks_of(
        tmp_path, quick_ranks, "steps=300", skipping=EVERY_SECOND_AFTER_40, depends=ALL_ZERO, optimizer="adam"
    )
    found = {check["name"]: check["message"] for check in record["checks"]}
    assert levels["still-training"] == "fail", found
    assert "changed nothing" in found["still-training"]


def test_a_skip_that_ends_before_the_window_does_fails(tmp_path: Path, quick_ranks: dict[str, str]) -> None:
    words = ["--max-time", "5s", "--tolerance", "0.01%"]
    levels, record = checks_of(tmp_path, quick_ranks, *words, skipping=FOR_TWO_SECONDS)
    found = {check["name"]: check["message"] for check in record["checks"]}
    assert levels["still-training"] == "fail", found
    assert "stood still" in found["still-training"]

"""A run to a quality on a device: a captured step takes the learning rate of the moment, and starts from nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prony_node.backends.torch.backend import machine_of
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
MNIST_TRAIN, MNIST_TEST = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]  # by which it is recognised


def make_step(device: torch.device, name: str, **given: Value) -> tuple[Step, Task]:
    workload = find_workload(name)
    asked: dict[str, Value] = {"batch_size": 8, "data": "./set", "epochs": 1, "compile": "off", **given}
    settings = workload.effective(asked, machine_of(device, 4))
    task = build_task(workload, settings)
    step = Step(task, settings, device)
    step.finish_model()
    return step, task


def batch_of(step: Step, task: Task, seed: int) -> Batch:
    return step.place(task.sample(torch.Generator(step.device).manual_seed(seed), 8))


def weights(step: Step) -> torch.Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in step.model.parameters()]).clone()


@pytest.mark.parametrize(("name", "optimizer"), [("wideresnet", "sgd"), ("gpt-tiny", "adamw"), ("gpt-tiny", "sgd")])
@pytest.mark.parametrize("graphs", [True, False])
def test_the_rate_of_the_moment_is_taken(device: torch.device, name: str, optimizer: str, graphs: bool) -> None:
    step, task = make_step(device, name, size="tiny", optimizer=optimizer, graphs=graphs)
    first = weights(step)
    step.keep_start()
    step.prepare(batch_of(step, task, 0))
    assert not torch.equal(weights(step), first)
    ends = []
    for _ in range(2):
        step.restart()
        assert torch.equal(weights(step), first)
        step.set_rate(0.0)
        step(batch_of(step, task, 1))
        assert torch.equal(weights(step), first)
        step.set_rate(0.5)
        step(batch_of(step, task, 2))
        ends.append(weights(step))
    assert not torch.equal(ends[0], first)
    torch.testing.assert_close(ends[0], ends[1], atol=1e-4, rtol=1e-3)


def test_a_run_learns_on_the_device_to_a_quality(device: torch.device, tmp_path: Path) -> None:
    write_digits(tmp_path / "digits")
    words = [
        "wideresnet",
        "size=tiny",
        f"data={tmp_path / 'digits'}",
        "until=accuracy>=0.9",
        "epochs=5",
        "data_samples=6400",
    ]
    argv = [sys.executable, "-m", "prony", "run", *words, "batch_size=64", "--json", "--out", str(tmp_path / "runs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["trial"]["effective"]["graphs"] is True
    assert record["learning"]["reached"], record["learning"]["curve"]
    assert record["metrics"]["time_to_quality"]["value"] > 0


def write_digits(folder: Path) -> None:
    """A bright square at one of ten places, in MNIST's own layout."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for prefix, count, first in (("train", 60_000, MNIST_TRAIN), ("t10k", 10_000, MNIST_TEST)):
        labels = torch.randint(10, (count,), generator=generator)
        labels[:10] = torch.tensor(first)
        images = torch.randint(100, (count, 28, 28), generator=generator, dtype=torch.uint8)
        for label in range(10):
            row, column = 8 + 8 * (label // 5), 2 + 5 * (label % 5)
            images[labels == label, row : row + 5, column : column + 4] += 150
        head = bytes((0, 0, 8, 3)) + b"".join(side.to_bytes(4, "big") for side in (count, 28, 28))
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(head + images.numpy().tobytes())
        head = bytes((0, 0, 8, 1)) + count.to_bytes(4, "big")
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.to(torch.uint8).numpy().tobytes())

"""What a thread that copies batches beside the step brings: the same steps with it, without it, and without copies.

    python benchmarks/copies.py WORKLOAD [setting=value ...] [--steps 40] [--rounds 5] [--json FILE]

The step is Prony's own. Its batches lie in pinned memory, so that no loader is waited for: what is left is the copy and
what it turns them into. `beside` is what a run with `data=host` does, `before` puts the copy in front of each step, on
the same stream, as a loop without such a thread does, `none` takes batches that lie on the device. In turns.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from asked import finish, read_words
from plain import refuse
from prony_node.contract.files import write_whole
from prony_node.data.ahead import SentBatches
from prony_node.measure.protocol import Batch
from prony_node.measure.step import Step
from prony_node.workloads import build_task

POOL, FIRST_STEPS = 4, 5


class Pinned:
    """Batches that go round, as a loader with pinned memory hands them over."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = itertools.cycle(batches)

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """Nothing was opened."""


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    asked = read_words(options.workload, options.settings)
    if isinstance(asked, str):
        return refuse(asked)
    workload, settings, device = asked
    step = Step(build_task(workload, settings), settings, device)
    if step.task.varies or step.task.on_host:
        return refuse(f"batches of {workload.name} are never sent beside: they differ in shape, or stay on the host")
    step.finish_model()
    samples = int(settings["batch_size"])
    chance = torch.Generator().manual_seed(0)
    held = [step.task.sample(chance, samples) for _ in range(POOL)]
    if device.type == "cuda":
        held = [tuple(tensor.pin_memory() for tensor in batch) for batch in held]
    found: dict[str, list[float]] = {}
    with step.kernels():
        step.prepare(step.place(held[0]))
        forms = sources(step, held, device)
        for _ in range(options.rounds):
            for name, source in forms.items():
                found.setdefault(name, []).append(1e3 * seconds_a_step(step, source, options.steps, device))
    size = sum(tensor.nbytes for tensor in held[0])
    print(f"{workload.name} {' '.join(options.settings)}: {samples} samples, {size / 1e6:.1f} MB a batch")
    for name, took in found.items():
        middle = statistics.median(took)
        rate = f"{1e3 * samples / middle:,.1f} samples/s"
        print(f"{name}: {middle:.3f} ms a step ({min(took):.3f} to {max(took):.3f}), {rate}")
    if options.json:
        about = {"workload": workload.name, "settings": options.settings, "samples": samples, "bytes": size}
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        write_whole(options.json, {**about, "device": name, "torch": torch.__version__, "ms_a_step": found})
    return 0


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    return parser.parse_intermixed_args(arguments)


def sources(step: Step, held: list[Batch], device: torch.device) -> dict[str, Callable[[], Iterator[Batch]]]:
    """Batches as the step takes them, by how they come to the device; each begins anew."""
    there = [step.place(batch) for batch in held]
    return {
        "beside": lambda: SentBatches(Pinned(held), step.place, device),
        "before": lambda: (step.place(batch) for batch in itertools.cycle(held)),
        "none": lambda: itertools.cycle(there),
    }


def seconds_a_step(step: Step, make: Callable[[], Iterator[Batch]], steps: int, device: torch.device) -> float:
    source = make()
    for _ in range(FIRST_STEPS):
        step(next(source))
    finish(device)
    began = time.perf_counter()
    for _ in range(steps):
        step(next(source))
    finish(device)
    took = time.perf_counter() - began
    if isinstance(source, SentBatches):
        source.close()
    return took / steps


if __name__ == "__main__":
    sys.exit(main())

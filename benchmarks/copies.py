"""What a thread that copies batches beside the step brings: the same steps with it, without it, and without copies.

    python benchmarks/copies.py WORKLOAD [setting=value ...] [--steps 40] [--rounds 5] [--json FILE]

The step is Prony's own. Its batches lie in pinned memory, so that no loader is waited for: what is left is the copy and
what it turns them into. `beside` is what a run with `data=host` does, `before` puts the copy in front of each step, on
the same stream, as a loop without such a thread does, `none` takes batches that lie on the device. In turns.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch

from asked import finish, keep_turns, read_words, told, turns_parser
from plain import refuse
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Batch
from prony_node.data.batches import SentBatches
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
    options = turns_parser(__doc__).parse_intermixed_args(arguments)
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
        print(f"{name}: {told(took)}, {1e3 * samples / statistics.median(took):,.1f} samples/s")
    keep_turns(options, device, {"samples": samples, "bytes": size}, found)
    return 0


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

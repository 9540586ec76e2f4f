"""How long a network's convolutions take to give their gradients the first time, kind by kind.

    python benchmarks/first_calls.py [efficientnet-b0] [setting=value ...]

Each kind is asked for with the batch, precision and layout of the workload, without values: twice on the thread on
which torch computes gradients, then twice on this one. A second call is what a step pays for; what a first one takes
longer is what makes a kernel ready, and what it takes on the other thread tells whether that is done for each thread.
Beside the first round another thread counts how often it comes to its turn: Python is not held up by a kernel.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable

import torch

from asked import finish, read_words
from prony_node.backends.torch.compiling import ConvolutionGradient, GradientObserver, count_flops, on_backward_thread
from prony_node.backends.torch.step import Step
from prony_node.workloads import build_task

ROUNDS = ("backward thread", "again", "this thread", "again")
TURN_S = 0.0005


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", default="efficientnet-b0")
    parser.add_argument("settings", nargs="*", help="as for prony run")
    options = parser.parse_intermixed_args(arguments)
    asked = read_words(options.workload, options.settings)
    if isinstance(asked, str):
        print(f"first_calls.py: {asked}", file=sys.stderr)
        return 2
    workload, settings, device = asked
    step = Step(build_task(workload, settings), settings, device)
    with GradientObserver() as noted:
        count_flops(step.task, training=True, recompute=False)
    kinds = noted.of_batch(int(settings["batch_size"]))
    if not kinds:
        print(f"first_calls.py: {workload.name} has no convolutions of images in training", file=sys.stderr)
        return 2

    def ask() -> list[float]:
        return [timed(kind, device, step.compute_dtype, step.layout()) for kind in kinds]

    began = time.perf_counter()
    first, turns = counting_turns(lambda: in_backward(ask, device))
    took = time.perf_counter() - began
    print(f"{len(kinds)} kinds; {turns / took:.0f} turns a second, of {1 / TURN_S:.0f} at most, while they were asked")
    rounds = [first, in_backward(ask, device), ask(), ask()]
    for name, seconds in zip(ROUNDS, rounds, strict=True):
        print(f"{name}: {told(kinds, seconds, True)}, {told(kinds, seconds, False)}")
    for kind, *each in zip(kinds, *rounds, strict=True):
        times = " ".join(f"{1e3 * seconds:7.1f}" for seconds in each)
        print(f"{times} ms  {kind.image} {kind.weight} groups {kind.groups}")
    return 0


def timed(kind: ConvolutionGradient, device: torch.device, dtype: torch.dtype, layout: torch.memory_format) -> float:
    finish(device)
    began = time.perf_counter()
    kind.ask(device, dtype, layout)
    finish(device)
    return time.perf_counter() - began


def in_backward(ask: Callable[[], list[float]], device: torch.device) -> list[float]:
    found: list[float] = []
    on_backward_thread(lambda: found.extend(ask()), device)
    return found


def counting_turns(work: Callable[[], list[float]]) -> tuple[list[float], int]:
    ended, turns = threading.Event(), [0]

    def count() -> None:
        while not ended.wait(TURN_S):
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        return work(), turns[0]
    finally:
        ended.set()
        thread.join()


def told(kinds: list[ConvolutionGradient], seconds: list[float], depthwise: bool) -> str:
    chosen = [one for kind, one in zip(kinds, seconds, strict=True) if (kind.groups > 1) == depthwise]
    return f"{sum(chosen):.2f} s of {len(chosen)} {'depthwise' if depthwise else 'other'} kinds"


if __name__ == "__main__":
    sys.exit(main())

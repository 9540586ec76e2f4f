"""Where the time of a step goes: by kernel, by part of the model's forward pass, and of the host against the device.

    python benchmarks/kernels.py WORKLOAD [setting=value ...] [--parts NAME,NAME] [--steps 12] [--rows 32] [--out FILE]

The step is Prony's own, with its defaults and the settings given, over a few batches on the device. It is timed alone
first; parts are told by device events around them, then three steps are taken under torch's profiler. A part is a child
of the model by its name. A captured step runs no part by itself: with --parts give graphs=off.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from asked import device_name, finish, read_words
from prony_node.backends.torch.compiling import use_cache
from prony_node.backends.torch.step import Step
from prony_node.contract.settings import Value
from prony_node.workloads import build_task
from prony_node.workloads.config import Workload

POOL, PROFILED = 8, 3


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    asked = read_words(options.workload, options.settings)
    if isinstance(asked, str):
        print(f"kernels.py: {asked}", file=sys.stderr)
        return 2
    workload, settings, device = asked
    with ExitStack() as closing:
        use_cache(settings, Path(), closing)  # that of runs, whose kernels these are
        text = "\n".join(look(workload, settings, device, options)) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text)
    return 0


def look(
    workload: Workload, settings: dict[str, Value], device: torch.device, options: argparse.Namespace
) -> list[str]:
    step = Step(build_task(workload, settings), settings, device)
    step.finish_model()
    samples = int(settings["batch_size"])
    source = torch.Generator(device).manual_seed(0)
    pool = [step.place(step.task.sample(source, samples)) for _ in range(POOL)]
    where = f"torch {torch.__version__}, {device_name(device)}"
    said = [f"{workload.name} {' '.join(options.settings)}: batch {samples}, {where}"]
    with step.kernels():
        step.prepare(pool[0])
        for batch in pool:
            step(batch)
        said += timed(step, pool, samples, options.steps, device)
        if options.parts:
            said += parts_of(step, pool, options.parts.split(","), device)
        said += kernels_of(step, pool, options.rows, device)
    return said


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--parts", help="children of the model, whose forward passes are timed")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rows", type=int, default=32, help="kernels that are listed")
    parser.add_argument("--out", type=Path)
    return parser.parse_intermixed_args(arguments)


def timed(step: Step, pool: list, samples: int, steps: int, device: torch.device) -> list[str]:
    """A step by the clock, and when the host was done with it."""
    finish(device)
    began = time.perf_counter()
    for number in range(steps):
        step(pool[number % len(pool)])
    issued_s = time.perf_counter() - began
    finish(device)
    whole_s = time.perf_counter() - began
    rate = steps * samples / whole_s
    return [f"{rate:.2f} samples/s, {1e3 * whole_s / steps:.2f} ms a step, issued in {1e3 * issued_s / steps:.2f} ms"]


def parts_of(step: Step, pool: list, names: list[str], device: torch.device) -> list[str]:
    """Milliseconds of the forward pass of each part, the mean over the pool."""
    spans: dict[str, list[Callable[[], float]]] = defaultdict(list)
    with watched(step.model, names, spans, device):
        for batch in pool:
            step(batch)
        finish(device)
        return [f"forward {name}: {sum(span() for span in spans[name]) / len(pool):.2f} ms" for name in names]


@contextmanager
def watched(model: torch.nn.Module, names: list[str], spans: dict, device: torch.device) -> Iterator[None]:
    """Marks around each part's forward pass: events on a device, the clock on a CPU."""
    began: dict[str, object] = {}

    def mark() -> object:
        if device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(first, last) -> float:
        return first.elapsed_time(last) if device.type == "cuda" else 1e3 * (last - first)

    hooks = []
    for name in names:
        part = model.get_submodule(name)

        def before(*_, name=name) -> None:
            began[name] = mark()

        def after(*_, name=name) -> None:
            first, last = began[name], mark()
            spans[name].append(lambda: between(first, last))

        hooks += [part.register_forward_pre_hook(before), part.register_forward_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def kernels_of(step: Step, pool: list, rows: int, device: torch.device) -> list[str]:
    """Kernels by their time in a step, as torch's profiler has them; on a CPU operators."""
    kind = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind]) as profiler:
        for batch in pool[:PROFILED]:
            step(batch)
        finish(device)
    name = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    found = sorted(
        ((getattr(one, name) / 1e3 / PROFILED, one.count / PROFILED, one.key) for one in profiler.key_averages()),
        reverse=True,
    )
    found = [one for one in found if one[0] > 0]
    busy_ms, count = sum(one[0] for one in found), sum(one[1] for one in found)
    said = [f"busy for {busy_ms:.2f} ms of a step, with {count:.0f} kernels"]
    if device.type == "cuda":
        said.append(f"memory at most {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    return said + [f"{ms:9.3f} ms {ms / busy_ms:6.1%} {times:8.1f}x  {key[:110]}" for ms, times, key in found[:rows]]


if __name__ == "__main__":
    sys.exit(main())

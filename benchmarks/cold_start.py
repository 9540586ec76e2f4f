"""Where the time of a cold start goes: a workload's first steps, by part and by function.

    python benchmarks/cold_start.py WORKLOAD [setting=value ...] [--rows 40] [--no-samples] [--not-ahead]

A process of its own, with the compile cache of `prony run`: started twice, the second time tells what a warm cache
leaves. Where Python stands is looked at every few milliseconds, also on the thread of the backward pass; Python's own
profiler is switched off by the compiler for half of the time, and makes the rest longer. What the compiler says it took
for each of its parts comes first.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

BEGAN = time.perf_counter()
EVERY_S = 0.003
import torch  # noqa: E402

from asked import finish, read_words  # noqa: E402
from prony_node.backends.torch.compiling import (  # noqa: E402
    GradientObserver,
    cache_state,
    count_flops,
    keep_winners,
    use_cache,
)
from prony_node.backends.torch.step import Step  # noqa: E402
from prony_node.workloads import build_task  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("settings", nargs="*", help="as for prony run")
    parser.add_argument("--rows", type=int, default=40, help="functions that are shown")
    parser.add_argument("--no-samples", action="store_true", help="the parts alone")
    parser.add_argument("--not-ahead", action="store_true", help="gradients of convolutions when they are needed")
    options = parser.parse_intermixed_args(arguments)
    print(f"imports: {time.perf_counter() - BEGAN:.1f} s", flush=True)
    asked = read_words(options.workload, options.settings)
    if isinstance(asked, str):
        print(f"cold_start.py: {asked}", file=sys.stderr)
        return 2
    workload, settings, device = asked
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        use_cache(settings, Path(folder), closing)
        began = time.perf_counter()
        step = Step(build_task(workload, settings), settings, device)
        step.finish_model()
        if step.training and not options.not_ahead:
            with GradientObserver() as noted:
                count_flops(step.task, training=True, recompute=False)
            step.gradients = noted.of_batch(int(settings["batch_size"]))
        source = torch.Generator(device).manual_seed(1)
        batch = step.place(step.task.sample(source, int(settings["batch_size"])))
        finish(device)
        print(f"model and a batch: {time.perf_counter() - began:.1f} s", flush=True)
        samples = Samples()
        began = time.perf_counter()
        with step.kernels():
            if not options.no_samples:
                samples.start()
            step.prepare(batch)
            finish(device)
            samples.end()
        keep_winners()
    state = cache_state(settings)
    print(f"first steps: {time.perf_counter() - began:.1f} s; the compiler's cache was {state.state}", flush=True)
    print(torch._dynamo.utils.compile_times())
    if not options.no_samples:
        print(samples.shown(options.rows))
    return 0


class Samples(threading.Thread):
    """Where the first steps stand, looked at from beside them; a look counts for the time since the last one."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.watched = threading.get_ident()
        self.there_before = set(sys._current_frames())  # an interpreter's own, which have nothing to do with a step
        self.within: Counter[str] = Counter()  # seconds, by function: in it or in what it called
        self.itself: Counter[str] = Counter()
        self.total_s = 0.0
        self._ended = threading.Event()

    def run(self) -> None:
        last = time.perf_counter()
        while not self._ended.wait(EVERY_S):
            now = time.perf_counter()
            self.count(self.stack(), now - last)
            last = now

    def stack(self) -> list[str]:
        """Of the backward pass where it is in Python, else of the thread that waits for it; innermost first."""
        frames = sys._current_frames()
        of_python = self.there_before | {thread.ident for thread in threading.enumerate()}
        of_engine = [frame for ident, frame in frames.items() if ident not in of_python]
        frame: FrameType | None = of_engine[0] if of_engine else frames.get(self.watched)
        found = []
        while frame is not None:
            code = frame.f_code
            path = re.sub(r".*/(site-packages|python3\.\d+|src|compile)/", "", code.co_filename)
            found.append(f"{path}:{code.co_firstlineno} {code.co_name}")
            frame = frame.f_back
        return found

    def count(self, stack: list[str], seconds: float) -> None:
        self.total_s += seconds
        self.within.update(dict.fromkeys(stack, seconds))
        self.itself.update(dict.fromkeys(stack[:1], seconds))

    def end(self) -> None:
        if self.is_alive():
            self._ended.set()
            self.join()

    def shown(self, rows: int) -> str:
        lines = [f"{self.total_s:.1f} s were looked at"]
        for title, found in (("in a function and what it calls", self.within), ("in a function itself", self.itself)):
            lines += ["", f"seconds {title}", *(f"{spent:7.2f}  {name}" for name, spent in found.most_common(rows))]
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

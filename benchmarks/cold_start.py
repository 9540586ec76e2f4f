"""Where the time of a cold start goes: a workload's first steps, by part and by function.

    python benchmarks/cold_start.py WORKLOAD [setting=value ...] [--rows 25] [--no-profile]

A process of its own, with the compile cache of `prony run`: started twice, the second time tells what a warm cache
leaves. The profiler of Python makes calls of functions dearer, so the parts are a little longer than without it. What
the compiler says it took for each of its parts follows.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import re
import sys
import tempfile
import time
from pathlib import Path

BEGAN = time.perf_counter()
import torch  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.contract.errors import RequestError  # noqa: E402
from prony_node.measure.compiling import cache_state, use_cache  # noqa: E402
from prony_node.measure.device import MissingDevice, choose_device, machine_of  # noqa: E402
from prony_node.measure.step import Step  # noqa: E402
from prony_node.workloads import build_task, find_workload  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("settings", nargs="*", help="as for prony run")
    parser.add_argument("--rows", type=int, default=25, help="functions that are shown")
    parser.add_argument("--no-profile", action="store_true", help="the parts alone, at their own speed")
    options = parser.parse_intermixed_args(arguments)
    print(f"imports: {time.perf_counter() - BEGAN:.1f} s", flush=True)
    try:
        workload = find_workload(options.workload)
        given = workload.parse(dict(word.partition("=")[::2] for word in options.settings))
        device = choose_device(str(given.get("device", "auto")))
        settings = workload.effective(given, machine_of(device, torch.get_num_threads()))
    except (RequestError, MissingDevice) as error:
        print(f"cold_start.py: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        use_cache(settings, Path(folder))
        began = time.perf_counter()
        step = Step(build_task(workload, settings), settings, device)
        step.finish_model()
        source = torch.Generator(device).manual_seed(1)
        batch = step.place(step.task.sample(source, int(settings["batch_size"])))
        finish(device)
        print(f"model and a batch: {time.perf_counter() - began:.1f} s", flush=True)
        profile = cProfile.Profile()
        began = time.perf_counter()
        with step.kernels():
            if not options.no_profile:
                profile.enable()
            step.prepare(batch)
            finish(device)
            profile.disable()
    state = cache_state(settings)
    print(f"first steps: {time.perf_counter() - began:.1f} s; the compiler's cache was {state['state']}", flush=True)
    print(torch._dynamo.utils.compile_times())
    if not options.no_profile:
        for order in ("cumulative", "tottime"):
            print(shown(profile, order, options.rows))
    return 0


def finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def shown(profile: cProfile.Profile, order: str, rows: int) -> str:
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats(order).print_stats(rows)
    return re.sub(r"\S*/(site-packages|python3\.\d+)/", "", text.getvalue())


if __name__ == "__main__":
    sys.exit(main())

"""What the harness costs: a loop written bare beside the node's own, interleaved, and a step that does nothing.

    python benchmarks/overhead.py [--workload wideresnet] [--batch-size 32] [--pairs 24] [--seconds 1] [--json FILE]

The bare loop shares nothing with the harness but the model: its own optimizer, precision, capture and timing.
Both rates are taken with the host's clock around segments that end in a synchronisation; the segments alternate
in the order bare, node, node, bare. The ratio node / bare is reported with its 95 % interval over the pairs. Then the
same for the node's loop with the power sampler awake and held still.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.backends.torch.backend import choose_device, clock_for, machine_of
from prony_node.backends.torch.step import Step
from prony_node.measure.loop import measured_loop, steps_per_block
from prony_node.parallel.place import allowed_cores
from prony_node.power.recording import SamplerProcess, read_recording
from prony_node.run.watchdog import Progress
from prony_node.stats import StopRule, Tracker, mean_interval
from prony_node.workloads import build_task, find_workload

POOL = 16


def synchronise(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def bare_loop(make_model: Callable[[], torch.nn.Module], sample, batch_size: int, device: torch.device, loss_of):
    """What a person would write by hand for this model on this device; answers run(steps) -> steps done."""
    on_gpu = device.type == "cuda"
    generator = torch.Generator(device).manual_seed(1)
    pool = [sample(generator, batch_size) for _ in range(POOL)]
    with device:
        model = make_model()
    if pool[0][0].dim() == 4:
        model = model.to(memory_format=torch.channels_last)
        pool = [(images.to(memory_format=torch.channels_last), labels) for images, labels in pool]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-5, fused=True)

    def forward(inputs, targets):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            return loss_of(model, (inputs, targets))

    if on_gpu:
        torch.backends.cudnn.benchmark = True
        forward = torch.compile(forward, dynamic=False)
    inputs, targets = (tensor.clone() for tensor in pool[0])

    def step(inputs, targets):
        forward(inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if not on_gpu:

        def run_eager(steps: int) -> int:
            for number in range(steps):
                step(*pool[number % POOL])
            return steps

        return run_eager

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(inputs, targets)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(inputs, targets)

    def run(steps: int) -> int:
        for number in range(steps):
            source = pool[number % POOL]
            inputs.copy_(source[0], non_blocking=True)
            targets.copy_(source[1], non_blocking=True)
            graph.replay()
        return steps

    return run


def node_loop(workload, task, batch_size: int, device: torch.device, folder: Path):
    """The node's step and measured loop, as a run uses them, progress file included; answers run(steps)."""
    settings = workload.effective({"batch_size": batch_size}, machine_of(device, len(allowed_cores())))
    step = Step(task, settings, device)
    step.finish_model()
    generator = torch.Generator(device).manual_seed(1)
    batches = itertools.cycle([step.place(task.sample(generator, batch_size)) for _ in range(POOL)])
    kernels = step.kernels()
    kernels.__enter__()
    step.prepare(next(batches))
    synchronise(device)
    progress = Progress(folder)
    progress.measure(StopRule(), task.unit, batch_size)
    started = time.perf_counter()
    for _ in range(5):
        step(next(batches))
    synchronise(device)
    step_s = (time.perf_counter() - started) / 5

    def run(steps: int) -> int:
        block_steps = steps_per_block(step_s)
        clock = clock_for(device, block_steps * step_s)
        # As in a run that has not seen enough: it looks at the data now and then, and stops when time is over.
        rule = StopRule(tolerance=1e-9, min_time_s=0.1, max_time_s=steps * step_s)
        return measured_loop(
            step, batches, clock, Tracker(rule), block_steps=block_steps, report=progress.measuring
        ).steps

    return run, settings, step_s


def sampling_ratio(timed: Callable[[], float], pairs: int) -> dict[str, float | int | list[float]]:
    """The node's loop with the power sampler awake, over the same with it held still; interleaved."""
    folder = Path(tempfile.mkdtemp())
    sampler = SamplerProcess(folder)
    sampler.wait_ready()
    recording = read_recording(folder)
    sensors = len(recording.traces) if recording else 0
    ratios = []
    for pair in range(pairs if sensors else 0):
        rates = {}
        for awake in (True, False) if pair % 2 else (False, True):
            sampler.hold(not awake)
            rates[awake] = timed()
        ratios.append(math.log(rates[True] / rates[False]))
        print(f"  pair {pair + 1}/{pairs}: sampled / not = {math.exp(ratios[-1]):.5f}", file=sys.stderr)
    sampler.hold(False)
    sampler.end()
    if not sensors:
        print("no power sensor answers here: what sampling costs was not measured", file=sys.stderr)
        return {"sensors": 0}
    found = mean_interval(ratios, 0.95)
    ratio, low, high = (math.exp(value or math.nan) for value in (found.mean, found.low, found.high))
    return {
        "sensors": sensors, "ratio": ratio, "ratio_low": low, "ratio_high": high,
        "ratios": [math.exp(value) for value in ratios],
    }  # fmt: skip


def empty_step_us(device: torch.device, steps: int = 200_000) -> dict[str, float]:
    """Microseconds that the loop adds to a step that does nothing."""
    nothing = ((),)
    found = {}
    for name, block_steps in (("blocks of 20 ms", 20_000), ("a mark every step", 1)):
        count = steps if block_steps > 1 else steps // 10
        best = math.inf
        for _ in range(3):
            clock = clock_for(device, 1e-6 * block_steps)
            tracker = Tracker(StopRule(tolerance=1e-9, min_time_s=0.1, max_time_s=1e9))
            started = time.perf_counter()
            measured_loop(
                lambda batch: None, itertools.cycle(nothing), clock, tracker, block_steps=block_steps,
                fixed_steps=count,
            )  # fmt: skip
            best = min(best, (time.perf_counter() - started) / count)
        found[name] = best * 1e6
    return found


def node_over_bare(timed: Callable[[Callable[[int], int]], float], node, bare, pairs: int) -> dict[str, object]:
    """The node's rate over that of the bare loop, interleaved, with its interval."""
    timed(bare), timed(node)
    ratios, bare_rates, node_rates = [], [], []
    for pair in range(pairs):
        first, second = (bare, node) if pair % 2 == 0 else (node, bare)
        rates = (timed(first), timed(second))
        bare_rate, node_rate = rates if first is bare else rates[::-1]
        bare_rates.append(bare_rate)
        node_rates.append(node_rate)
        ratios.append(math.log(node_rate / bare_rate))
        print(f"  pair {pair + 1}/{pairs}: node / bare = {node_rate / bare_rate:.5f}", file=sys.stderr)
    found = mean_interval(ratios, 0.95)
    ratio, low, high = (math.exp(value) for value in (found.mean, found.low, found.high))
    print(f"bare {sum(bare_rates) / pairs:,.0f}, node {sum(node_rates) / pairs:,.0f} units a second")
    print(f"node / bare = {ratio:.5f}, 95 % interval {low:.5f} to {high:.5f} over {pairs} pairs")
    return {
        "bare_rate": sum(bare_rates) / pairs, "node_rate": sum(node_rates) / pairs, "ratio": ratio,
        "ratio_low": low, "ratio_high": high, "ratios": [math.exp(value) for value in ratios],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="wideresnet")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a segment")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sampling-only", action="store_true", help="only what the power sampler costs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    device = choose_device(options.device)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)
    workload = find_workload(options.workload)
    task = build_task(workload, dict(workload.fixed))
    print(f"building the loops of {workload.name}, batch {options.batch_size}, on {device}", file=sys.stderr)
    node, settings, step_s = node_loop(workload, task, options.batch_size, device, Path(tempfile.mkdtemp()))
    steps = max(3, round(options.seconds / step_s))

    def timed(run: Callable[[int], int]) -> float:
        synchronise(device)
        started = time.perf_counter()
        done = run(steps)
        synchronise(device)
        return done * options.batch_size / (time.perf_counter() - started)

    result: dict[str, object] = {
        "device": torch.get_device_module(device).get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__, "workload": workload.name, "settings": settings, "steps_a_segment": steps,
        "pairs": options.pairs,
    }  # fmt: skip
    good = True
    if not options.sampling_only:
        bare = bare_loop(task.model, task.sample, options.batch_size, device, task.loss)
        found = node_over_bare(timed, node, bare, options.pairs)
        empty = empty_step_us(device)
        for name, cost_us in empty.items():
            print(f"an empty step costs {cost_us:.2f} us ({name})")
        result |= {**found, "empty_step_us": empty}
        good = found["ratio_low"] > 0.997 and min(empty.values()) <= 5
    timed(node)
    sampling = sampling_ratio(lambda: timed(node), options.pairs)
    result["sampling"] = sampling
    if sampling["sensors"]:
        low, high = sampling["ratio_low"], sampling["ratio_high"]
        print(f"sampled / not = {sampling['ratio']:.5f}, 95 % interval {low:.5f} to {high:.5f}, "
              f"{sampling['sensors']} power sensors")  # fmt: skip
        good = good and sampling["ratio"] > 0.999
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

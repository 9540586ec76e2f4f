"""What Prony costs on several devices: DDP through the node beside the same loop started bare with torchrun.

    python benchmarks/ddp.py [--workload wideresnet] [--batch-size 32] [--devices 2] [--pairs 8] [--segments 20]

The bare loop shares nothing with the harness but the model, its loss and its samples: its own DDP, optimizer,
precision, compilation and timing, by the host's clock between synchronisations. It is compared in two ways, each in
the order bare, node, node, bare and with the 95 % interval of the ratio node / bare of their rates over the pairs.

Whole runs: each in fresh processes, by torchrun or through the node with its launcher, sampler and record. Segments:
both loops in the same ranks, a second at a time, which sees smaller differences on a machine that is not quiet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.backends.torch.backend import clock_for, machine_of
from prony_node.backends.torch.model import replicas_of
from prony_node.backends.torch.step import Step
from prony_node.contract import Plan, Stop, Trial, read_record
from prony_node.measure.loop import measured_loop, steps_per_block
from prony_node.parallel.place import place_of
from prony_node.parallel.replicas import Ranks
from prony_node.run.measuring import LockstepTracker
from prony_node.run.watchdog import Progress
from prony_node.stats import StopRule, mean_interval
from prony_node.workloads import build_task, find_workload

ROOT = Path(__file__).resolve().parents[1]
POOL = 16
SEGMENT_S = 1.0


def bare_loop(task, batch: int, device: torch.device, rank: int):
    """What a person would write for torchrun; answers run(steps) -> steps done."""
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    with device:
        model = task.model()
    generator = torch.Generator(device).manual_seed(1 + rank)
    pool = [task.sample(generator, batch) for _ in range(POOL)]
    if pool[0][0].dim() == 4:
        model = model.to(memory_format=torch.channels_last)
        pool = [(images.to(memory_format=torch.channels_last), *rest) for images, *rest in pool]

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu, cache_enabled=False):
                return task.loss(self.model, inputs)

    forward = DistributedDataParallel(
        Loss(), device_ids=[device.index] if on_gpu else None, bucket_cap_mb=25, gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )  # fmt: skip
    if on_gpu:
        torch.backends.cudnn.benchmark = True
        forward = torch.compile(forward, dynamic=False)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=task.learning_rate, momentum=0.9, weight_decay=task.weight_decay, fused=True
    )

    def run(steps: int) -> int:
        for number in range(steps):
            forward(*pool[number % POOL]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return steps

    return run


def node_loop(workload, settings, device: torch.device, ranks: Ranks, step_s: float):
    """The node's step and measured loop, as a run uses them, with the stopping that ranks agree on; run(steps)."""
    effective = workload.effective(settings, machine_of(device, 1))
    task = build_task(workload, effective)
    step = Step(task, effective, device, replicas_of(effective, device))
    step.finish_model()
    generator = torch.Generator(device).manual_seed(1 + ranks.place.rank)
    batches = itertools.cycle([step.place(task.sample(generator, int(effective["batch_size"]))) for _ in range(POOL)])
    step.kernels().__enter__()
    step.prepare(next(batches))
    progress = Progress(Path(tempfile.mkdtemp()))
    progress.measure(StopRule(), task.unit, 1)
    block_steps = steps_per_block(step_s)

    def run(steps: int) -> int:
        rule = StopRule(tolerance=1e-9, min_time_s=0.1, max_time_s=steps * step_s)
        tracker = LockstepTracker(rule, ranks, block_steps * step_s)
        clock = clock_for(device, block_steps * step_s)
        return measured_loop(step, batches, clock, tracker, block_steps=block_steps, report=progress.measuring).steps

    return run


def one_rank(options: argparse.Namespace, settings: dict[str, object]) -> None:
    """A rank as torchrun starts it; the first writes the rate of the bare loop, or the rates of both by segments."""
    ranks = Ranks(place_of(settings))
    device = torch.device("cuda", ranks.place.local_rank) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks.size))
    ranks.start(device, 600.0, True)
    workload = find_workload(options.workload)
    sizes = (workload.tiny or {}) if options.size == "tiny" else {}
    task = build_task(workload, {**workload.fixed, **sizes, **settings})

    def rate(run, steps: int) -> float:
        torch.accelerator.synchronize() if device.type == "cuda" else None
        ranks.barrier()
        started = time.perf_counter()
        done = run(steps)
        torch.accelerator.synchronize() if device.type == "cuda" else None
        return done * options.batch_size * ranks.size * task.units_per_sample / (time.perf_counter() - started)

    bare = bare_loop(task, options.batch_size, device, ranks.place.rank)
    bare(5)
    step_s = ranks.from_first(options.batch_size * ranks.size * task.units_per_sample / rate(bare, 10))
    seconds = SEGMENT_S if options.segments else options.seconds
    steps, found = max(5, round(seconds / step_s)), {"bare": [], "node": []}
    if options.segments:
        loops = {"bare": bare, "node": node_loop(workload, settings, device, ranks, step_s)}
        rate(loops["node"], steps)
        for pair in range(options.segments):
            for side in ("bare", "node") if pair % 2 == 0 else ("node", "bare"):
                found[side].append(rate(loops[side], steps))
    else:
        found["bare"].append(rate(bare, steps))
    if ranks.first:
        options.rank.write_text(json.dumps(found))
    ranks.end()


def by_torchrun(options: argparse.Namespace, folder: Path, segments: int) -> dict[str, list[float]]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.devices}"]
    words = [f"--{name}={getattr(options, name.replace('-', '_'))}" for name in
             ("workload", "size", "batch-size", "devices", "seconds", "device")]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # torchrun would set it, and say so
    out = folder / "rates.json"
    argv = [*torchrun, __file__, *words, f"--segments={segments}", f"--rank={out}"]
    subprocess.run(argv, check=True, env=environment)
    return json.loads(out.read_text())


def through_node(options: argparse.Namespace, settings: dict[str, object], folder: Path) -> float:
    """The rate of a run of the node, of about that length whatever its interval."""
    stop = Stop(tolerance=1e-6, min_time_s=options.seconds / 2, max_time_s=options.seconds)
    plan = Plan(run_id="ddp", trial=Trial(options.workload, settings), stop=stop)
    asked, out = folder / "plan.json", Path(tempfile.mkdtemp(dir=folder)) / "out"
    asked.write_text(json.dumps(plan.to_json()))
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    argv = [sys.executable, "-m", "prony_node", str(asked), str(out)]
    subprocess.run(argv, check=True, env={**os.environ, "PYTHONPATH": path})
    record = read_record(out)
    assert record is not None
    return float(record["metrics"]["throughput"]["value"])


def whole_runs(options: argparse.Namespace, settings: dict[str, object], folder: Path) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {"bare": [], "node": []}
    for pair in range(options.pairs):
        for side in ("bare", "node") if pair % 2 == 0 else ("node", "bare"):
            if side == "bare":
                rates[side] += by_torchrun(options, folder, 0)["bare"]
            else:
                rates[side].append(through_node(options, settings, folder))
        print(
            f"  run {pair + 1}/{options.pairs}: node / bare = {rates['node'][-1] / rates['bare'][-1]:.4f}",
            file=sys.stderr,
        )
    return rates


def summary(what: str, rates: dict[str, list[float]]) -> dict[str, object]:
    found = mean_interval([math.log(ours / bare) for ours, bare in zip(rates["node"], rates["bare"], strict=True)])
    ratio, low, high = (math.nan if value is None else math.exp(value) for value in (found.mean, found.low, found.high))
    print(f"{what}: node / bare = {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f} over {found.count} pairs")
    good = low <= 1.0 <= high or (low > 0.99 and high < 1.01)
    return {"ratio": ratio, "ratio_low": low, "ratio_high": high, "good": good, "rates": rates}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="wideresnet")
    parser.add_argument("--size", choices=("full", "tiny"), help="tiny on a CPU, where a step would take seconds")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=8, help="of whole runs")
    parser.add_argument("--segments", type=int, default=20, help="pairs of segments within the same ranks")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the timed part of a whole run")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)  # one rank of the loops, and where its rates go
    options = parser.parse_args()
    options.size = options.size or ("tiny" if options.device == "cpu" else "full")
    settings: dict[str, object] = {
        "device": options.device, "devices": options.devices, "batch_size": options.batch_size, "optimizer": "sgd",
        **({"size": options.size} if find_workload(options.workload).tiny is not None else {}),
    }  # fmt: skip
    if options.rank:
        one_rank(options, settings)
        return 0
    result: dict[str, object] = {"workload": options.workload, "settings": settings, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as name:
        if options.segments:
            result["segments"] = summary("segments", by_torchrun(options, Path(name), options.segments))
        if options.pairs:
            result["whole_runs"] = summary("whole runs", whole_runs(options, settings, Path(name)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(found["good"] for found in result.values() if isinstance(found, dict) and "good" in found) else 1


if __name__ == "__main__":
    sys.exit(main())

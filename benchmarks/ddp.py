"""What Prony costs on several devices: DDP through the node beside the same loop started bare with torchrun.

    python benchmarks/ddp.py [--workload wideresnet] [--batch-size 32] [--devices 2] [--pairs 8] [--seconds 5] [--json FILE]

Whole runs alternate in the order bare, node, node, bare, each in fresh processes. The bare loop shares nothing with the
harness but the model, its loss and its samples: its own process group, DDP, optimizer, precision, compilation and timing, by
the host's clock between synchronisations. The node makes a run of a plan, launcher, sampler and record included. The
ratio node / bare of their rates is reported with its 95 % interval over the pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from prony_node.contract import Plan, Stop, Trial, read_record
from prony_node.stats import mean_interval
from prony_node.workloads import build_task, find_workload

POOL = 16


def bare_rank(settings: dict[str, object], workload: str, seconds: float, out: Path) -> None:
    """One rank of the bare loop, as torchrun starts it; the first writes its rate."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    on_gpu = settings["device"] != "cpu"
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    task, batch = build_task(find_workload(workload), settings), int(str(settings["batch_size"]))
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
        Loss(), device_ids=[local] if on_gpu else None, bucket_cap_mb=25, gradient_as_bucket_view=True,
        broadcast_buffers=False,
    )  # fmt: skip
    if on_gpu:
        forward = torch.compile(forward, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate, momentum=0.9,
                                weight_decay=task.weight_decay, fused=True)  # fmt: skip

    def run(steps: int) -> float:
        """Seconds of so many steps."""
        torch.cuda.synchronize() if on_gpu else None
        dist.barrier()
        started = time.perf_counter()
        for number in range(steps):
            forward(*pool[number % POOL]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize() if on_gpu else None
        return time.perf_counter() - started

    run(5)
    box = [max(5, round(seconds / (run(10) / 10)))]
    dist.broadcast_object_list(box, src=0)
    taken_s = run(box[0])
    if rank == 0:
        out.write_text(json.dumps({"rate": box[0] * batch * size * task.units_per_sample / taken_s, "steps": box[0]}))
    dist.destroy_process_group()


def bare(words: list[str], devices: int, folder: Path) -> float:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}", __file__]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # torchrun would set it and say so
    subprocess.run([*argv, *words, "--bare", str(folder / "bare.json")], check=True, env=environment)
    return float(json.loads((folder / "bare.json").read_text())["rate"])


def node(settings: dict[str, object], workload: str, seconds: float, folder: Path) -> float:
    """The rate of a run through the node, of about that length whatever its interval."""
    stop = Stop(tolerance=1e-6, min_time_s=seconds / 2, max_time_s=seconds)
    plan = Plan(run_id="ddp", trial=Trial(workload, settings), stop=stop)
    (folder / "plan.json").write_text(json.dumps(plan.to_json()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    subprocess.run(
        [sys.executable, "-m", "prony_node", str(folder / "plan.json"), str(out)], check=True, env=environment
    )
    record = read_record(out)
    assert record is not None
    return float(record["metrics"]["throughput"]["value"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="wideresnet")
    parser.add_argument("--size", default="full", choices=("full", "tiny"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the timed part of a run")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)  # one rank of the bare loop
    options = parser.parse_args()
    workload = find_workload(options.workload)
    settings = {
        "device": options.device, "devices": options.devices, "batch_size": options.batch_size, "optimizer": "sgd",
        **({"size": options.size} if workload.tiny is not None else {}),
    }  # fmt: skip
    if options.bare:
        tiny = workload.tiny if options.size == "tiny" else {}
        bare_rank({**workload.fixed, **(tiny or {}), **settings}, options.workload, options.seconds, options.bare)
        return 0
    words = [f"--workload={options.workload}", f"--size={options.size}", f"--batch-size={options.batch_size}",
             f"--devices={options.devices}", f"--seconds={options.seconds}", f"--device={options.device}"]  # fmt: skip
    rates: dict[str, list[float]] = {"bare": [], "node": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides = {
            "bare": lambda: bare(words, options.devices, folder),
            "node": lambda: node(settings, options.workload, options.seconds, folder),
        }
        for pair in range(options.pairs):
            for side in ("bare", "node") if pair % 2 == 0 else ("node", "bare"):
                rates[side].append(sides[side]())
            print(f"  pair {pair + 1}/{options.pairs}: node / bare = {rates['node'][-1] / rates['bare'][-1]:.4f}",
                  file=sys.stderr)  # fmt: skip
    found = mean_interval([math.log(ours / plain) for ours, plain in zip(rates["node"], rates["bare"], strict=True)])
    ratio, low, high = (
        math.exp(value if value is not None else math.nan) for value in (found.mean, found.low, found.high)
    )
    print(f"node / bare = {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f} over {options.pairs} pairs")
    good = low <= 1.0 <= high or (low > 0.99 and high < 1.01)
    if options.json:
        result = {"workload": options.workload, "settings": settings, "ratio": ratio, "ratio_low": low,
                  "ratio_high": high, "rates": rates}  # fmt: skip
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

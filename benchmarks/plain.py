"""The plain loop: the models of the suite `reference` as a beginner trains them, eager, in bf16 autocast.

    python benchmarks/plain.py [--seconds 2.5] [--json FILE]

It shares nothing with the harness but the model: no compiler, no graph, no layout, torch's default optimizer. What
Prony adds in speed is told from its figures beside these, taken in the same job.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.workloads import build_task, find_workload

WORK = (
    ("wideresnet", 32, "train"),
    ("wideresnet", 1024, "train"),
    ("resnet50", 512, "train"),
    ("resnet50", 512, "infer"),
    ("gpt-800m", 16, "train"),
)


def plain_rate(name: str, batch_size: int, mode: str, seconds: float, device: torch.device) -> dict[str, object]:
    """Units a second over two segments of about this length, timed by the host between synchronisations."""
    workload = find_workload(name)
    task = build_task(workload, dict(workload.fixed))
    torch.manual_seed(0)
    with device:
        model = task.model()
    generator = torch.Generator(device).manual_seed(1)
    pool = [task.sample(generator, batch_size) for _ in range(4)]
    if mode == "infer":
        model = model.eval().to(torch.bfloat16)
        pool = [tuple(t.bfloat16() if t.is_floating_point() else t for t in batch) for batch in pool]
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    options = {"momentum": 0.9} if workload.optimizer == "sgd" else {}
    optimizer = kinds[workload.optimizer](model.parameters(), lr=1e-3, **options)

    def step(batch):
        if mode == "infer":
            with torch.no_grad():
                task.predict(model, batch)
            return
        with torch.autocast(device.type, torch.bfloat16):
            loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def run(steps: int) -> float:
        torch.accelerator.synchronize()
        started = time.perf_counter()
        for number in range(steps):
            step(pool[number % len(pool)])
        torch.accelerator.synchronize()
        return (time.perf_counter() - started) / steps

    run(13)
    steps = max(5, int(seconds / run(1)))
    rates = [batch_size * task.units_per_sample / run(steps) for _ in range(2)]
    return {"workload": name, "mode": mode, "batch_size": batch_size, "unit": f"{task.unit}/s", "rates": rates}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.accelerator.is_available():
        print("this needs an accelerator: on a CPU these models take minutes a step", file=sys.stderr)
        return 2
    device = torch.device(torch.accelerator.current_accelerator().type, 0)
    found = []
    for name, batch_size, mode in WORK:
        found.append(plain_rate(name, batch_size, mode, options.seconds, device))
        print(f"{name} {mode} batch {batch_size}: {max(found[-1]['rates']):,.0f} {found[-1]['unit']}", flush=True)
        torch.get_device_module(device).empty_cache()
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "loops": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

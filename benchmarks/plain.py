"""The plain loop: models of the suites as a beginner trains them, eager, in bf16 autocast.

    python benchmarks/plain.py [--only WORD] [--seconds 2.5] [--json FILE] [--tiny] [--largest]

It shares nothing with the harness but the model: no compiler, no graph, no layout, torch's default optimizer, and of a
library's model the library's own form. What Prony adds in speed is told from its figures beside these, taken in the
same job.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.contract.settings import LIBRARY
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.detect import image_list, target_list

WORK = (
    ("wideresnet", 32, "train"),
    ("wideresnet", 1024, "train"),
    ("resnet50", 512, "train"),
    ("resnet50", 512, "infer"),
    ("gpt-800m", 16, "train"),
    ("fasterrcnn-r50-fpn", 2, "train"),
    ("fasterrcnn-r50-fpn", 2, "infer"),
    ("dino-swin-l", 2, "train"),
    ("dino-swin-l", 8, "infer"),
    ("segformer-b4", 8, "train"),
    ("segformer-b4", 8, "infer"),
    ("deeplabv3plus-r101", 16, "train"),
    ("deeplabv3plus-r101", 16, "infer"),
)
LARGEST = (  # the batches with which Prony's own step was shown to fit an H200
    ("fasterrcnn-r50-fpn", 72, "train"),
    ("dino-swin-l", 13, "train"),
    ("segformer-b4", 26, "train"),
    ("deeplabv3plus-r101", 64, "train"),
)
FIRST_STEPS, LEAST_STEPS = 13, 5  # before the first segment, and in each
POOL, POOL_VARYING = 4, 16  # batches that go round; more of them where no two have one shape
IMAGES_VARYING = 128  # in all batches that go round then: large ones are fewer

Make = Callable[[], torch.nn.Module]
Step = Callable[[torch.nn.Module, tuple], torch.Tensor]  # of a model and a batch of the pool


def plain_rate(
    name: str, batch_size: int, mode: str, seconds: float, device: torch.device, **given: object
) -> dict[str, object]:
    """Units a second of a workload of Prony's table, with these settings where it has a choice."""
    workload = find_workload(name)
    form = {"preset": "plain", "kernels": LIBRARY, "mode": mode, "batch_size": batch_size}
    settings = {**workload.fixed, **form, **given}
    task = build_task(workload, settings)
    make, forward = plain_form(name, task, mode, tiny=given.get("size") == "tiny")
    torch.manual_seed(0)
    with device:
        model = make()
    generator = torch.Generator(device).manual_seed(1)
    varying = min(POOL_VARYING, max(POOL, IMAGES_VARYING // batch_size))
    pool = [task.sample(generator, batch_size) for _ in range(varying if task.varies else POOL)]
    if name.startswith("fasterrcnn"):
        pool = [(image_list(batch), target_list(batch)) for batch in pool]  # as its data loader gives them
    elif mode == "infer":
        pool = [tuple(t.bfloat16() if t.is_floating_point() else t for t in batch) for batch in pool]
    if mode == "infer":
        model.eval()
        if not name.startswith("fasterrcnn"):  # its operations on boxes have no kernels of 16 bits
            model.to(torch.bfloat16)
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    options = {"momentum": 0.9} if workload.optimizer == "sgd" else {}
    optimizer = kinds[workload.optimizer](model.parameters(), lr=1e-3, **options)

    def step(batch):
        if mode == "infer":
            low = name.startswith("fasterrcnn")
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=low):
                forward(model, batch)
            return
        with torch.autocast(device.type, torch.bfloat16):
            loss = forward(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    rates = measured_rates(step, pool, batch_size * task.units_per_sample, seconds, device, whole=bool(task.varies))
    return {"workload": name, "mode": mode, "batch_size": batch_size, "unit": f"{task.unit}/s", "rates": rates}


def measured_rates(step: Callable, pool: list, units: int, seconds: float, device: torch.device,
                   whole: bool = False) -> list[float]:  # fmt: skip
    """Units a second over two segments of about this length, timed by the host between synchronisations."""

    def synchronise() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize()

    def run(steps: int) -> float:
        synchronise()
        started = time.perf_counter()
        for number in range(steps):
            step(pool[number % len(pool)])
        synchronise()
        return (time.perf_counter() - started) / steps

    run(len(pool) if whole else max(FIRST_STEPS, len(pool)))
    steps = max(1 if whole else LEAST_STEPS, int(seconds / run(1)))
    steps = -(-steps // len(pool)) * len(pool) if whole else steps  # every shape as often as the others
    return [units / run(steps) for _ in range(2)]


def plain_form(name: str, task, mode: str, tiny: bool = False) -> tuple[Make, Step]:
    """The model and what a beginner calls: of torchvision's detector its own forward, with its own losses."""
    sides = {"min_size": 64, "max_size": 96} if tiny else {}
    if name.startswith("fasterrcnn"):
        from torchvision.models.detection import fasterrcnn_resnet50_fpn

        def forward(model, batch):
            images, targets = batch
            return sum(model(images, targets).values()) if mode == "train" else model(images)

        return lambda: fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91, **sides), forward
    return task.model, task.predict if mode == "infer" else task.loss


def tiny_settings(name: str) -> dict[str, object]:
    return {**(find_workload(name).tiny or {}), "size": "tiny"}


def said_of(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="loops whose workload or mode has this in its name")
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="small models in batches of 2, to try the script on a CPU")
    parser.add_argument("--largest", action="store_true", help="detectors and segmenters in their largest batches")
    options = parser.parse_args(arguments)
    work = LARGEST if options.largest else WORK
    if not torch.accelerator.is_available() and not options.tiny:
        return refuse("this needs an accelerator: on a CPU these models take minutes a step; --tiny tries the script")
    chosen = [one for one in work if any(word in f"{one[0]} {one[2]}" for word in options.only or [""])]
    if not chosen:
        return refuse(
            f"no loop has {' or '.join(options.only)} in its name: {', '.join(f'{n} {m}' for n, _, m in work)}"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = torch.device(kind.type, 0) if kind else torch.device("cpu")
    found, failed = [], []
    for name, full_batch, mode in chosen:
        batch_size, more = (2, tiny_settings(name)) if options.tiny else (full_batch, {})
        label = f"{name} {mode} batch {batch_size}"
        try:
            found.append(plain_rate(name, batch_size, mode, options.seconds, device, **more))
            print(f"{label}: {max(found[-1]['rates']):,.1f} {found[-1]['unit']}", flush=True)
        except Exception as error:  # one loop that fails does not end the others
            failed.append({"workload": name, "mode": mode, "batch_size": batch_size, "error": said_of(error)})
            print(f"{label}: failed, {said_of(error)}", flush=True)
        if kind:
            torch.get_device_module(device).empty_cache()
        if options.json:  # after each: what was measured must outlast a time limit
            document = {"torch": torch.__version__, "loops": found, "failed": failed}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

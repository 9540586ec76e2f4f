"""The same training in several precisions: its losses step by step, from the same weights over the same batches.

    python benchmarks/loss_curves.py WORKLOAD [setting=value ...] [--precision bf16 --precision fp8] [--steps 300]
                                     [--json FILE]

The first precision is taken twice, once from weights that are one rounding of bf16 away: how far two
trainings drift apart that should be the same. What a lower precision costs is what goes beyond that. Every batch is
new, so each loss is one on samples not seen before. Everything else is as `prony run` has it on this device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.contract.settings import Value
from prony_node.measure.device import choose_device, machine_of
from prony_node.measure.step import Step
from prony_node.workloads import build_task, find_workload

ROUNDING = 2.0**-9
TOLD = 10  # stretches of the curve that are printed


def losses(name: str, given: dict[str, str], steps: int, nudge: float) -> list[float]:
    """Of so many steps, after the one that compiles; the device waits for none of them."""
    workload, device = find_workload(name), choose_device(given.get("device", "auto"))
    settings: dict[str, Value] = workload.effective(workload.parse(given), machine_of(device, torch.get_num_threads()))
    torch.manual_seed(int(settings["seed"]))
    step = Step(build_task(workload, settings), settings, device)
    step.finish_model()
    if nudge:
        nudged(step, nudge)
    samples, source = int(settings["batch_size"]), torch.Generator(device).manual_seed(1)
    found = torch.empty(steps, device=device)
    with step.kernels():
        step.prepare(step.place(step.task.sample(source, samples)))
        for number in range(steps):
            step(step.place(step.task.sample(source, samples)))
            assert step.output is not None
            found[number] = step.output
    return [float(loss) for loss in found.cpu()]


def nudged(step: Step, share: float) -> None:
    source = torch.Generator(step.device).manual_seed(99)
    with torch.no_grad():
        for weights in step.model.parameters():
            weights.mul_(1 + share * torch.randn(weights.shape, generator=source, device=step.device))


def means(curve: list[float]) -> list[float]:
    """Of each stretch; the last one may be longer."""
    length = max(1, len(curve) // TOLD)
    cuts = [at * length for at in range(TOLD)] if len(curve) >= TOLD else list(range(len(curve)))
    return [sum(part) / len(part) for part in (curve[a:b] for a, b in zip(cuts, [*cuts[1:], len(curve)], strict=True))]


def apart(one: list[float], other: list[float]) -> float:
    """The mean of the second half of a curve less that of the other, as a share."""
    half = len(one) // 2
    return sum(one[half:]) / sum(other[half:]) - 1


def main() -> int:
    options = read_options()
    given = dict(word.split("=", 1) for word in options.settings)
    precisions = options.precision or ["bf16", "fp8"]
    curves: dict[str, list[float]] = {}
    for number, precision in enumerate([precisions[0], *precisions]):
        nudge = ROUNDING if number == 0 else 0.0
        label = f"{precision}, one rounding away" if nudge else precision
        began = time.monotonic()
        curves[label] = losses(options.workload, {**given, "precision": precision}, options.steps, nudge)
        shown = " ".join(f"{value:.4f}" for value in means(curves[label]))
        print(f"{label:26} {shown}  {time.monotonic() - began:.0f} s", flush=True)
    first = curves[precisions[0]]
    drift = {label: apart(curve, first) for label, curve in curves.items() if curve is not first}
    for label, share in drift.items():
        print(f"second half of {label} against {precisions[0]}: {share:+.3%}")
    if options.json:
        document: dict[str, Any] = {"workload": options.workload, "settings": given, "torch": torch.__version__}
        document |= {"device": device_name(), "second_half_against_first": drift, "losses": curves}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("settings", nargs="*", help="setting=value, as for prony run")
    parser.add_argument("--precision", action="append", help="the first is what the others are held to")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    sys.exit(main())

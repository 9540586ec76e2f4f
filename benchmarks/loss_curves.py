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

from prony_node.backends.torch.backend import MissingDevice, choose_device, device_name, machine_of
from prony_node.backends.torch.step import Step
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value
from prony_node.workloads import build_task, find_workload

ROUNDING = 2.0**-9
TOLD = 10  # stretches of the curve that are printed


def effective(name: str, given: dict[str, str], device: torch.device) -> dict[str, Value]:
    workload = find_workload(name)
    return workload.effective(workload.parse(given), machine_of(device, torch.get_num_threads()))


def losses(name: str, given: dict[str, str], steps: int, nudge: float, device: torch.device) -> list[float]:
    """Of so many steps, after the one that compiles; the device waits for none of them."""
    settings = effective(name, given, device)
    torch.manual_seed(int(settings["seed"]))
    step = Step(build_task(find_workload(name), settings), settings, device)
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


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    precisions = options.precision or ["bf16", "fp8"]
    try:
        given = settings_of(options.settings)
        device = choose_device(given.get("device", "auto"))
        for precision in precisions:  # all of them before the first takes minutes
            settings = effective(options.workload, {**given, "precision": precision}, device)
            build_task(find_workload(options.workload), settings)
    except (RequestError, MissingDevice) as error:
        print(f"loss_curves.py: {error}", file=sys.stderr)
        return 2
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"workload": options.workload, "settings": given, "torch": torch.__version__}
    about["device"] = device_name(device)
    curves: dict[str, list[float]] = {}
    drift: dict[str, float] = {}
    for number, precision in enumerate([precisions[0], *precisions]):
        nudge = ROUNDING if number == 0 else 0.0
        label = f"{precision}, one rounding away" if nudge else precision
        began = time.monotonic()
        curves[label] = losses(options.workload, {**given, "precision": precision}, options.steps, nudge, device)
        shown = " ".join(f"{value:.4f}" for value in means(curves[label]))
        print(f"{label:26} {shown}  {time.monotonic() - began:.0f} s", flush=True)
        first = curves.get(precisions[0])
        if first is not None:
            drift = {label: apart(curve, first) for label, curve in curves.items() if curve is not first}
        if options.json:  # after each: what was trained must outlast a time limit
            document = {**about, "second_half_against_first": drift, "losses": curves}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    for label, share in drift.items():
        print(f"second half of {label} against {precisions[0]}: {share:+.3%}")
    return 0


def settings_of(words: list[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise RequestError(f"{word} is no setting=value")
    return dict(word.split("=", 1) for word in words)


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("settings", nargs="*", help="setting=value, as for prony run")
    parser.add_argument("--precision", action="append", help="the first is what the others are held to")
    parser.add_argument("--steps", type=positive, default=300)
    parser.add_argument("--json", type=Path)
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

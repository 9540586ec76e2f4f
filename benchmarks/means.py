"""What single means of a step bring: the same steps with all of them and without one, in turns.

    python benchmarks/means.py WORKLOAD [setting=value ...] [--instead setting=value] [--without trying|folding]
                               [--steps 40] [--rounds 5] [--json FILE]

The step is Prony's own, its batches lie on the device. Each `--instead` is a step with that setting changed, and what
follows from it; `--without trying` takes cuDNN's first guess of a convolution's kernels, `--without folding` leaves
batch norms in a model that infers. Both can be given several times: all are made ready first, and then timed in turns.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from asked import finish, keep_turns, read_words, told, turns_parser
from plain import refuse
from prony_node.contract.settings import Value
from prony_node.measure import cuda
from prony_node.measure.protocol import Batch
from prony_node.measure.step import Step
from prony_node.workloads import build_task
from prony_node.workloads.config import Workload

ALL, TRYING, FOLDING = "all", "trying", "folding"
POOL = 4


@dataclass(frozen=True)
class Form:
    """A step as it is, or without one of its means."""

    name: str
    settings: dict[str, Value]
    without: str = ""


class Ready:
    """Its first steps are behind it, and it has met each of its batches."""

    def __init__(self, workload: Workload, form: Form, device: torch.device) -> None:
        task = build_task(workload, form.settings)
        if form.without == FOLDING:
            task = replace(task, for_inference=lambda model: model)
        self.step, self.device = Step(task, form.settings, device), device
        self._tries = torch.backends.cudnn.benchmark and form.without != TRYING
        self._choose_kernels()
        self.step.finish_model()
        chance = torch.Generator(device).manual_seed(0)
        samples = int(form.settings["batch_size"])
        pool = [self.step.place(task.sample(chance, samples)) for _ in range(POOL)]
        self._batches: Iterator[Batch] = itertools.cycle(pool)
        with self.step.kernels():
            self.step.prepare(pool[0])
        self.seconds_a_step(POOL)

    def _choose_kernels(self) -> None:
        if self.device.type == "cuda":
            cuda.set_matrix_modes(self.step.precision, autotune=self._tries)

    def seconds_a_step(self, steps: int) -> float:
        self._choose_kernels()  # another step has chosen since
        with self.step.kernels():
            finish(self.device)
            began = time.perf_counter()
            for _ in range(steps):
                self.step(next(self._batches))
            finish(self.device)
            return (time.perf_counter() - began) / steps


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    asked = read_words(options.workload, options.settings)
    if isinstance(asked, str):
        return refuse(asked)
    workload, settings, device = asked
    forms = [Form(ALL, settings), *(Form(f"without {name}", settings, name) for name in options.without)]
    for word in options.instead:
        changed = read_words(options.workload, [*options.settings, word])
        if isinstance(changed, str):
            return refuse(changed)
        forms.append(Form(word, changed[1]))
    wrong = [form.name for form in forms[1:] if not differs(form, settings, device)]
    if wrong or not forms[1:]:
        return refuse(f"{wrong[0]} is the same step here" if wrong else "nothing to leave out: --instead or --without")
    ready = {form.name: Ready(workload, form, device) for form in forms}
    found: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(options.rounds):
        for name, one in ready.items():
            found[name].append(1e3 * one.seconds_a_step(options.steps))
    print(f"{workload.name} {' '.join(options.settings)}: {settings['batch_size']} samples a step")
    for form in forms:
        print(f"{form.name}: {told(found[form.name])}{ratio(found[form.name], found[ALL])}{followed(form, settings)}")
    keep_turns(options, device, {"samples": int(settings["batch_size"])}, found)
    return 0


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = turns_parser(__doc__)
    parser.add_argument("--instead", action="append", default=[], metavar="setting=value")
    parser.add_argument("--without", action="append", default=[], choices=[TRYING, FOLDING])
    return parser.parse_intermixed_args(arguments)


def differs(form: Form, settings: dict[str, Value], device: torch.device) -> bool:
    """Whether there is anything that this form leaves out."""
    if form.without == TRYING:
        return device.type == "cuda" and settings["preset"] == "fast"
    if form.without == FOLDING:
        return settings["mode"] == "infer" and settings["preset"] == "fast"
    return form.settings != settings


def ratio(took: list[float], beside: list[float]) -> str:
    return "" if took is beside else f", {statistics.median(took) / statistics.median(beside):.3f} times as long"


def followed(form: Form, settings: dict[str, Value]) -> str:
    """What else the changed setting changed."""
    others = [f"{name}={value}" for name, value in form.settings.items() if settings.get(name) != value]
    others = [word for word in others if word.partition("=")[0] != form.name.partition("=")[0]]
    return f"; with it {', '.join(others)}" if others else ""


if __name__ == "__main__":
    sys.exit(main())

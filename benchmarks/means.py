"""What single means of a step bring: the same steps with all of them and without one, in turns.

    python benchmarks/means.py WORKLOAD [setting=value ...] [--instead setting=value] [--without MEANS]
                               [--steps 40] [--rounds 5] [--json FILE]

The step is Prony's own, its batches lie on the device. Each `--instead` is a step with that setting changed, and what
follows from it: `--instead kernels=library`, or a list of the kernels that stay. Each `--without` leaves out what no
setting does:

    trying      cuDNN's first guess of a convolution's kernels is taken
    folding     batch norms stay in a model that infers, and its blocks are not fused
    halving     a model that infers keeps weights of 32 bits, which every step casts
    unmasking   a model of transformers attends as its library does it, which makes a mask where it must
    unread      the host reads the norm of all gradients before they are clipped

Both can be given several times: all are made ready first, one after the other, and then timed in turns. Each has a
process of its own, since torch keeps the kernels that cuDNN has chosen for a shape for the whole process, tried out or
not.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from unittest import mock

import torch
from torch import Tensor, nn

from asked import finish, keep_turns, read_words, told, turns_parser
from plain import refuse
from prony_node.backends.torch import step
from prony_node.backends.torch.step import INFERENCE, Step
from prony_node.backends.torch.task import Batch
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value, uses_kernel
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.config import Workload
from prony_node.workloads.language import NAME as NO_MASK

ALL = "all"
TRYING, FOLDING, HALVING, UNMASKING, UNREAD = MEANS = ("trying", "folding", "halving", "unmasking", "unread")
HALVES = (torch.bfloat16, torch.float16)
POOL = 4


@dataclass(frozen=True)
class Form:
    """A step as it is, or without one of its means."""

    name: str
    settings: dict[str, Value]
    without: str = ""


class Casting(Step):
    """An inference whose weights have 32 bits; what is computed in fewer is cast in every step."""

    input_dtype = torch.float32  # type: ignore[assignment]

    @property
    def compute_dtype(self) -> torch.dtype:
        return INFERENCE[self.precision]

    def _answer(self, *batch: Tensor) -> Tensor:
        with torch.autocast(self.device.type, self.compute_dtype, cache_enabled=False):
            return super()._answer(*batch)


class Reading(Step):
    """The host waits for the norm of the gradients, to see whether it is a number."""

    def _train(self) -> None:
        asking = partial(nn.utils.clip_grad_norm_, error_if_nonfinite=True)
        with mock.patch.object(nn.utils, "clip_grad_norm_", asking):
            super()._train()


class Ready:
    """Its first steps are behind it, and it has met each of its batches."""

    def __init__(self, workload: Workload, form: Form, device: torch.device) -> None:
        task = build_task(workload, form.settings)
        if form.without == FOLDING:
            task = replace(task, for_inference=lambda model: model)
        if form.without == UNREAD and task.clip is None:
            raise RequestError(f"{workload.name} clips no gradients")
        if form.without == HALVING and uses_kernel(form.settings, "fused-blocks"):
            raise RequestError("fused blocks compute in the precision of their weights; add kernels=library")
        kind = {HALVING: Casting, UNREAD: Reading}.get(form.without, Step)
        self.step, self.device = kind(task, form.settings, device), device
        if form.without == TRYING:
            step.set_matrix_modes(self.step.precision, autotune=False)
        if form.without == UNMASKING:
            attend_as_the_library(self.step.model)
        self.step.finish_model()
        chance = torch.Generator(device).manual_seed(0)
        samples = int(form.settings["batch_size"])
        pool = [self.step.place(task.sample(chance, samples)) for _ in range(POOL)]
        self._batches: Iterator[Batch] = itertools.cycle(pool)
        with self.step.kernels():
            self.step.prepare(pool[0])
        self.seconds_a_step(POOL)

    def seconds_a_step(self, steps: int) -> float:
        with self.step.kernels():
            finish(self.device)
            began = time.perf_counter()
            for _ in range(steps):
                self.step(next(self._batches))
            finish(self.device)
            return (time.perf_counter() - began) / steps


def attend_as_the_library(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) != NO_MASK:
        raise RequestError("attends as its library does anyway")
    model.set_attn_implementation("sdpa")  # type: ignore[operator]


class Apart:
    """A form in a process of its own, ready when this returns."""

    def __init__(self, workload: str, form: Form, device: torch.device) -> None:
        context = multiprocessing.get_context("spawn")
        self.name, (self._pipe, theirs) = form.name, context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, workload, form, str(device)), daemon=True)
        self._process.start()
        theirs.close()
        self.ready_s = self._ask(None)

    def seconds_a_step(self, steps: int) -> float:
        return self._ask(steps)

    def close(self) -> None:
        self._pipe.close()
        self._process.join()

    def _ask(self, steps: int | None) -> float:
        try:
            if steps is not None:
                self._pipe.send(steps)
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise RequestError(f"{self.name}: its process ended with {self._process.exitcode}") from None
        if isinstance(answer, str):
            raise RequestError(f"{self.name}: {answer}")
        return float(answer)


def serve(pipe: Connection, workload: str, form: Form, device: str) -> None:
    """Make a form ready, say how long that took, and then time as many steps as are asked for, until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks ends, and this with it
    began = time.perf_counter()
    try:
        ready = Ready(find_workload(workload), form, torch.device(device))
        pipe.send(time.perf_counter() - began)
        while True:
            pipe.send(ready.seconds_a_step(pipe.recv()))
    except EOFError:
        return
    except RequestError as error:
        pipe.send(str(error))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}".splitlines()[0])


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
    try:
        found = time_in_turns(forms, device, options)
    except RequestError as error:
        return refuse(str(error))
    print(f"{workload.name} {' '.join(options.settings)}: {settings['batch_size']} samples per step")
    for form in forms:
        print(f"{form.name}: {told(found[form.name])}{ratio(found[form.name], found[ALL])}{followed(form, settings)}")
    keep_turns(options, device, {"samples": int(settings["batch_size"])}, found)
    return 0


def time_in_turns(forms: list[Form], device: torch.device, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds a step of each form, one figure a turn."""
    ready: list[Apart] = []
    found: dict[str, list[float]] = {form.name: [] for form in forms}
    try:
        for form in forms:
            ready.append(Apart(options.workload, form, device))
            print(f"{form.name}: ready after {ready[-1].ready_s:.0f} s", file=sys.stderr, flush=True)
        for _ in range(options.rounds):
            for one in ready:
                found[one.name].append(1e3 * one.seconds_a_step(options.steps))
    finally:
        for one in ready:
            one.close()
    return found


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = turns_parser(__doc__)
    parser.add_argument("--instead", action="append", default=[], metavar="setting=value")
    parser.add_argument("--without", action="append", default=[], choices=MEANS)
    return parser.parse_intermixed_args(arguments)


def differs(form: Form, settings: dict[str, Value], device: torch.device) -> bool:
    """Whether there is anything that this form leaves out."""
    if form.without == TRYING:
        return device.type == "cuda" and settings["preset"] == "fast"
    if form.without == FOLDING:
        return settings["mode"] == "infer" and settings["preset"] == "fast"
    if form.without == HALVING:
        return settings["mode"] == "infer" and INFERENCE.get(str(settings["precision"])) in HALVES
    if form.without == UNREAD:
        return settings["mode"] == "train"
    if form.without == UNMASKING:
        return True  # asked of the model, when there is one
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

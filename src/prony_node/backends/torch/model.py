"""A workload, built on a device: its step and batches, and what it answers before and after it is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prony_node.backends.protocol import Answered, Flops, Moved, RankGroup
from prony_node.backends.torch import cuda
from prony_node.backends.torch.cuda import exact_fp32, untried
from prony_node.backends.torch.flops import count_flops
from prony_node.backends.torch.gradients import GradientObserver
from prony_node.backends.torch.inputs import Inputs
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Batch, Task
from prony_node.backends.torch.training import Probes, parameter_norms, train_further
from prony_node.contract.parallel import Wire, devices_of_model
from prony_node.contract.settings import Value
from prony_node.contract.typed import JsonObject
from prony_node.data.dataset import DataSet
from prony_node.data.source import OpenedDataSet
from prony_node.data.synthetic import pool_size
from prony_node.measure.checks import StillTraining
from prony_node.parallel.replicas import Replicas
from prony_node.parallel.tie import replicas_of
from prony_node.workloads.config import Workload

RANKS_APART = 1_000_003  # seeds of one rank and the next: further apart than those that a run takes for itself
HELD_OUT = {"cpu": 16}  # samples that no step sees, by kind of device
HELD_OUT_DEFAULT = 64
HELD_OUT_UNITS = 8192  # and no more tokens than this


@dataclass(frozen=True)
class Baseline:
    """What the model was before the first step: of a training its loss and parameters, of an inference its answer."""

    held_out: Batch
    loss: float = math.nan
    norms: Tensor | None = None
    reference: Tensor | None = None  # in fp32, as it was built


def build_model(
    workload: Workload,
    task: Task,
    settings: dict[str, Value],
    device: torch.device,
    ranks: RankGroup,
    opened: OpenedDataSet | None,
    closing: ExitStack,
) -> TorchModel:
    """The step and the first batch; what the model answers before anything was learned."""
    inputs = Inputs(workload, settings, device, ranks.place, opened)
    closing.callback(inputs.close)
    seed, training = int(settings["seed"]), settings["mode"] == "train"
    with GradientObserver() as noted:
        flops = count_flops(task, training=training, recompute=bool(settings.get("recompute")))
    samples = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1))
    tied = replicas_of(settings, device, task.split)
    step = Step(task, settings, device, tied)
    step.gradients = noted.of_batch(int(settings["batch_size"]))
    model = ranks.place.rank // devices_of_model(settings)
    seed += RANKS_APART * model  # from here on each model has samples and chances of its own
    if model > 0:
        torch.manual_seed(seed)
    before = baseline(task, step, inputs, held_out(task, inputs, seed + 2))
    batches = inputs.training(task, step, samples, seed + 1)
    first = next(batches)
    assert len(first[0]) == samples  # work is counted by steps of this many samples
    return TorchModel(task, settings, device, inputs, step, tied, flops, before, batches, first, samples)


def held_out(task: Task, inputs: Inputs, seed: int) -> Batch:
    """Samples that no step sees."""
    most = HELD_OUT.get(inputs.device.type, HELD_OUT_DEFAULT)
    count = min(most, max(2, HELD_OUT_UNITS // task.units_per_sample), task.held_out or most)
    return inputs.held_out(task, count, seed)


def baseline(task: Task, step: Step, inputs: Inputs, batch: Batch) -> Baseline:
    """Asked of the model around its final shape: the reference before it, the loss after."""
    if not step.training:
        reference = reference_answer(task, step.model, batch)
        step.finish_model()
        return Baseline(batch, reference=reference)
    step.finish_model()
    loss = step.held_out_loss(step.place(batch))
    return Baseline(batch, loss, parameter_norms(step.model))


def reference_answer(task: Task, model: nn.Module, batch: Batch) -> Tensor:
    """What the model answers in fp32, as it was built."""
    with torch.no_grad(), exact_fp32(), untried():
        return (task.compared or task.predict)(model.eval(), batch).float().cpu()


@dataclass(frozen=True)
class TorchModel:
    """What `prony_node.backends.protocol.BuiltModel` asks for."""

    task: Task
    settings: dict[str, Value]
    device: torch.device
    inputs: Inputs
    step: Step
    tied: Replicas | None
    flops: Flops | None
    before: Baseline
    batches: Iterator[Batch]
    first: Batch
    samples_per_step: int

    @property
    def pool(self) -> int:
        """Batches that are made on the device before they come again."""
        return pool_size(self.first)

    @property
    def waits_for_data(self) -> bool:
        return self.inputs.waits

    @property
    def counts_waits(self) -> bool:
        return self.task.synchronisations is not None

    def waits_so_far(self) -> int:
        """How often the workload itself has waited for the device."""
        return self.task.synchronisations() if self.task.synchronisations else 0

    def waits_of_a_step(self) -> int:
        """The same of one step, which this takes."""
        return cuda.waits(lambda: self.step(next(self.batches)))

    def settle(self) -> None:
        self.inputs.settle()

    def shapes(self) -> JsonObject | None:
        return self.inputs.shapes.document() or None

    def data(self) -> JsonObject | None:
        return self.inputs.about()

    def probes(self) -> Probes:
        return Probes(self.step.model if self.step.training else nn.Module())

    def updates(self) -> tuple[int, int]:
        """Optimizer steps so far, and those of them that a scaler skipped. Waits for the device."""
        return self.step.updates.made, self.step.updates.skipped()

    def watch_losses(self) -> None:
        self.step.losses.begin()

    def losses_finite(self) -> bool:
        return self.step.losses.all_finite()

    def scores(self, scores: tuple[str, ...], *, one_batch: bool) -> dict[str, float]:
        """How well the model as it stands answers the whole test split, by score."""
        found: dict[str, list[Tensor]] = {}
        for batch in self.inputs.test(self.step, self.samples_per_step):
            for name, values in self.step.scores(batch).items():
                found.setdefault(name, []).append(values.float())
            if one_batch:  # it was there to see whether it fits; a part of the split has no score
                return dict.fromkeys(found, math.nan) | dict.fromkeys(scores, math.nan)
        assert self.inputs.opened is not None
        return self.inputs.opened.test.scores({name: torch.cat(values).cpu() for name, values in found.items()})

    def judges_split(self) -> bool:
        """Whether answers can be judged one by one."""
        return self.task.judged is not None

    def split_answers(self) -> TorchSplitAnswers:
        place = self.inputs.place
        return TorchSplitAnswers(self, self.inputs.test_part(place.rank, place.size))

    def moved(self) -> Moved:
        """Looked at before a held-out loss is, which moves the statistics of batch norms."""
        norms = parameter_norms(self.step.model)
        finite = bool(torch.isfinite(norms).all()) and bool(torch.isfinite(self.step.last_loss()).all())
        assert self.before.norms is not None
        return Moved(int((norms != self.before.norms).sum()), len(norms), finite)

    @property
    def held_out_samples(self) -> int:
        return len(self.before.held_out[0])

    @property
    def loss_first(self) -> float:
        """On held-out samples, before the first step."""
        return self.before.loss

    def held_out_loss(self) -> float:
        """On the same samples now."""
        return self.step.held_out_loss(self.step.place(self.before.held_out))

    def train_further(self, probes: Probes, agree: Callable[[bool], bool]) -> StillTraining:
        """A few more of the very steps that were measured."""
        assert self.before.norms is not None
        return train_further(
            lambda: self.step(next(self.batches)),
            self.step.model,
            self.step.optimizer,
            self.before.norms,
            probes,
            agree,
        )

    def answered(self) -> Answered:
        """Whether the answers are those of fp32."""
        assert self.step.output is not None
        assert self.before.reference is not None
        finite = bool(torch.isfinite(self.step.output).all())
        answer = self.measured_answer()
        finite = finite and bool(torch.isfinite(answer).all())
        by_row = self.task.compared is not None
        return Answered(distance(answer, self.before.reference[: len(answer)], by_row=by_row), finite)

    def measured_answer(self) -> Tensor:
        """Held-out samples through the very step that was measured, compiled or captured, repeated to fill its batch.

        Where the answer itself cannot be compared, through the model of that step.
        """
        held_out = self.before.held_out
        if self.task.compared is not None:
            with torch.no_grad():
                return self.task.compared(self.step.model, self.step.place(held_out)).float().cpu()
        count = len(held_out[0])
        rows = torch.arange(self.samples_per_step, device=held_out[0].device) % count
        self.step(self.step.place(tuple(tensor[rows] for tensor in held_out)))
        assert self.step.output is not None
        return self.step.output[:count].float().cpu()

    def weights(self) -> list[float]:
        """A number per parameter tensor, the same on all replicas of one model; none of an inference."""
        return parameter_norms(self.step.model).tolist() if self.step.training else []

    def wire(self) -> Wire | None:
        """What this device sends in a step; None where steps exchange nothing."""
        return None if self.tied is None else self.tied.wire(self.step.model)

    def is_split(self) -> bool:
        return self.tied is not None and self.tied.split

    def go_alone(self) -> bool:
        """From here on this rank's steps exchange nothing; False where none can go by itself."""
        return self.tied is not None and self.tied.part()


class TorchSplitAnswers:
    """An inference over this rank's part of a test split, judged on the device without waiting for it."""

    def __init__(self, model: TorchModel, part: DataSet) -> None:
        self._model, self._part = model, part
        self._scores: dict[str, list[Tensor]] = {}

    def __len__(self) -> int:
        return len(self._part)

    def batches(self) -> Iterator[Batch]:
        """One pass over the part."""
        return self._model.inputs.test(self._model.step, self._model.samples_per_step, self._part)

    def answer(self, batch: Batch) -> None:
        self._model.step(batch)
        self._judge(batch)

    def answer_few(self, batch: Batch) -> None:
        """Repeated to fill a step, whose shape may be compiled or captured; what is repeated is not judged again."""
        count = len(batch[0])
        rows = torch.arange(self._model.samples_per_step, device=batch[0].device) % count
        self._model.step(tuple(tensor[rows] for tensor in batch))
        self._judge(batch)

    def _judge(self, batch: Batch) -> None:
        answer, judged = self._model.step.output, self._model.task.judged
        assert answer is not None
        assert judged is not None
        for name, values in judged(answer[: len(batch[0])], batch).items():
            self._scores.setdefault(name, []).append(values)

    def sums(self) -> dict[str, float]:
        """Of each score over the samples of all passes."""
        return {name: float(torch.cat(values).double().sum()) for name, values in self._scores.items()}


def distance(answer: Tensor, reference: Tensor, by_row: bool) -> float | None:
    """Of the whole answer, or the largest of any row: one that is not a number is no small one. None: all is zero."""
    if not reference.any():
        return None
    if by_row:
        return float(((answer - reference).norm(dim=1) / reference.norm(dim=1)).max())
    return float((answer - reference).norm() / reference.norm())

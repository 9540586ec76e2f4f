"""A workload, built on a device: where its samples come from, its step, and what it answers before and after."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prony_node.backends.protocol import Answered, Flops, Moved, RankGroup
from prony_node.backends.torch import step
from prony_node.backends.torch.compiling import GradientObserver, count_flops
from prony_node.backends.torch.step import Step, exact_fp32, untried
from prony_node.backends.torch.task import Batch, Task
from prony_node.backends.torch.training import Probes, parameter_norms, train_further
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value, Wire, devices_of_model, in_lockstep, replicas
from prony_node.contract.typed import JsonObject
from prony_node.data.batches import (
    SentBatches,
    as_input,
    evaluation_batches,
    preparation,
    sends_beside,
    sent,
    training_batches,
)
from prony_node.data.dataset import Batches, DataSet
from prony_node.data.source import OpenedDataSet, fit_settings, open_source, part_of, share_of
from prony_node.data.synthetic import HostBatches, HostSamples, SamplesApart, device_batches, pool_size
from prony_node.measure.checks import StillTraining
from prony_node.parallel.place import RankPosition
from prony_node.parallel.replicas import Replicas
from prony_node.workloads.config import Workload

if TYPE_CHECKING:
    from prony_node.data.detection import Shapes

# Where the samples of a run come from, and how they reach the step: synthetic, generated or of a data set.


LEAST_IMAGES = 2  # that the loss of a classifier is judged on


def open_data(
    workload: Workload,
    settings: dict[str, Value],
    asked: Mapping[str, Value],
    cores: int,
    note: Callable[[str], None],
) -> tuple[OpenedDataSet, dict[str, Value]]:
    """Generate, stage and open the data set of a run; and the settings, with those that follow from it."""
    own = dict(settings)
    sequence = int(own["sequence"]) if "sequence" in own else None
    opened = open_source(workload.name, workload.reads, workload.generated, own, note, sequence=sequence)
    fit_settings(own, asked, opened.train, cores)
    if workload.reads in ("images", "boxes"):
        return opened, with_classes(own, max(split.label_count for split in (opened.train, opened.test)))
    return opened, own


def with_classes(settings: dict[str, Value], found: int) -> dict[str, Value]:
    classes = int(settings.get("classes", found))
    if classes < found:
        raise RequestError(
            f"classes={classes} is not possible: the data set tells {found} classes apart; classes={found} would do"
        )
    return {**settings, "classes": classes}


def about(opened: OpenedDataSet, settings: Mapping[str, Value]) -> dict[str, Any]:
    """What the record says of the data set."""
    held = {"device": "device", "memory": "host memory"}.get(str(settings.get("cache")), "files")
    return {**opened.about, "held": held}


def fit(workload: Workload, opened: OpenedDataSet | None, task: Task) -> None:
    """Let the data set speak the model's language."""
    if opened is None:
        return
    for split in (opened.train, opened.test):
        split.adapt(task.tokenizer, task.scale_to)
    tokens = opened.about.get("vocabulary")
    if tokens and task.vocabulary and tokens > task.vocabulary:
        raise RequestError(
            f"{opened.about['folder']} has a vocabulary of {tokens:,} tokens; {workload.name} has {task.vocabulary:,}"
        )


def padding() -> Callable[[Sequence[Batch]], Batch]:
    """Puts samples of different shapes together. Imported here, as a model of one shape needs none of it."""
    from prony_node.data.detection import padded

    return padded


class Inputs:
    """The batches of a run; the data set, if there is one, was opened before the model was built."""

    def __init__(
        self,
        workload: Workload,
        settings: dict[str, Value],
        device: torch.device,
        place: RankPosition | None = None,
        opened: OpenedDataSet | None = None,
    ) -> None:
        self.workload, self.settings, self.device = workload, settings, device
        self.place = place or RankPosition()
        self.opened = opened
        self.shapes: Shapes | None = None  # of batches of boxes that differ in shape
        self._open: list[Batches] = []

    @property
    def waits(self) -> bool:
        """Whether a step may have to wait for its batch."""
        return self.settings["data"] != "device" and self.settings.get("cache") != "device"

    def about(self) -> dict[str, Any] | None:
        """What the record says of the data set after a run, with how its images were divided."""
        if self.opened is None:
            return None
        said = about(self.opened, self.settings)
        for source in self._open:
            if source.decoded_on_device is not None:
                said["decoded_on_device"] = source.decoded_on_device
        return said

    def held_out(self, task: Task, count: int, seed: int) -> Batch:
        """Samples that no step sees: of the test split where there is one."""
        if self.opened is None:
            return task.sample(torch.Generator(self.device).manual_seed(seed), count)
        settings = {**self.settings, "workers": 0, "pin_memory": False}
        source = evaluation_batches(self.opened.test, settings, count, self.device)
        batch = next(source)
        source.close()
        least = LEAST_IMAGES if self.workload.reads == "images" else self.workload.least("train")
        if len(batch[0]) < least and self.settings["mode"] == "train":
            raise RequestError(
                f"{self.opened.about['folder']} has {len(batch[0])} image to test with; {least} are needed: a batch "
                "norm of one value has nothing to normalise"
            )
        # The reference is fp32; `place` gives them the step's precision.
        return self._as_input(task, batch, torch.float32)

    def training(self, task: Task, step: Step, samples: int, seed: int) -> Iterator[Batch]:
        """Batches without end, as the step takes them."""
        settings = self.settings
        if task.varies and self.workload.reads == "boxes" and self.shapes is None:
            from prony_node.data.detection import Shapes

            self.shapes = Shapes()
        if self.opened is not None:
            mine = self.opened.train
            if in_lockstep(settings):
                # Ranks that split a model take the same samples.
                mine = share_of(mine, self.place.rank // devices_of_model(settings), replicas(settings))
            if samples > len(mine):
                raise RequestError(f"a step of {samples} samples is more than the {len(mine):,} of the set")
            source = self._keep(training_batches(mine, settings, samples, self.device, seed))
            prepare = preparation(
                self.workload.reads, mine, settings, self.device, step.input_dtype, seed + 1, task.on_host
            )
            return (step.place(prepare(self._counted(batch))) for batch in source)
        apart = bool(task.varies)
        if settings["data"] == "device":

            def place(batch: Batch) -> Batch:
                return step.place(self._counted(batch))

            return device_batches(task.sample, place, samples, device=self.device, seed=seed, apart=apart)
        length = max(self.workload.epoch_samples or 0, 64 * samples)
        loader = HostBatches(
            (SamplesApart if apart else HostSamples)(task.sample, length, seed),
            samples,
            seed=seed,
            workers=int(settings["workers"]),
            prefetch=int(settings["prefetch"]) if "prefetch" in settings else None,
            pin_memory=bool(settings["pin_memory"]),
            collate=padding() if apart else None,
        )
        if self._can_send(task):
            return iter(self._keep(SentBatches(loader, step.place, self.device)))
        return (step.place(self._counted(batch)) for batch in self._keep(loader))

    def _can_send(self, task: Task) -> bool:
        """Whether a thread copies batches beside the step: nothing that has to be looked at, or stays on the host."""
        return sends_beside(self.settings, self.device) and not task.varies and not task.on_host

    def _counted(self, batch: Batch) -> Batch:
        """Before it lies on the device, where to look at it would make the host wait."""
        return batch if self.shapes is None else self.shapes.seen(batch)

    def test_part(self, rank: int, ranks: int) -> DataSet:
        """What one of several ranks answers of the test split: together they have all of it."""
        assert self.opened is not None
        return part_of(self.opened.test, rank, ranks)

    def test(self, step: Step, samples: int, part: DataSet | None = None) -> Iterator[Batch]:
        """One pass over the test split, or over a part of it."""
        assert self.opened is not None
        source = evaluation_batches(self.opened.test if part is None else part, self.settings, samples, self.device)
        try:
            for batch in source:
                yield step.place(self._as_input(step.task, batch, step.input_dtype))
        finally:
            source.close()

    def _as_input(self, task: Task, batch: Batch, dtype: torch.dtype) -> Batch:
        assert self.opened is not None
        here = sent(batch, self.device, task.on_host)
        size = int(self.settings.get("image_size", 0))
        return as_input(self.workload.reads, self.opened.test.kind, here, size, dtype)

    def _keep(self, source: Batches) -> Batches:
        self._open.append(source)
        return source

    def wait_until_idle(self) -> None:
        """No loader uses the device until the next batch is taken: so a step can be captured."""
        for source in self._open:
            source.wait_until_idle()

    def close(self) -> None:
        """End the loaders; those left to the interpreter's exit end slowly."""
        for source in self._open:
            source.close()
        self._open.clear()


# The choice of how a step is tied to those of other ranks: not at all, as a replica, or as a part of one model.


def replicas_of(settings: dict[str, Value], device: torch.device, split: Any = None) -> Replicas | None:
    """How a step is tied to those of other ranks; `split` is how the workload's model is split over several."""
    if devices_of_model(settings) > 1:
        from prony_node.parallel.split import Split  # torch's DTensor and pipelines take a while to import

        return Split(settings, device, split)
    return Replicas(settings, device) if in_lockstep(settings) else None


# A workload, built on a device: its step and batches, and what it answers before and after it is measured.


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
        return step.waits(lambda: self.step(next(self.batches)))

    def wait_until_idle(self) -> None:
        self.inputs.wait_until_idle()

    def shapes(self) -> JsonObject | None:
        return self.inputs.shapes.document() if self.inputs.shapes else None

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

    def stop_exchanging(self) -> bool:
        """From here on this rank's steps exchange nothing; False where none can go by itself."""
        return self.tied is not None and self.tied.stop_exchanging()


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

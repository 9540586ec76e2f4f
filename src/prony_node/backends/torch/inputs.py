"""Where the samples of a run come from, and how they reach the step: synthetic, generated or of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.errors import RequestError
from prony_node.contract.parallel import devices_of_model, in_lockstep, replicas
from prony_node.contract.settings import Value
from prony_node.data.ahead import SentBatches, sends_beside
from prony_node.data.batches import as_input, evaluation_batches, preparation, sent, training_batches
from prony_node.data.dataset import Batches, DataSet
from prony_node.data.source import OpenedDataSet, fit_settings, open_source, part_of, share_of
from prony_node.data.synthetic import HostBatches, HostSamples, SamplesApart, device_batches
from prony_node.parallel.place import RankPosition
from prony_node.workloads.config import Workload

if TYPE_CHECKING:
    from prony_node.data.boxes import Shapes

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
    from prony_node.data.boxes import padded

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
            from prony_node.data.boxes import Shapes

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

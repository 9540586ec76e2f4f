"""What the run needs of a framework. Another framework is a package beside `torch` that does what these say.

Nothing here imports one. A batch, a step's output and a device are the framework's own: the run hands them on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from prony_node.contract.facts import DeviceFacts, MissingFact
from prony_node.contract.machine import Machine
from prony_node.contract.record import CompileCacheUse, Metric
from prony_node.contract.settings import Value, Wire
from prony_node.contract.typed import JsonObject, encode
from prony_node.measure.checks import StillTraining
from prony_node.measure.loop import Clock, Stopwatch
from prony_node.parallel.place import RankPosition
from prony_node.workloads.config import Workload

Batch = Any
T = TypeVar("T")


@dataclass(frozen=True)
class Flops:
    """A multiply-add is two. `recomputed` is forward work done a second time, never part of `per_sample`."""

    per_sample: float
    recomputed: float
    convention: str


@dataclass(frozen=True)
class Moved:
    """What training did to the parameters: how many of the tensors changed, and whether they are finite."""

    moved: int
    tensors: int
    finite: bool  # every parameter, and the last loss


@dataclass(frozen=True)
class Answered:
    """What an inference answered: its distance to the reference in fp32 (None: that is all zero)."""

    error: float | None
    finite: bool


class SentWord(Protocol):
    """A number of the first rank, on its way to all."""

    def is_completed(self) -> bool: ...
    def wait(self) -> int: ...


class RankGroup(Protocol):
    """This rank among the others: what they tell each other, outside of the measured steps."""

    place: RankPosition
    backend: str | None  # of what the steps exchange
    timeout_s: float | None

    @property
    def size(self) -> int: ...
    @property
    def first(self) -> bool: ...

    def start(self, device: Any, timeout_s: float, exchanging: bool) -> None:
        """Meet the others, within `timeout_s`; `exchanging`: their steps exchange something."""

    def barrier(self) -> None:
        """Wait until all ranks have come here."""

    def one_of_a_node_first(self) -> AbstractContextManager[None]:
        """Each node's first rank does this before its others: what it writes, they find."""

    def from_first(self, thing: T) -> T:
        """What the first rank has, for all."""

    def gathered(self, thing: T) -> list[T]:
        """What every rank has, in their order, in the first one; the others get an empty list."""

    def tell(self, number: int) -> SentWord:
        """Begin to bring the first rank's number to all, and do not wait for it."""

    def end(self) -> None: ...


class OpenedData(Protocol):
    """Both splits of a data set, and how long it took to have them here."""

    @property
    def train(self) -> Any: ...
    @property
    def test(self) -> Any: ...
    @property
    def seconds(self) -> dict[str, float]: ...


class MemoryBudget(Protocol):
    """What this process may take of the device's memory."""

    @property
    def room(self) -> int | None:
        """Bytes that the run may take; None where that is not known."""

    def held_at_most(self) -> int | None:
        """The most bytes that were held so far."""


class WeightProbes(Protocol):
    """A few weights, looked at within the window."""

    def take(self, steps: int) -> None: ...


class MeasuredStep(Protocol):
    """One training or inference step: called with a batch, it submits the work and waits for nothing."""

    training: bool
    precision: str
    first_steps: int  # that `prepare` takes: compilation, autotuning, capture

    def __call__(self, batch: Batch) -> None: ...

    def prepare(self, batch: Batch) -> None:
        """Take the first steps, in which it compiles, tunes and captures."""

    def kernels(self) -> AbstractContextManager[Any]:
        """Which attention kernels are preferred; entered once, around everything that the step does."""

    def keep_start(self) -> None:
        """Remember the weights before the first step."""

    def restart(self) -> None:
        """Go back to the weights that were kept."""

    def set_rate(self, factor: float) -> None:
        """This share of the task's learning rate from the next step on."""


class SplitAnswers(Protocol):
    """An inference over this rank's part of a test split, judged on the device."""

    def __len__(self) -> int:
        """Samples in this rank's part."""

    def batches(self) -> Iterator[Batch]: ...
    def answer(self, batch: Batch) -> None: ...

    def answer_few(self, batch: Batch) -> None:
        """Answer a batch of too few samples for a step."""

    def sums(self) -> dict[str, float]:
        """The sum of each score over the samples of all passes."""


class BuiltModel(Protocol):
    """A workload, built: its step, its batches, and what it answers when it is asked outside of the window."""

    @property
    def step(self) -> MeasuredStep: ...
    @property
    def batches(self) -> Iterator[Batch]: ...
    @property
    def first(self) -> Batch: ...
    @property
    def flops(self) -> Flops | None: ...
    @property
    def pool(self) -> int:
        """Batches that are made on the device before they come again."""

    @property
    def waits_for_data(self) -> bool: ...
    @property
    def counts_waits(self) -> bool:
        """Whether the workload tells how often it waited for the device (`waits_so_far`)."""

    def waits_so_far(self) -> int:
        """How often the workload itself has waited for the device."""

    def waits_of_a_step(self) -> int:
        """Take one step; how often the workload waited for the device in it."""

    def wait_until_idle(self) -> None:
        """Return once no loader uses the device, until the next batch is taken: a step can be captured."""

    def shapes(self) -> JsonObject | None:
        """How sizes are distributed, where batches differ in shape, as the record has it."""

    def data(self) -> JsonObject | None:
        """The data set and how it was read, as the record has it."""

    def probes(self) -> WeightProbes: ...

    def updates(self) -> tuple[int, int]:
        """Optimizer steps so far, and those of them that a scaler skipped. Waits for the device."""

    def watch_losses(self) -> None:
        """Look at the loss of every step from here on."""

    def losses_finite(self) -> bool:
        """Whether all losses since then were finite."""

    def scores(self, scores: tuple[str, ...], *, one_batch: bool) -> dict[str, float]:
        """How well the model as it stands answers the whole test split, by score."""

    def judges_split(self) -> bool:
        """Whether answers can be judged one by one."""

    def split_answers(self) -> SplitAnswers: ...

    def moved(self) -> Moved:
        """How the parameters changed since the start. Asked before a held-out loss, which moves batch norms."""

    @property
    def loss_first(self) -> float: ...
    @property
    def held_out_samples(self) -> int: ...

    def held_out_loss(self) -> float:
        """The loss now, on samples that no step sees."""

    def train_further(self, probes: Any, agree: Callable[[bool], bool]) -> StillTraining:
        """Take a few more of the very steps that were measured, until `agree` says that all ranks are done."""

    def answered(self) -> Answered: ...

    def weights(self) -> list[float]:
        """A number per parameter tensor, the same on all replicas of one model; none of an inference."""

    def wire(self) -> Wire | None:
        """What this device sends in a step; None where steps exchange nothing."""

    def is_split(self) -> bool:
        """Whether the model is split over several devices."""

    def stop_exchanging(self) -> bool:
        """Let this rank's steps exchange nothing from here on; False where none can go by itself."""


class TaskOfWorkload(Protocol):
    """A model and what is done with it, before it is built."""

    @property
    def unit(self) -> str: ...
    @property
    def units_per_sample(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def varies(self) -> str:
        """Why no two batches have one shape, where that is so."""


class CollectiveBuffers(Protocol):
    """One message of a collective, of `size` bytes."""

    size: int

    def run(self) -> None: ...

    def renew(self) -> None:
        """Fill it with numbers to time with, before a block of operations."""

    def is_right(self) -> bool:
        """Do it once with numbers whose answer is known, and look at every element."""


class CollectiveGroup(Protocol):
    """The ranks between which a collective is timed."""

    ranks: int
    backend: str

    def refuse_unoffered(self) -> None:
        """Try the operation once; a RequestError where the communication library has none."""

    def make(self, size: int) -> CollectiveBuffers: ...

    def gather(self, values: tuple[float, ...]) -> list[tuple[float, ...]]:
        """Numbers of every rank, in every rank; waits for all of them."""

    def stopwatch(self) -> Stopwatch: ...


class Backend(Protocol):
    """A framework on the device of this rank."""

    device: Any  # `str` of it is what a record names: cuda:1

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...

    def machine(self, cores: int) -> Machine:
        """What the defaults of settings follow from."""

    def facts(self) -> DeviceFacts: ...  # of the device; never raises
    def ranks(self, place: RankPosition | None) -> RankGroup: ...

    def take_device(self, threads: int | None) -> None:
        """Compute on this device from now on, with this number of threads on the host, where one is given."""

    def synchronise(self) -> None: ...

    def clock(self, block_s: float) -> Clock:
        """A clock for blocks of about `block_s` seconds."""

    def cap_memory(self, cap_gib: Value | None, share: float) -> MemoryBudget:
        """Cap what this process may take: `share` of that cap, or of all that is free where there is none."""

    def free_memory(self, cap_gib: Value | None) -> str:
        """What is free now, in words."""

    def refuse_hopeless(self, parameters: int | None, settings: dict[str, Value]) -> None:
        """A RequestError where the parameters alone do not fit."""

    def reset_peak_memory(self) -> None: ...
    def memory_metrics(self) -> dict[str, Metric]: ...

    def use_cache(self, settings: dict[str, Value], folder: Path, closing: ExitStack) -> str | None:
        """Point the compiler at its cache; why it is a temporary one, where it is. `closing` removes that."""

    def cache_state(self, settings: dict[str, Value]) -> CompileCacheUse:
        """What the compiler found in its cache during cold start."""

    def keep_winners(self) -> None:
        """Write down which form of each tuned kernel was the fastest, for later runs."""

    def forget(self) -> None:
        """Free the last model's memory and compiled code."""

    def open_data(
        self,
        workload: Workload,
        settings: dict[str, Value],
        asked: Mapping[str, Value],
        cores: int,
        note: Callable[[str], None],
    ) -> tuple[OpenedData, dict[str, Value], dict[str, Any]]:
        """The data set, the settings with what follows from it, and what the record says of it."""

    def task(
        self, workload: Workload, settings: dict[str, Value], opened: Any
    ) -> tuple[TaskOfWorkload, dict[str, Value]]:
        """The model and what is done with it, not built yet; and the settings with what only its library knows."""

    def build(
        self,
        workload: Workload,
        task: Any,
        settings: dict[str, Value],
        ranks: RankGroup,
        opened: Any,
        closing: ExitStack,
    ) -> BuiltModel:
        """The model on the device, with its step and batches; `closing` ends its loaders."""

    def collective(self, name: str, settings: dict[str, Value]) -> CollectiveGroup: ...


@dataclass(frozen=True)
class Ability:
    """Whether a device can do something; None where it was not tried."""

    can: bool | None
    reason: str | None = None


@dataclass(frozen=True)
class DeviceAbilities:
    """What a framework can do on a device."""

    bf16: Ability
    fp16: Ability
    attention: Mapping[str, Ability]  # by kernel
    event_timing: Ability
    graphs: Ability
    compile: Ability


@dataclass(frozen=True)
class FrameworkHere:
    """The framework of this Python, or why there is none."""

    facts: JsonObject | None  # what it says of itself
    reason: str = ""
    is_rocm: bool = False
    distributed: tuple[str, ...] = ()
    missing: tuple[MissingFact, ...] = ()

    def to_json(self) -> JsonObject:
        if self.facts is None:
            return {"installed": False, "reason": self.reason}
        return {
            "installed": True, **self.facts, "distributed": list(self.distributed), "missing": encode(self.missing),
        }  # fmt: skip


class Framework(Protocol):
    """A framework before a device is chosen: what is asked of it on a machine, where it may be missing."""

    name: str

    def load(self) -> None:
        """Import it, which takes seconds: a rank does it before anything is timed."""

    def open(self, wanted: str, number: int = 0) -> Backend:
        """It on the device that a setting names, `number` counting on from there."""

    def take_only_what_is_needed(self) -> None:
        """Let it reserve no memory beyond what tensors need, where it would. Called before it is loaded."""

    def out_of_memory_in(self, error: BaseException) -> BaseException | None:
        """The error that says that memory ran out: this one, or one that led to it."""

    def find_devices(self) -> JsonObject:
        """kind: cpu or the accelerator's (cuda, xpu, mps), with names and memory; null with a reason without it."""

    def here(self) -> FrameworkHere:
        """What it says of itself, or why it is not here. Never raises."""

    def device_names(self) -> list[str]:
        """Every device of every kind that it sees, the CPU last."""

    def device_facts(self, device: str) -> DeviceFacts:
        """Facts of a device that it names. Never raises."""

    def device_abilities(self, device: str) -> DeviceAbilities:
        """Each ability of a device, tried."""

    def compile_ability(self, kind: str) -> Ability:
        """Whether its compiler finds what it needs for a kind of device; it is not started, that takes a minute."""

    def try_workload(
        self, workload: Workload, build: Callable[[Workload, dict[str, Value]], object], where: str
    ) -> None:
        """Build it at its defaults without memory or arithmetic, and count, as the run itself will."""

"""What of a record stands beside a published figure, and what is not the same behind the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from prony.analysis.settings import Difference, settings_of
from prony.catalog.published import PublishedFigure, Selection
from prony_node.contract.parallel import all_devices, devices_of_model
from prony_node.contract.record import Record

SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
EPOCHS = "epochs"  # a ratio of this kind says how many of our epochs a published time would hold
OURS_OVER = "ours / published"
MILLION = 1_000_000
POSITIVE = ("throughput", "throughput_per_device", "samples_per_wh", "power")  # others may be 0
CALCULATED = "calculated from the steady rate"
WHOLE_PASS = "measured with its rate, in one pass over all samples, loading included"


@dataclass(frozen=True)
class ComparableValue:
    """Our value of a metric, in the published unit; None with the reason."""

    value: float | None
    why: str | None = None  # there is none; or no ratio to the published one
    ratio: str | None = OURS_OVER
    unit: str | None = None  # where it is not the published one
    how: str = ""  # of a time, and of a rate over the same pass: measured or calculated


@dataclass(frozen=True)
class Asked:
    """What a cell asks of a record."""

    record: Record
    spec: Selection
    unit: str  # of the figure
    dataset: str
    per_device: bool  # a rate: of one device, not of all
    baseline: float | None = None  # the rate that speedups are over


def measured(metric: str, asked: Asked) -> ComparableValue:
    if metric not in MEASURES:
        return ComparableValue(None, f"Prony has no {metric}")
    return MEASURES[metric](asked)


def _value(record: Record, name: str) -> tuple[float | None, str | None]:
    value = record.value(name)
    if value is None:
        return None, record.reason(name) or f"the record has no {name}"
    if value <= 0.0 and name in POSITIVE:
        return None, f"the record has {value:g} as {name}"
    return float(value), None


def _rate(asked: Asked) -> ComparableValue:
    if (passed := _whole_pass(asked)) is not None:
        share = all_devices(settings_of(asked.record)) if asked.per_device else 1
        return ComparableValue(passed.rate / share, how=WHOLE_PASS)
    return _in_their_units(asked, *_value(asked.record, "throughput_per_device" if asked.per_device else "throughput"))


def _in_their_units(asked: Asked, value: float | None, why: str | None) -> ComparableValue:
    """Work that is counted in tokens here and in sequences there."""
    return ComparableValue(None if value is None else value / asked.spec.unit_tokens, why)


def _samples(asked: Asked) -> int | None:
    if asked.spec.epoch_batches is not None:
        return asked.spec.epoch_batches * global_batch(asked.record) * asked.spec.unit_tokens
    return asked.spec.samples.get(asked.dataset)


def global_batch(record: Record) -> int:
    """What all devices of a run do together in one step of the optimizer."""
    ours = settings_of(record)
    per_device = int(str(ours.get("batch_size") or 0)) * int(str(ours.get("grad_accumulation") or 1))
    return per_device * max(1, all_devices(ours) // devices_of_model(ours))


@dataclass(frozen=True)
class _Pass:
    """An inference over the test split."""

    seconds: float
    rate: float


def _whole_pass(asked: Asked) -> _Pass | None:
    """That of the run, where it answered as many samples as the publication did."""
    seconds, _ = _value(asked.record, "split_time")
    rate, _ = _value(asked.record, "split_throughput")
    samples = _samples(asked)
    if seconds is None or rate is None or samples is None or round(seconds * rate) != samples:
        return None
    return _Pass(seconds, rate)


def _time(asked: Asked, epochs: int | None) -> ComparableValue:
    if epochs == 1 and (passed := _whole_pass(asked)) is not None:
        return ComparableValue(passed.seconds / SECONDS.get(asked.unit, 1.0), how=WHOLE_PASS)
    rate, why = _value(asked.record, "throughput")
    samples = _samples(asked)
    if rate is None:
        return ComparableValue(None, why)
    if samples is None:
        return ComparableValue(None, f"how many samples {asked.dataset or 'the data set'} has is not stated")
    seconds = samples * (epochs or 1) / rate
    unit = SECONDS.get(asked.unit, 1.0)  # in seconds, where no figure states another unit
    if epochs is None:
        return ComparableValue(
            seconds / unit, "the number of epochs is not stated", EPOCHS, f"{asked.unit} per epoch", CALCULATED
        )
    return ComparableValue(seconds / unit, how=CALCULATED)


def _first_epoch(asked: Asked) -> ComparableValue:
    """The samples of an epoch over the time that they take from the first step on, compilation and all."""
    rate, why = _value(asked.record, "throughput")
    cold_s, no_cold = _value(asked.record, "cold_start")
    samples = _samples(asked)
    if rate is None or cold_s is None or samples is None:
        return ComparableValue(None, why or no_cold or "the size of the data set is not stated")
    cold, work = asked.record.phases.get("cold_start"), asked.record.work
    first = int((cold.steps if cold is not None else None) or 0)
    done = first * (work.units or 0.0) / work.steps if work.steps else 0.0
    return ComparableValue(samples / (cold_s + max(0.0, samples - done) / rate))


def _tflops(asked: Asked) -> ComparableValue:
    rate, why = _value(asked.record, "throughput_per_device")
    if settings_of(asked.record).get("size") == "tiny":
        return ComparableValue(None, "a size=tiny model has other FLOPs than those that the publication counts")
    if rate is None or asked.spec.unit_flops is None:
        return ComparableValue(None, why or "the FLOPs that the publication counts are not known")
    return ComparableValue(rate * asked.spec.unit_flops / 1e12)


def _per_energy(asked: Asked) -> ComparableValue:
    return _in_their_units(asked, *_value(asked.record, "samples_per_wh"))


def _power_per_device(asked: Asked) -> ComparableValue:
    power, why = _value(asked.record, "power")
    return ComparableValue(None if power is None else power / all_devices(settings_of(asked.record)), why)


def _epoch_energy(asked: Asked) -> ComparableValue:
    work, why = _value(asked.record, "samples_per_wh")
    samples = _samples(asked)
    if work is None or samples is None:
        return ComparableValue(None, why or "the size of the data set is not stated")
    return ComparableValue(samples / work)


def _epoch_energy_per_device(asked: Asked) -> ComparableValue:
    whole = _epoch_energy(asked)
    return whole if whole.value is None else ComparableValue(whole.value / all_devices(settings_of(asked.record)))


def _energy(asked: Asked) -> ComparableValue:
    """Beside the energy of runs whose length nobody states: ours is that of a million samples, without a ratio."""
    work, why = _value(asked.record, "samples_per_wh")
    if work is None:
        return ComparableValue(None, why)
    unit = f"Wh per million {asked.record.unit or 'samples'}"
    return ComparableValue(MILLION / work, "the length of the published runs is not stated", None, unit)


def _cpu_utilisation(asked: Asked) -> ComparableValue:
    """Of the cores that the run may use; the publication does not say of which cores its own is."""
    value, why = _value(asked.record, "cpu_utilisation")
    return ComparableValue(value, why or "the publication does not say which cores its share refers to", None)


def _speedup(asked: Asked) -> ComparableValue:
    """Over the rate of another run, so without the interval of either; `prony compare` gives that."""
    rate, why = _value(asked.record, "throughput")
    if rate is None or asked.baseline is None:
        return ComparableValue(None, why or "the run that speedups are over has no rate")
    return ComparableValue(rate / asked.baseline)


def _efficiency(asked: Asked) -> ComparableValue:
    whole, devices = _speedup(asked), all_devices(settings_of(asked.record))
    if whole.value is None or devices == 1:
        return ComparableValue(None, whole.why or "a run on one device has a speedup and no efficiency")
    return ComparableValue(whole.value / devices)


def _accuracy(asked: Asked) -> ComparableValue:
    quality, learning = asked.record.metric("quality"), asked.record.learning
    if quality is None or quality.unit != "accuracy":
        return ComparableValue(
            None, "nothing was learned from a data set: give it, as data=PATH epochs=100 report_at_epochs=10"
        )
    curve = (learning.curve if learning is not None else None) or ()
    tenth = next((point.score("accuracy") for point in curve if point.epoch == 10), None)
    if tenth is None:
        return ComparableValue(None, "the run had no tenth epoch: give epochs=100 report_at_epochs=10")
    return ComparableValue(float(tenth))


def _gap(asked: Asked) -> ComparableValue:
    return ComparableValue(None, "a gap between two systems, of which one machine is at most one")


def _split(asked: Asked, name: str) -> ComparableValue:
    value, why = _value(asked.record, name)
    if name not in asked.record.metrics:
        why = "no test split was answered: give one, as data=PATH epochs=1 weights=PATH"
    return ComparableValue(value, why)


MEASURES: dict[str, Callable[[Asked], ComparableValue]] = {
    "throughput": _rate,
    "throughput_first_epoch": _first_epoch,
    "time": lambda asked: _time(asked, asked.spec.epochs),
    "epoch_time": lambda asked: _time(asked, 1),
    "tflops_per_device": _tflops,
    "tokens_per_energy": _per_energy,
    "images_per_energy": _per_energy,
    "energy_per_epoch": _epoch_energy,
    "energy_per_epoch_per_device": _epoch_energy_per_device,
    "energy": _energy,
    "energy_per_device": _energy,
    "power_per_device": _power_per_device,
    "accuracy_epoch_10": _accuracy,
    "time_gap": _gap,
    "split_time": lambda asked: _split(asked, "split_time"),
    "split_throughput": lambda asked: _split(asked, "split_throughput"),
    "accuracy": lambda asked: _split(asked, "quality"),
    "cpu_utilisation": _cpu_utilisation,
    "speedup": _speedup,
    "scaling_efficiency": _efficiency,
}
UNITS = {  # where no figure states one; that of a rate is the workload's own
    "time": "s", "epoch_time": "s", "tflops_per_device": "TFLOP/s", "tokens_per_energy": "1/Wh",
    "images_per_energy": "1/Wh", "energy_per_epoch": "Wh", "energy_per_epoch_per_device": "Wh",
    "accuracy_epoch_10": "1", "accuracy": "1", "cpu_utilisation": "1", "power_per_device": "W",
}  # fmt: skip
RESTS_ON = {  # the metric of a record whose interval and checks are those of ours
    **dict.fromkeys(("throughput", "throughput_first_epoch", "time", "epoch_time", "tflops_per_device"), "throughput"),
    **dict.fromkeys(("tokens_per_energy", "images_per_energy", "energy_per_epoch"), "samples_per_wh"),
    **dict.fromkeys(("energy_per_epoch_per_device", "energy", "energy_per_device"), "samples_per_wh"),
    "power_per_device": "power", "accuracy": "quality",
}  # fmt: skip
OF_ENERGY = ("samples_per_wh", "power")
# Rates of which a run on one device says something about a published one on several.
COMPARED_PER_DEVICE = ("throughput",)
# What is of one device already, or of work whoever did it, likewise.
ON_ANY = (
    *COMPARED_PER_DEVICE, "tflops_per_device", "energy_per_device", "power_per_device", "tokens_per_energy",
    "images_per_energy", "cpu_utilisation",
)  # fmt: skip


NOT_STATED = "not stated"
MADE = {"device": "made on the device", "host": "made in host memory", "generated": "files that Prony wrote"}


def differences(figure: PublishedFigure, record: Record) -> list[Difference]:
    """Each thing that differs: a is published, b ours."""
    ours = settings_of(record)
    found = [
        Difference("device", figure.accelerator, device_name(record)),
        Difference("devices", figure.devices, all_devices(ours)),
        Difference("framework", figure.framework, "pytorch"),
        Difference("precision", _precision(figure), ours.get("precision")),
        Difference("data", figure.dataset or NOT_STATED, _data(str(ours.get("data", "device")))),
        *_batch(figure, record),
    ]
    if figure.workers_per_device is not None:
        found.append(Difference("workers", figure.workers_per_device, ours.get("workers", "none needed")))
    if ours.get("compile", "off") != "off":
        found.append(Difference("compiled", NOT_STATED, "by torch.compile"))
    if ours.get("size") == "tiny":
        found.append(Difference("model", "the whole", "a tiny one of its kind"))
    return [one for one in found if not _same(one)]


@dataclass(frozen=True)
class Gathered:
    """One thing that differs, over all the cells of a table."""

    name: str
    published: tuple[str, ...]
    ours: tuple[str, ...]


def gather(found: Iterable[tuple[PublishedFigure, Sequence[Difference]]]) -> list[Gathered]:
    """Of figures with what differs of each. What only some systems do not state is said with their names."""
    every = list(found)
    names: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for _, differs in every:
        for one in differs:
            there, here = names.setdefault(one.name, ({}, {}))
            there[str(one.a)] = None
            here[str(one.b)] = None
    return [
        Gathered(name, tuple(f"{text}{_of_systems(name, text, every)}" for text in there), tuple(here))
        for name, (there, here) in names.items()
    ]


def _of_systems(name: str, text: str, found: Iterable[tuple[PublishedFigure, Sequence[Difference]]]) -> str:
    """Which systems do not state it, where the others do."""
    silent: dict[str, None] = {}
    others = set()
    for figure, differs in found:
        if any((one.name, one.a) == (name, NOT_STATED) for one in differs):
            silent[figure.system] = None
        else:
            others.add(figure.system)
    return f" ({', '.join(silent)})" if text == NOT_STATED and others and others.isdisjoint(silent) else ""


def device_name(record: Record) -> str:
    if record.device.name:
        return record.device.name
    cpu = record.facts.host.cpu
    return str((cpu and cpu.model) or settings_of(record).get("device", "unknown"))


def _precision(figure: PublishedFigure) -> str:
    """What a publication on PyTorch calls fp32 is torch's default unless it says more: convolutions use TF32."""
    torch_default = (figure.framework, figure.precision) == ("pytorch", "fp32")
    return "default" if torch_default else figure.precision or NOT_STATED


def _batch(figure: PublishedFigure, record: Record) -> list[Difference]:
    found = []
    if figure.global_batch is not None:
        found.append(Difference("global batch", figure.global_batch, global_batch(record)))
    if figure.batch_per_device is not None or not found:
        ours = settings_of(record).get("batch_size")  # of one pass through the model, as publications count it
        found.append(Difference("batch per device", figure.batch_per_device or NOT_STATED, ours))
    return found


def _data(value: str) -> str:
    return MADE.get(value, PurePath(value).name)


def _same(one: Difference) -> bool:
    published, ours = str(one.a).lower(), str(one.b).lower()
    if one.name == "device":  # A100-80GB is in NVIDIA A100-SXM4-80GB
        return all(word in ours for word in published.split("-"))
    if one.name == "data":
        return published == "synthetic" or published in ours.replace("-", "")
    return published == ours

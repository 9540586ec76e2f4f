"""The conclusions of a publication as statements that runs can test: cells by name, and a ratio of two of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as given

from prony.catalog.published import Figure, figures

RATE, PER_DEVICE, TIME = "rate", "rate_per_device", "time"
PER_WH, POWER, ACCURACY = "samples_per_wh", "power_per_device", "accuracy"
FIRST_EPOCH = "first_epoch"  # the rate of the first epoch over that of the following, of one cell
METRICS = (RATE, PER_DEVICE, TIME, PER_WH, POWER, ACCURACY, FIRST_EPOCH)


@dataclass(frozen=True)
class CellSpec:
    """One measurement that a publication speaks of: which trial of the study, on which device, and its figures."""

    name: str
    workload: str
    on: str = ""  # how words of the device's name begin; "": any machine, the same for all cells of a claim
    match: Mapping[str, tuple[str | None, ...]] = given(default_factory=dict)  # settings, where the trial has them
    only: Mapping[str, tuple[str | None, ...]] = given(default_factory=dict)  # that it must have; None: must not
    publication: str = ""  # whose figures; "": the catalog has none
    figure: Mapping[str, str] = given(default_factory=dict)  # the fields that choose them

    def is_on(self, device: str) -> bool:
        """`A100 80GB` is NVIDIA A100-SXM4-80GB; H200 is not NVIDIA GH200."""
        words = re.split(r"[\s-]+", device.lower())
        return all(any(word.startswith(wished) for word in words) for wished in re.split(r"[\s-]+", self.on.lower()))

    def figures(self) -> tuple[Figure, ...]:
        """The figures of this cell, one for each metric."""
        if not self.figure:
            return ()
        fields = {"workload": self.workload, **self.figure}
        return tuple(
            one for one in figures(self.publication) if all(one.text(name) == value for name, value in fields.items())
        )

    def published(self, metric: str) -> float | None:
        """The published value, or one in proportion to it: a rate from TFLOP/s, power from runs of one length."""
        values = {one.metric: one.value for one in self.figures()}
        devices = next((one.devices or 1 for one in self.figures()), 1)
        seconds = values.get("time", values.get("epoch_time"))
        per_device = values.get("tflops_per_device")
        rate = values.get("throughput")
        if rate is None and seconds is not None:
            rate = 1.0 / seconds
        if rate is None and per_device is not None:
            rate = per_device * devices
        energy = values.get("energy_per_device")
        if metric == PER_WH:
            work = values.get("tokens_per_energy", values.get("images_per_energy"))
            return work if work is not None or rate is None or energy is None else rate / (energy * devices)
        if metric in (POWER, ACCURACY):
            return energy if metric == POWER else values.get("accuracy_epoch_10")
        if rate is None:
            return None
        if metric == FIRST_EPOCH:
            return values["throughput_first_epoch"] / rate if "throughput_first_epoch" in values else None
        return {RATE: rate, PER_DEVICE: rate / devices, TIME: 1.0 / rate}[metric]


@dataclass(frozen=True)
class Ratio:
    """An expression of the ratio of two cells, of the product of two such ratios, or of one cell that is a share."""

    text: str
    pairs: tuple[tuple[str, str], ...]  # the cells of each ratio; the second of a pair is "" for a share
    of: Callable[[float], float]  # its value for the product of these ratios


@dataclass(frozen=True)
class ClaimSpec:
    """A conclusion: it holds where every one of its ratios lies between the bounds."""

    says: str  # in our words
    place: str  # in the publication
    values: tuple[Ratio, ...]
    cells: Mapping[str, CellSpec]
    metric: str = RATE
    above: float | None = None
    below: float | None = None
    published: float | None = None  # what the publication says that the expression is
    samples: int | None = None  # of an epoch, for the metric first_epoch

    @property
    def tested(self) -> str:
        """What a verdict is on: the bounds in words, such as `above 1`. The published number is not one of them."""
        bounds = {"above": self.above, "below": self.below}
        return " and ".join(f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None)

    def holds(self, value: float) -> bool:
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)

"""What a part of a study file is made of: its own keys over those of the study, those of a size over both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prony.plan.document import Keys, Place

SIZED = {"workloads", "settings", "zip", "derive", "exclude", "repeats", "stop"}  # what a part or a size may change
MERGED = ("settings", "derive")  # by name; of the others the nearest one counts


@dataclass(frozen=True)
class Target:
    """Which setting a word of the command line changes, of one part or of all, or of those that read a data set."""

    part: str | None
    name: str
    dataset: str = ""

    def means(self, part: str, dataset: str) -> bool:
        """With a data set, `classify` means the part `classify-cifar100` too."""
        if self.dataset and self.dataset != dataset:
            return False
        return self.part in (None, part) or bool(self.dataset and part.startswith(f"{self.part}-"))

    @property
    def rank(self) -> int:
        """The more it says, the later it counts."""
        return (self.part is not None) + bool(self.dataset)


@dataclass(frozen=True)
class Inherited:
    """What a part is made of: its own keys over those of the study, with those of a size over both."""

    keys: Keys
    named: Mapping[str, Keys]  # settings and derived values, by name
    excluded: tuple[Place, ...]

    @classmethod
    def of(cls, keys: Keys) -> Inherited:
        return cls({}, {kind: {} for kind in MERGED}, ()).overlaid(keys)

    def overlaid(self, keys: Keys) -> Inherited:
        named = {}
        for kind in MERGED:
            own = keys[kind][1].mapping(kind) if kind in keys else {}
            named[kind] = {**self.named[kind], **own}
        excluded = keys["exclude"][1].texts("exclude") if "exclude" in keys else []
        return Inherited({**self.keys, **keys}, named, (*self.excluded, *excluded))

    def sized(self, keys: Keys, size: str | None) -> Inherited:
        """With what a size changes, where these keys have one of that name."""
        if size is None or "sizes" not in keys:
            return self
        places = keys["sizes"][1].mapping("sizes")
        if size not in places or places[size][1].is_nothing:
            return self
        return self.overlaid(places[size][1].mapping(f"the size {size}", SIZED))

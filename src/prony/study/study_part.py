"""One part of a study file: the keys it inherits, and its workloads, axes, derived values and exclusions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from prony.document import DocumentValue, Keys
from prony.study.expression import Expression, parse_expression
from prony.study.request import unknown_setting
from prony.study.space import WORKLOAD, Axis, Derived, StudyPart, expand_range, known_settings, split_values
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import SYNTHETIC_DATA, Setting
from prony_node.contract.trial import Stop
from prony_node.workloads import WORKLOADS
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file.config import is_model_file

SIZED = {"workloads", "settings", "zip", "derive", "exclude", "repeats", "stop"}  # what a part or a size may change
MERGED = ("settings", "derive")  # by name; of the others the nearest one counts


@dataclass(frozen=True)
class SettingSelector:
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
    excluded: tuple[DocumentValue, ...]

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


BARE = frozenset(name for name in WORKLOADS if name.isidentifier())  # workloads that need no quotes in an expression
PATHS = ("data", "weights", "vocab", "tokenizer", "stage")


class PartReader:
    """Reads the axes of a part in their order: an expression may speak of what stands above it."""

    def __init__(
        self,
        name: str,
        place: DocumentValue,
        content: Inherited,
        folder: Path | None,
        find: Callable[[str], Workload],
        dataset: str = "",
    ) -> None:
        self.dataset = dataset
        self._name, self._place, self.content, self._folder = name, place, content, folder
        self._workloads = self._find_workloads(find)
        self._words: dict[str, str] = {}
        self.settings: dict[str, Setting] = {}
        for workload in self._workloads:
            self.settings |= known_settings(workload)
        self._zips = self._read_zips()
        self._given = {name for group in self._zips for name in group} - {"when"}

    def override(self, words: Mapping[SettingSelector, str]) -> None:
        """What a person changes: a word for this part counts before one for all; an empty one takes a setting away."""
        for target in sorted(words, key=lambda target: target.rank):
            if target.name in self._given:
                raise RequestError(f"{target.name} changes together with others in part {self._name!r} (zip)")
            self._words[target.name] = words[target]

    def read(self, stop: Stop, repeats: int) -> StudyPart:
        above = {WORKLOAD}
        axes = [self._zip_axis(group, above) for group in self._zips if "when" not in group]
        settings = self.content.named["settings"]
        for name, text in self._words.items():
            if text and name not in settings:
                axes.append(self._word_axis(name, text))
                above.add(name)
        for name, (place, value) in settings.items():
            if name in self._given:
                raise place.wrong(f"{name!r} is given twice: in settings and in zip")
            word = self._words.get(name)
            if word is None:
                axis = self._axis(name, place, value, above)
            else:
                axis = self._word_axis(name, word) if word else None
            if axis is not None:
                axes.append(axis)
                above.add(name)
        # A group with a condition may speak of every setting, so it stands below them.
        axes += [self._zip_axis(group, above) for group in self._zips if "when" in group]
        derived = []
        for name, (place, value) in self.content.named["derive"].items():
            if not value.is_nothing and name not in self._words:
                derived.append(self._derived(name, place, value, above))
                above.add(name)
        excluded = tuple(self._expression(place, above) for place in self.content.excluded)
        return StudyPart(
            self._name, self._workloads, tuple(axes), tuple(derived), excluded, stop, repeats, self.dataset
        )

    def _find_workloads(self, find: Callable[[str], Workload]) -> tuple[Workload, ...]:
        if "workloads" not in self.content.keys:
            raise self._place.wrong("there is no workload: add `workloads: [...]`")
        found = {}
        for place in self.content.keys["workloads"][1].texts("workloads"):
            target = self._target(place, place.text("a workload"))
            try:
                found[target] = find(target)
            except RequestError as error:
                raise place.wrong(str(error)) from error
        return tuple(found.values())

    def _target(self, place: DocumentValue, text: str) -> str:
        """A name as it is; a model file, or the config that hf/ takes, by its path below the folder of the study."""
        if is_model_file(text):
            return str(self._inside(place, text))
        library, _, model = text.partition("/")
        is_path = "/" in model or model.startswith((".", "~")) or model.endswith(".json")
        return f"{library}/{self._inside(place, model)}" if is_path else text

    def _axis(self, name: str, place: DocumentValue, value: DocumentValue, above: set[str]) -> Axis | None:
        """One setting: a value, a list, or `{values: ..., when: ...}`; nothing takes the setting away."""
        if value.is_nothing:
            return None
        when = None
        if value.is_mapping:
            keys = value.mapping(name, {"values", "when"})
            if "values" not in keys:
                raise value.wrong(f"{name} has no values here: write {{values: [...], when: ...}}")
            when = self._expression(keys["when"][1], above) if "when" in keys else None
            value = keys["values"][1]
        self._known(name, place, everywhere=when is None)
        return Axis((name,), tuple((text,) for text in self._values(name, value)), when)

    def _word_axis(self, name: str, text: str) -> Axis:
        setting = self.settings[name]
        values = split_values(setting, text)
        for value in values:
            setting.parse(value)
        return Axis((name,), tuple((value,) for value in values))

    def _read_zips(self) -> list[dict[str, tuple[DocumentValue, DocumentValue]]]:
        if "zip" not in self.content.keys:
            return []
        groups: list[dict[str, tuple[DocumentValue, DocumentValue]]] = []
        for group in self.content.keys["zip"][1].items("zip"):
            keys = group.mapping("a group of zip")
            for name, (place, _) in keys.items():
                if any(name in other and name != "when" for other in groups):
                    raise place.wrong(f"{name!r} stands in two groups of zip")
            groups.append(keys)
        return groups

    def _zip_axis(self, group: dict[str, tuple[DocumentValue, DocumentValue]], above: set[str]) -> Axis:
        when = self._expression(group["when"][1], above) if "when" in group else None
        columns: dict[str, list[str]] = {}
        for name, (place, value) in group.items():
            if name == "when":
                continue
            self._known(name, place, everywhere=when is None)
            columns[name] = self._values(name, value, distinct=False)
            first = next(iter(columns))
            if len(columns[name]) != len(columns[first]):
                counts = f"{first} has {len(columns[first])} values and {name} has {len(columns[name])}"
                raise value.wrong(f"what is zipped changes together, but {counts}")
        if not columns:
            raise self.content.keys["zip"][1].wrong("a group of zip has no settings")
        above |= set(columns)
        return Axis(tuple(columns), tuple(zip(*columns.values(), strict=True)), when)

    def _derived(self, name: str, place: DocumentValue, value: DocumentValue, above: set[str]) -> Derived:
        if name in above:
            raise place.wrong(f"{name!r} is given and derived; leave one of them out")
        when = None
        if value.is_mapping:
            keys = value.mapping(name, {"value", "when"})
            if "value" not in keys:
                raise value.wrong(f"{name} has no value here: write {{value: ..., when: ...}}")
            when = self._expression(keys["when"][1], above) if "when" in keys else None
            value = keys["value"][1]
        self._known(name, place, everywhere=when is None)
        if name in PATHS:
            raise place.wrong(f"{name} is a path, and paths are not calculated")
        return Derived(name, self._expression(value, above), when)

    def _known(self, name: str, place: DocumentValue, everywhere: bool) -> None:
        """A setting must be one of every workload, unless a condition chooses where it stands."""
        if name not in self.settings:
            raise place.wrong(str(unknown_setting(name, self.settings)))
        without = [one.name for one in self._workloads if name not in known_settings(one)]
        if everywhere and without:
            raise place.wrong(
                f"{without[0]} has no setting {name}; give it a condition, such as "
                f'{{values: ..., when: workload != "{without[0]}"}}'
            )

    def _values(self, name: str, place: DocumentValue, distinct: bool = True) -> list[str]:
        """The values of a setting, each of them checked where it stands."""
        setting = self.settings[name]
        found: list[str] = []
        for one in place.texts(name):
            text = one.text(name)
            try:
                if name in PATHS:
                    values = [text if text in SYNTHETIC_DATA else str(self._inside(one, text, name))]
                elif setting.kind == "text" or one is not place:
                    values = expand_range(setting, text)
                else:
                    values = split_values(setting, text)
                for value in values:
                    setting.parse(value)
            except RequestError as error:
                raise error if error.args[0].startswith(one.file) else one.wrong(str(error)) from error
            found += values
        return list(dict.fromkeys(found)) if distinct else found

    def _inside(self, place: DocumentValue, text: str, name: str = "workloads") -> Path:
        """A path below the folder of the study: what lies elsewhere a person names on the command line."""
        if self._folder is None:
            raise place.wrong(f"{name} names the path {text[:80]!r}, which a study that ships with Prony cannot")
        try:
            home = self._folder.resolve()
            path = (home / text).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise place.wrong(f"{text[:80]!r} is no path: {error}") from error
        if text.startswith("~") or not path.is_relative_to(home):
            how = "copy it there" if name == "workloads" else f"name it yourself, {name}=PATH on the command line"
            raise place.wrong(f"{text[:80]!r} lies outside the folder of the study, which reaches no further; {how}")
        return path

    def _expression(self, place: DocumentValue, above: set[str]) -> Expression:
        text = place.text("an expression")
        every = {*self.content.named["settings"], *self.content.named["derive"], *self._given, *above}
        words = {word for name in every if name in self.settings for word in self.settings[name].words()}
        try:
            found = parse_expression(text, every, words | BARE | {one.name for one in self._workloads})
        except RequestError as error:
            raise place.wrong(str(error)) from error
        below = sorted(found.names - above)
        if below:
            raise place.wrong(f"{text!r} speaks of {below[0]}, which is given further down or not at all here")
        return replace(found, where=place.where)

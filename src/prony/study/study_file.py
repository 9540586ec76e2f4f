"""A study file to a study, part by part, and finding one: a person's own, or one that ships with Prony."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from prony.document import MOST_BYTES, DocumentError, DocumentValue, Keys, read_choice, read_document, read_line
from prony.study.request import make_stop, parse_joules, parse_seconds, unknown_setting
from prony.study.space import (
    WORKLOAD,
    Axis,
    Derived,
    Expression,
    StudyPart,
    expand_range,
    known_settings,
    parse_expression,
    split_values,
)
from prony.study.study import LOCAL, MOST_REPEATS, ORDERS, Budget, Sourced, Study, seed_of
from prony.study.study_tables import read_claims, read_plots, read_tables
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.settings import SYNTHETIC_DATA, Setting
from prony_node.contract.trial import Stop
from prony_node.workloads import WORKLOADS
from prony_node.workloads.config import Workload
from prony_node.workloads.model_file_config import is_model_file

# One part of a study file: the keys it inherits, and its workloads, axes, derived values and exclusions.


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


# A study file to a study, and finding one: a person's own, or one that ships with Prony.


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
KEYS = {
    "name", "question", "source", "stated", "assumptions", "workloads", "settings", "zip", "derive", "exclude", "parts",
    "repeats", "order", "seed", "budget", "site", "stop", "sizes", "tables", "plots", "cells", "claims", "cannot",
}  # fmt: skip
PART_KEYS = {"name", "dataset", *SIZED, "sizes"}
DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")  # without dots, which part the words of a command


@dataclass(frozen=True)
class StudyFileOptions:
    """How a study is to be read: where it lies, in which size, and what a person changes on the command line."""

    folder: Path | None  # of the file; None: shipped with Prony, where no path has a meaning
    size: str | None = None
    words: tuple[str, ...] = ()  # setting=values, part.setting=values, or either with .dataset behind the setting
    parts: tuple[str, ...] = ()  # by name; (): all


def parse_study(text: str, file: str, reading: StudyFileOptions, find: Callable[[str], Workload]) -> Study:
    """The study of a YAML text. `find` answers the workload of a name, or of a model file below the study's folder."""
    document = read_document(text, file)
    top = document.mapping("a study", KEYS)
    sizes = _sizes(top)
    size = _chosen(sizes, reading.size, file)
    shared = Inherited.of({key: value for key, value in top.items() if key in SIZED})
    parts = _parts(document, top, shared, size, reading, find)
    chosen = tuple(part for part in parts if not reading.parts or part.name in reading.parts)
    name = _name(top, file)
    order = read_choice(top, "order", ORDERS, "random")
    seed = _whole(top, "seed", 0, 2**63)
    if seed is not None and order != "random":
        raise top["seed"][0].wrong("seed is of a random order; with order: given it has no meaning")
    tables = read_tables(top["tables"][1], parts) if "tables" in top else ()
    return Study(
        name=name,
        parts=chosen,
        question=read_line(top, "question"),
        source=read_line(top, "source"),
        stated=_sourced(top, "stated"),
        assumptions=_sourced(top, "assumptions"),
        order=order,
        seed=seed_of(name) if seed is None else seed,
        budget=_budget(top),
        site=_site(top),
        sizes=tuple(sizes),
        size=size,
        part_names=tuple(part.name for part in chosen) if reading.parts else (),
        cannot=_lines(top, "cannot"),
        tables=tables,
        plots=read_plots(top["plots"][1], parts) if "plots" in top else (),
        claims=read_claims(top, parts, tables),
    )


def _name(top: Keys, file: str) -> str:
    if "name" not in top:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-.") or "study"
    place = top["name"][1]
    name = place.text("the name of a study")
    if not NAME.fullmatch(name):
        raise place.wrong("a name has up to 60 letters, digits, dots and dashes, and begins with a letter or digit")
    return name


def _site(top: Keys) -> str:
    """By its name alone: a site's file has commands in it, and a study that someone sent brings none."""
    site = read_line(top, "site")
    if not site:
        return LOCAL
    if not NAME.fullmatch(site) or site.endswith((".yaml", ".yml")):
        raise top["site"][1].wrong(
            f"a study names a site, {LOCAL} or one of yours; its file you name yourself, --site FILE"
        )
    return site


def _sizes(top: Keys) -> list[str]:
    """The sizes that the study has: those that it, or any of its parts, speaks of."""
    found: dict[str, None] = {}
    places = [top["sizes"][1]] if "sizes" in top else []
    if "parts" in top:
        for part in top["parts"][1].items("parts"):
            keys = part.mapping("a part", PART_KEYS)
            places += [keys["sizes"][1]] if "sizes" in keys else []
    for place in places:
        for name, (_, value) in place.mapping("sizes").items():
            found[name] = None
            if not value.is_nothing:
                value.mapping(f"the size {name}", SIZED)
    return list(found)


def _chosen(sizes: list[str], asked: str | None, file: str) -> str | None:
    if asked is None:
        return "full" if sizes else None
    if asked == "full" and sizes:
        return "full"
    if asked not in sizes:
        if not sizes:
            raise DocumentError(f"{file} has one size; leave the size out")
        raise unknown("size", asked, [*sizes, "full"])
    return asked


def _parts(
    document: DocumentValue,
    top: Keys,
    shared: Inherited,
    size: str | None,
    reading: StudyFileOptions,
    find: Callable[[str], Workload],
) -> tuple[StudyPart, ...]:
    places = top["parts"][1].items("parts") if "parts" in top else [None]
    if not places:
        raise top["parts"][1].wrong("parts is an empty list")
    readers: dict[str, PartReader] = {}
    for number, place in enumerate(places, start=1):
        keys = place.mapping("a part", PART_KEYS) if place else {}
        name = keys["name"][1].text("the name of a part") if "name" in keys else str(number)
        if name in readers:
            raise keys["name"][1].wrong(f"two parts have the name {name!r}")
        content = shared.overlaid({key: value for key, value in keys.items() if key in SIZED})
        content = content.sized(top, size).sized(keys, size)
        readers[name] = PartReader(name, place or document, content, reading.folder, find, _dataset(keys))
    chosen = _chosen_parts(readers, reading.parts, has_parts="parts" in top)
    targets = _targets(reading.words, readers)
    for target in targets:
        meant = [name for name, reader in readers.items() if target.means(name, reader.dataset)]
        if target.part is not None and meant and not any(name in chosen for name in meant):
            raise RequestError(f"{target.part}.{target.name} is for a part that was not asked for")
        _refuse_target(target, chosen)
    for name, reader in chosen.items():
        reader.override({target: values for target, values in targets.items() if target.means(name, reader.dataset)})
    return tuple(reader.read(_stop(reader.content), _repeats(reader.content)) for reader in readers.values())


def _chosen_parts(readers: dict[str, PartReader], asked: Collection[str], has_parts: bool) -> dict[str, PartReader]:
    """The parts that a person asked for; words of the command line are for these alone."""
    for name in asked:
        if not has_parts:
            raise RequestError("this study has no parts; leave the part out")
        if name not in readers:
            raise unknown("part", name, readers)
    return {name: reader for name, reader in readers.items() if not asked or name in asked}


def _refuse_target(target: SettingSelector, readers: Mapping[str, PartReader]) -> None:
    """A word must mean a setting of each part that it is for."""
    meant = [name for name, reader in readers.items() if target.means(name, reader.dataset)]
    if not meant and target.part not in readers:
        raise unknown("part", str(target.part), readers)
    if not meant:
        raise RequestError(f"part {target.part!r} does not stand for the data set {target.dataset}")
    having = [name for name, reader in readers.items() if target.name in reader.settings]
    for name in meant:
        if name in having:
            continue
        if not having:
            raise unknown_setting(target.name, readers[name].settings)
        ways = " or ".join(f"{one}.{target.name}=" for one in having[:3])
        raise RequestError(f"the workloads of part {name!r} have no setting {target.name}; write {ways}")


def _targets(words: Collection[str], readers: Mapping[str, PartReader]) -> dict[SettingSelector, str]:
    """`setting=values` for every part, `part.setting=values` for one; `setting.dataset` for those of a data set."""
    found: dict[SettingSelector, str] = {}
    for word in words:
        left, equals, values = word.partition("=")
        target = _target(left, readers)
        if not equals or not target.name:
            raise RequestError(f"{word!r} is not a setting=value, or part.setting=value")
        if target in found:
            raise RequestError(f"{left} is given twice: {found[target]} and {values}")
        found[target] = values
    return found


def _target(left: str, readers: Mapping[str, PartReader]) -> SettingSelector:
    part, dot, name = left.rpartition(".")
    if not dot or part in readers:
        return SettingSelector(part if dot else None, name)
    inner, inner_dot, setting = part.rpartition(".")
    datasets = {reader.dataset for reader in readers.values()} - {""}
    if name in datasets:
        return SettingSelector(inner if inner_dot else None, setting, name)
    if datasets and any(setting in reader.settings for reader in readers.values()):
        raise unknown("data set", name, datasets)
    return SettingSelector(part, name)


def _dataset(keys: Keys) -> str:
    """The published data set that the trials of a part stand for."""
    if "dataset" not in keys:
        return ""
    text = keys["dataset"][1].text("dataset")
    if not DATASET.fullmatch(text):
        raise keys["dataset"][1].wrong("a data set has up to 60 letters, digits, dashes and underscores")
    return text


def _stop(content: Inherited) -> Stop:
    if "stop" not in content.keys:
        return Stop()
    place = content.keys["stop"][1]
    given = {name: at[1].text(name) for name, at in place.mapping("stop", {"tolerance", "max_time"}).items()}
    try:
        return make_stop(given.get("tolerance"), given.get("max_time"))
    except RequestError as error:
        raise place.wrong(str(error)) from error


def _repeats(content: Inherited) -> int:
    return _whole(content.keys, "repeats", 1, MOST_REPEATS) or 1


def _budget(top: Keys) -> Budget:
    if "budget" not in top:
        return Budget()
    given = top["budget"][1].mapping("budget", {"max_time", "max_energy"})
    time_s = energy_j = None
    try:
        if "max_time" in given:
            time_s = parse_seconds(given["max_time"][1].text("max_time"), "max_time:")
        if "max_energy" in given:
            energy_j = parse_joules(given["max_energy"][1].text("max_energy"), "max_energy:")
    except DocumentError:
        raise
    except RequestError as error:
        raise top["budget"][1].wrong(str(error)) from error
    return Budget(time_s, energy_j)


def _whole(keys: Keys, name: str, least: int, most: int) -> int | None:
    if name not in keys:
        return None
    text = keys[name][1].text(name)
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise keys[name][1].wrong(f"{name} is a whole number from {least} to {most:,}, not {text[:40]!r}")
    return int(text)


def _lines(top: Keys, name: str) -> tuple[str, ...]:
    if name not in top:
        return ()
    return tuple(" ".join(place.text(name).split()) for place in top[name][1].texts(name))


def _sourced(top: Keys, name: str) -> tuple[Sourced, ...]:
    """A list of `{what: TEXT, source: TEXT}`."""
    if name not in top:
        return ()
    found = []
    for place in top[name][1].items(name):
        keys = place.mapping(f"an entry of {name}", {"what", "source"})
        if len(keys) < 2:
            raise place.wrong(f"an entry of {name} has both: {{what: ..., source: ...}}")
        found.append(Sourced(read_line(keys, "what"), read_line(keys, "source")))
    return tuple(found)


ENDINGS = (".yaml", ".yml")


def shipped_studies() -> dict[str, str]:
    """The text of every study in the catalog, by name."""
    folder = resources.files("prony.catalog") / "studies"
    if not folder.is_dir():
        return {}
    files = sorted((file for file in folder.iterdir() if file.name.endswith(ENDINGS)), key=lambda file: file.name)
    return {Path(file.name).stem: file.read_text(encoding="utf-8") for file in files}


def load_study(
    target: str,
    size: str | None,
    words: tuple[str, ...],
    find: Callable[[str], Workload],
    parts: tuple[str, ...] = (),
) -> Study:
    """The study that a word means: a file where it looks like one, else a shipped study of that name."""
    if target.endswith(ENDINGS) or "/" in target:
        path = expand(target)
        text = _read(path)
        return replace(
            parse_study(text, target, StudyFileOptions(path.absolute().parent, size, words, parts), find), file=path
        )
    shipped = shipped_studies()
    if target not in shipped:
        hint = "" if shipped else "; Prony ships none"
        raise RequestError(f"{unknown('study', target, shipped)}{hint}; a file of yours ends in .yaml")
    return parse_study(shipped[target], f"{target}.yaml", StudyFileOptions(None, size, words, parts), find)


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{path} is no regular file, so it is no study")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is no text in UTF-8, so it is no study") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error

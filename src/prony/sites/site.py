"""Sites: what a site file says, how it is checked, and how it is found by name."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from prony.document import DocumentValue, empty_mapping, read_document
from prony_node.contract import plugins
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError, nearest, unknown
from prony_node.contract.metrics import GRAMS, parse_rate
from prony_node.contract.safe_files import others_may

SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Section:
    """Names with values. Ask for every name there is, then `done()` refuses what is left."""

    def __init__(self, place: DocumentValue, title: str) -> None:
        self.where, self.title = place.file, title
        self._asked: list[str] = []
        self._places = place.mapping(title)
        self._values = {name: value for name, (_, value) in self._places.items()}

    def text(self, name: str, pattern: str = r"[^\x00]*", shape: str = "a line of text") -> str | None:
        """The text of a name; None where it is not given."""
        place = self._take(name)
        return None if place is None else _text(place, name, pattern, shape)

    def choice(self, name: str, choices: Collection[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            guess = nearest(value, choices)
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise self.wrong(name, f"{name} is {' or '.join(choices)}, not {value!r}{hint}")
        return value

    def count(self, name: str, least: int = 0) -> int | None:
        value = self.text(name, r"[0-9]{1,9}", "a whole number")
        if value is not None and int(value) < least:
            raise self.wrong(name, f"{name} is a whole number of at least {least}, not {value}")
        return None if value is None else int(value)

    def seconds(self, name: str) -> float | None:
        """A time such as 90s, 30m, 2h or 1d."""
        value = self.text(name, r"[0-9]{1,6}(\.[0-9]{1,3})?(s|m|min|h|d)?", "a time such as 90s, 30m, 2h or 1d")
        if value is None:
            return None
        match = re.match(r"([0-9.]+)([a-z]*)", value)
        assert match is not None
        return float(match.group(1)) * SECONDS[match.group(2)]

    def flag(self, name: str) -> bool:
        value = self.text(name)
        if value not in (None, "true", "false", "on", "off", "yes", "no"):
            raise self.wrong(name, f"{name} is true or false, not {value!r}")
        return value in ("true", "on", "yes")

    def texts(self, name: str, pattern: str = r"[^\x00]*", shape: str = "a line of text") -> tuple[str, ...]:
        """A list of texts."""
        place = self._take(name)
        return () if place is None else tuple(_text(item, name, pattern, shape) for item in place.items(name))

    def mapping(self, name: str, key_pattern: str, what: str) -> dict[str, str]:
        """Names of this form with texts."""
        inner = self.section(name)
        if inner is None:
            return {}
        for key in inner._values:
            if not re.fullmatch(key_pattern, key):
                raise inner.wrong(key, f"{key!r} is not {what}")
        return {key: inner.text(key) or "" for key in inner._values}

    def section(self, name: str) -> Section | None:
        place = self._take(name)
        return None if place is None else Section(place, f"{name} of {self.title}")

    def sections(self, name: str) -> dict[str, Section]:
        """A mapping of names of a person's choice to mappings; one that is empty is a mapping too."""
        inner = self.section(name)
        if inner is None:
            return {}
        return {
            key: Section(empty_mapping(place) if place.is_nothing else place, f"{key} of {inner.title}")
            for key, place in inner._values.items()
        }

    def sections_of_all(self) -> dict[str, Section]:
        """Every name, each with a mapping."""
        self._asked += [name for name in self._values if name not in self._asked]
        return {name: Section(place, f"{name} of {self.title}") for name, place in self._values.items()}

    def items(self, name: str, parse: Callable[[Section], Any]) -> tuple[Any, ...]:
        """A list of mappings, each made something of."""
        place = self._take(name)
        return () if place is None else tuple(parse(Section(item, f"an item of {name}")) for item in place.items(name))

    def is_text(self, name: str) -> bool:
        return name in self._values and self._values[name].is_text

    def done(self) -> None:
        """Refuse the first name that nobody asked for."""
        for name in self._values:
            if name not in self._asked:
                guess = nearest(name, self._asked)
                hint = f"did you mean {guess!r}?" if guess else f"known: {', '.join(sorted(self._asked))}"
                raise self._places[name][0].wrong(f"{name!r} has no meaning in {self.title}; {hint}")

    def wrong(self, name: str, why: str) -> RequestError:
        return self._values[name].wrong(why) if name in self._values else RequestError(f"{self.where}: {why}")

    def _take(self, name: str) -> DocumentValue | None:
        if name not in self._asked:
            self._asked.append(name)
        return self._values.get(name)


def _text(place: DocumentValue, name: str, pattern: str, shape: str) -> str:
    """The text of a form; nothing is the empty text."""
    if not place.is_text:
        raise place.wrong(f"{name} is {shape}")
    value = "" if place.is_nothing else place.text(name)
    if not re.fullmatch(pattern, value, re.DOTALL):
        raise place.wrong(f"{name} is {shape}, not {value[:80]!r}")
    return value


def read_section(text: str, where: str, title: str) -> Section:
    """The one mapping of a YAML text."""
    return Section(read_document(text, where, title), title)


KINDS = ("local", "slurm", "kubernetes")  # Prony's own; a plug-in adds one with its launcher
ENGINES = ("apptainer", "podman", "docker", "none")
VENDORS = ("nvidia", "amd", "intel", "none")
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Partition:
    """Nodes that are alike, and how to ask for them: a partition of Slurm, or nodes that a selector finds."""

    name: str
    accelerators: int | None = None  # of a node; None: nobody has said, and the scheduler is asked
    accelerator: str = ""  # what they are, for a person
    gres: str = "gpu"  # how Slurm calls them, with a type where it has several: gpu:a100
    vendor: str = "nvidia"
    arch: str | None = None  # amd64 or arm64
    nodes: int | None = None  # at most, for a job
    max_time_s: float | None = None
    cores_per_device: int | None = None
    memory: str | None = None  # of a node, as Slurm takes it: 0 is all of it
    exclusive: bool = False
    options: tuple[str, ...] = ()  # further options of sbatch
    resource: str = "nvidia.com/gpu"  # how Kubernetes calls an accelerator
    selector: dict[str, str] = field(default_factory=dict)  # labels of the nodes, for Kubernetes
    tolerations: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Container:
    """What the node program runs in."""

    engine: str = "none"
    images: dict[str, str] = field(default_factory=dict)  # by architecture, or one under ""
    binds: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    pull_secret: str | None = None

    def image(self, arch: str | None) -> str | None:
        """The image for nodes of this architecture."""
        return self.images.get(arch or "") or self.images.get("")


@dataclass(frozen=True)
class SiteLimits:
    """What a site's owner would not want exceeded."""

    jobs: int = 20  # in the queue at once
    nodes: int | None = None  # of a job
    time_s: float | None = None  # of a job


@dataclass(frozen=True)
class Environment:
    """What holds around the node program on a compute node."""

    modules: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    interface: str | None = None  # of the network between nodes, such as ib0
    host_suffix: str = ""  # what a host's name gets to mean its address on that network


@dataclass(frozen=True)
class Site:
    """One site."""

    name: str
    kind: str
    partitions: dict[str, Partition] = field(default_factory=dict)
    partition: str = ""  # the one that is taken when nobody names one
    about: str = ""
    source: str = ""
    account: str | None = None
    python: str = "python3"  # on the compute nodes, with torch
    runs: Path | None = None  # where run folders lie, seen from here and from the nodes
    limits: SiteLimits = field(default_factory=SiteLimits)
    environment: Environment = field(default_factory=Environment)
    container: Container = field(default_factory=Container)
    options: tuple[str, ...] = ()
    signal_before_s: int = 60  # before the time limit, so that the supervisor writes its record
    retry_node_failure: int = 0
    namespace: str = "default"  # of Kubernetes, as the following ones
    context: str | None = None
    volume: str | None = None  # a claim that holds run folders; without one they come back through the log
    shared_memory: str = "8Gi"
    queue: str | None = None  # of Kueue
    carbon: str | None = None  # g/kWh, as PRONY_CARBON_G_PER_KWH takes it
    price: str | None = None  # of a kWh, as PRONY_PRICE_PER_KWH takes it
    text: str = ""  # its file
    found_as: str = "local"  # the name or the path by which a later command finds the file again

    @property
    def shares_files(self) -> bool:
        """Whether a run folder on a node is one here."""
        return self.kind != "kubernetes" or self.volume is not None


LOCAL = Site("local", "local", {"": Partition("", accelerators=0, nodes=1)}, python="")


NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
# What may stand in a line of #SBATCH: nothing that ends a line, quotes, or starts a comment.
WORD = r"[A-Za-z0-9_.,:=+@/*&|()\[\]-]{1,200}"
OPTION = rf"--?[A-Za-z][A-Za-z0-9-]*(={WORD})?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
OURS = ("PRONY_JOB", "PRONY_RUN_LOG", "PRONY_NODE_RANK", "PRONY_RENDEZVOUS", "PRONY_CONTROLLER_PID")


def parse_site(text: str, where: str, name: str) -> Site:
    """The site of a file's text."""
    section = read_section(text, where, "site")
    site = replace(_parse(section, name), text=text, found_as=name)
    section.done()
    _check(site, section)
    return site


def _parse(section: Section, name: str) -> Site:
    kind = section.text("kind")
    if kind not in KINDS:  # only then: what packages add is a search through all that are installed
        kind = section.choice("kind", (*KINDS, *plugins.of_group(plugins.LAUNCHERS, KINDS)))
    if kind is None:
        raise RequestError(f"{section.where}: a site needs a kind: {', '.join(KINDS)}")
    runs = section.text("runs", r"\S.*", "a folder")
    partitions = {key: _partition(key, inner) for key, inner in section.sections("partitions").items()}
    chosen = section.text("partition", WORD, "the name of a partition")
    if not partitions and (chosen is not None or kind != "slurm"):
        partitions = {chosen or "": Partition(chosen or "")}
    before_s = section.seconds("signal_before")
    return Site(
        name=section.text("name", NAME, "a word") or name,
        kind=kind,
        partitions=partitions,
        partition=chosen if chosen is not None else next(iter(partitions), ""),
        about=section.text("about") or "",
        source=section.text("source") or "",
        account=section.text("account", WORD, "a word"),
        python=section.text("python", r"\S.*", "a program") or "python3",
        runs=expand(os.path.expandvars(runs)) if runs else None,
        limits=_limits(section.section("limits")),
        environment=_environment(section.section("environment")),
        container=_container(section),
        options=section.texts("options", OPTION, "an option of sbatch, such as --qos=short"),
        signal_before_s=60 if before_s is None else round(before_s),
        retry_node_failure=section.count("retry_node_failure") or 0,
        carbon=section.text("carbon_g_per_kwh"),
        price=section.text("price_per_kwh"),
        **_kubernetes(section),
    )


def _partition(name: str, section: Section) -> Partition:
    if not re.fullmatch(WORD, name):
        raise RequestError(f"{section.where}: {name!r} is no name of a partition")
    arch = section.choice("arch", ARCHITECTURES)
    partition = Partition(
        name=name,
        accelerators=section.count("accelerators"),
        accelerator=section.text("accelerator") or "",
        gres=section.text("gres", r"[A-Za-z0-9_.:-]{1,100}", "a name such as gpu or gpu:a100") or "gpu",
        vendor=section.choice("vendor", VENDORS) or "nvidia",
        arch=ARCHITECTURES[arch] if arch else None,
        nodes=section.count("nodes", 1),
        max_time_s=section.seconds("max_time"),
        cores_per_device=section.count("cores_per_device", 1),
        memory=section.text("memory", r"[0-9]+[KMGT]?", "an amount such as 64G, or 0 for all"),
        exclusive=section.flag("exclusive"),
        options=section.texts("options", OPTION, "an option of sbatch, such as --constraint=a100"),
        resource=section.text("resource", r"[A-Za-z0-9_./-]{1,100}", "a name such as nvidia.com/gpu")
        or "nvidia.com/gpu",
        selector=section.mapping("selector", r"[A-Za-z0-9_./-]{1,200}", "a label"),
        tolerations=section.items("tolerations", _toleration),
    )
    section.done()
    return partition


def _toleration(section: Section) -> dict[str, str]:
    found = {name: section.text(name) for name in ("key", "operator", "value", "effect")}
    section.done()
    return {name: value for name, value in found.items() if value is not None}


def _limits(section: Section | None) -> SiteLimits:
    if section is None:
        return SiteLimits()
    limits = SiteLimits(section.count("jobs", 1) or SiteLimits.jobs, section.count("nodes", 1), section.seconds("time"))
    section.done()
    return limits


def _environment(section: Section | None) -> Environment:
    if section is None:
        return Environment()
    variables = section.mapping("variables", VARIABLE, "the name of a variable")
    for name in OURS:
        if name in variables:
            raise section.wrong("variables", f"{name} is set by Prony for each job; leave it out")
    environment = Environment(
        modules=section.texts("modules", r"[^\s-]\S*", "the name of a module"),
        variables=variables,
        interface=section.text("interface", r"[A-Za-z0-9_.,=^:-]{1,100}", "a network interface such as ib0"),
        host_suffix=section.text("host_suffix", r"[A-Za-z0-9.-]{1,100}", "letters, digits, dots and dashes") or "",
    )
    section.done()
    return environment


def _container(parent: Section) -> Container:
    section = parent.section("container")
    if section is None:
        return Container()
    images: dict[str, str] = {}
    if section.is_text("image"):
        images[""] = section.text("image", r"[^\s-].*", "an image") or ""
    else:
        given = section.mapping("image", "|".join(ARCHITECTURES), f"an architecture: {', '.join(ARCHITECTURES)}")
        images = {ARCHITECTURES[arch]: image for arch, image in given.items()}
    container = Container(
        engine=section.choice("engine", ENGINES) or "none",
        images=images,
        binds=section.texts("binds", r"[^\s-].*", "a path, or OUTSIDE:INSIDE"),
        options=section.texts("options", r"-.*", "an option of the container engine"),
        pull_secret=section.text("pull_secret", NAME, "a word"),
    )
    if container.engine != "none" and not any(images.values()):
        raise section.wrong("image", f"engine {container.engine} needs an image")
    section.done()
    return container


def _kubernetes(parent: Section) -> dict[str, str]:
    """Where a site says what only Kubernetes has."""
    section = parent.section("kubernetes")
    if section is None:
        return {}
    label = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
    found = {name: section.text(name, label, "a name as Kubernetes takes it") for name in ("namespace", "volume")}
    found["queue"] = section.text("queue", label, "a name as Kubernetes takes it")
    found["context"] = section.text("context")
    found["shared_memory"] = section.text("shared_memory", r"[0-9]+(Ki|Mi|Gi|Ti)?", "an amount such as 8Gi")
    section.done()
    return {name: value for name, value in found.items() if value is not None}


def _check(site: Site, section: Section) -> None:
    if site.kind == "slurm" and not site.partitions:
        raise RequestError(f"{section.where}: a Slurm site needs a partition; `sinfo -s` lists them")
    if site.partition not in site.partitions:
        raise section.wrong("partition", f"partition {site.partition!r} is none of {', '.join(site.partitions)}")
    if site.carbon is not None:
        parse_rate(site.carbon, f"{section.where}: carbon_g_per_kwh", GRAMS)
    if site.price is not None:
        parse_rate(site.price, f"{section.where}: price_per_kwh")
    if "\n" in site.python or "\0" in site.python:
        raise section.wrong("python", "python is one program")


def choose_partition(site: Site, name: str | None) -> Partition:
    """The partition that a person named, or the site's own."""
    wanted = site.partition if name is None else name
    if wanted not in site.partitions:
        raise unknown(f"partition of {site.name}", wanted, site.partitions)
    return site.partitions[wanted]


def dump_site(values: Mapping[str, object]) -> str:
    """A site file's text."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)


MOST_FILE_BYTES = 256 * 1024


def sites_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's site files lie: $PRONY_SITES, else the configuration folder of this account."""
    named = environment.get("PRONY_SITES")
    if named:
        return Path(named)
    return expand(environment.get("XDG_CONFIG_HOME") or "~/.config") / "prony" / "sites"


@cache
def example_sites() -> dict[str, str]:
    """Site files that Prony ships, by name."""
    folder = resources.files("prony.catalog") / "sites"
    return {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".yaml")
    }


def find_site(name: str) -> Site:
    return load_site(name, example_sites())


def find_site_of_job(name: str) -> Site:
    """The site that a job names. What a file says is executed, so nobody else may have written one that is a path."""
    return read_site(Path(name), own=True) if _is_path(name) else find_site(name)


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def load_site(name: str, examples: Mapping[str, str], folder: Path | None = None) -> Site:
    """The site of a name, or of a path to a file: the user's own, then `local`, then one shipped as an example."""
    if _is_path(name):
        return read_site(Path(name))
    own = user_sites(folder)
    if name in own:
        return replace(read_site(own[name]), found_as=name)
    if name == "local":
        return LOCAL
    if name in examples:
        return parse_site(examples[name], f"{name}.yaml", name)
    raise unknown("site", name, {*own, *examples, "local"})


def user_sites(folder: Path | None = None) -> dict[str, Path]:
    """Files of the user's own sites by name."""
    where = sites_folder() if folder is None else folder
    return {path.stem: path for path in sorted(where.glob("*.yaml"))} if where.is_dir() else {}


def read_site(path: Path, own: bool = False) -> Site:
    """The site of a file; `own`: of one that only this user or root can have written."""
    try:
        text = _read(path, own)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip(".-_") or "site"
    return replace(_parsed(text, str(path), name[:63]), found_as=str(path.absolute()))


def _read(path: Path, own: bool) -> str:
    """The text of a regular file of bounded size. A link to it is followed: the user named it."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise RequestError(f"{path} is no regular file, so it is no site")
        if own and (found.st_uid not in (os.geteuid(), 0) or others_may(found, os.W_OK)):
            raise RequestError(
                f"the site file {path} is another user's, or others can write to it, and it says what a job executes; "
                "use a copy of your own, with `chmod go-w`"
            )
        content = file.read(MOST_FILE_BYTES + 1)
    if len(content) > MOST_FILE_BYTES:
        raise RequestError(f"{path} has more than the {MOST_FILE_BYTES:,} bytes that a site file may have")
    return content.decode("utf-8")


@cache  # a job that is followed looks its site up several times a second
def _parsed(text: str, where: str, name: str) -> Site:
    return parse_site(text, where, name)

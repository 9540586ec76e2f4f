"""What packages add to Prony through entry points, and which extra of Prony's own brings a library."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.typed import JsonObject

# What a package adds to Prony: power readers, workloads, launchers and formats, each by an entry point of its group.
#
# Prony's own are tables of the same shape. They are no entry points, since the node program also runs as a zip, of
# which nothing is installed, and since a run of Prony's own workload need not read the metadata of every package.


POWER_READERS, WORKLOADS = "prony.power_readers", "prony.workloads"
LAUNCHERS, FORMATS = "prony.launchers", "prony.formats"
# The groups of entry points, and what one of each is.
GROUPS = {WORKLOADS: "workload", POWER_READERS: "power reader", LAUNCHERS: "launcher", FORMATS: "format"}
OURS = "prony"
LARGEST_HASHED = 2**26  # bytes; of a larger file the name and the size count


class PluginError(RequestError):
    """A plug-in cannot be used; the sentence names its package."""


@dataclass(frozen=True)
class Plugin:
    """One thing that a package adds. `value` is where it is, as in an entry point: module:attribute."""

    group: str
    name: str
    value: str
    help: str = ""
    package: str = OURS
    version: str = ""

    def __str__(self) -> str:
        return f"{GROUPS[self.group]} {self.name}"

    @property
    def origin(self) -> str:
        return f"{self.package} {self.version}".strip()

    def load(self) -> Any:
        """What `value` names; PluginError where the package cannot be imported or does not have it."""
        module, _, attribute = self.value.partition(":")
        try:
            found = importlib.import_module(module)
            for name in filter(None, attribute.split(".")):
                found = getattr(found, name)
        except (Exception, SystemExit) as error:
            if self.package == OURS:
                raise
            text = " ".join(str(error).split())[:300]
            raise PluginError(
                f"the {self} is of the package {self.origin}, which cannot be loaded: {type(error).__name__}: {text}"
            ) from error
        return found


def own(group: str, *rows: tuple[str, str, str]) -> dict[str, Plugin]:
    """A table of Prony's own: (name, value, help) by name."""
    return {name: Plugin(group, name, value, text) for name, value, text in rows}


@functools.cache
def installed() -> tuple[Plugin, ...]:
    """Everything that packages of this Python add, without importing any of them."""
    from importlib.metadata import distributions

    found: dict[str, list[Plugin]] = {}
    for distribution in distributions():
        try:
            if "prony." not in (distribution.read_text("entry_points.txt") or ""):
                continue
            points = [point for point in distribution.entry_points if point.group in GROUPS]
            package = normal_name(distribution.metadata["Name"])
            # The first of a name on the path is the one that is imported.
            found.setdefault(
                package, [Plugin(p.group, p.name, p.value, "", package, str(distribution.version)) for p in points]
            )
        except Exception:  # a broken installation of another package costs its own plug-ins alone
            continue
    return tuple(sorted((one for many in found.values() for one in many), key=lambda one: (one.group, one.name)))


def normal_name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def of_group(group: str, ours: Iterable[str] = ()) -> dict[str, Plugin]:
    """What packages add to a group, by name. Prony's own names stay its own."""
    taken = set(ours)
    return {one.name: one for one in installed() if one.group == group and one.name not in taken}


def find(group: str, name: str, ours: Mapping[str, Plugin]) -> Plugin:
    """Prony's own of this name, or that of a package; refused where there is none, or where two packages have one."""
    if name in ours:
        return ours[name]
    chosen = in_packages(group, name)
    if chosen is None:
        raise unknown(GROUPS[group], name, [*ours, *of_group(group)])
    return chosen


def in_packages(group: str, name: str) -> Plugin | None:
    """The one that a package adds; None where none does."""
    found = [one for one in installed() if (one.group, one.name) == (group, name)]
    if len(found) > 1:
        packages = " and ".join(one.origin for one in found)
        raise PluginError(f"the {found[0]} is in {packages}: uninstall all but one of them")
    return found[0] if found else None


@dataclass(frozen=True)
class PluginCode:
    """A package with plug-ins, as provenance names it: its version alone does not tell an edited file."""

    package: str
    version: str
    sha256: str
    adds: tuple[str, ...]
    more: JsonObject = field(default_factory=dict)

    @property
    def identity(self) -> str:
        return f"{self.version} {self.sha256}".strip()


@functools.cache
def installed_code() -> tuple[PluginCode, ...]:
    """Each package that adds something, with a short hash of its files."""
    by_package: dict[str, list[Plugin]] = {}
    for one in installed():
        by_package.setdefault(one.package, []).append(one)
    return tuple(
        PluginCode(package, many[0].version, _files_hash(package, many), tuple(map(str, many)))
        for package, many in sorted(by_package.items())
    )


def code_of_run(workload: Plugin | None) -> dict[str, str]:
    """What plug-ins do in a run, by package: the one of its workload, and all that read power beside it."""
    concerned = {one.package for one in installed() if one.group == POWER_READERS}
    concerned |= {workload.package} if workload is not None else set()
    if not concerned:
        return {}
    return {code.package: code.identity for code in installed_code() if code.package in concerned}


def _files_hash(package: str, plugins: Iterable[Plugin]) -> str:
    """Names and contents of the files that were installed, and of the modules of an editable installation."""
    found = dict(_installed_files(package))
    for top in {one.value.partition(":")[0].partition(".")[0] for one in plugins}:
        found.update(_module_files(top))
    whole = hashlib.sha256()
    for name, path in sorted(found.items()):
        whole.update(f"{name}\0{_content_hash(path)}\n".encode())
    return whole.hexdigest()[:16]


def _installed_files(package: str) -> Iterator[tuple[str, Path]]:
    from importlib.metadata import distribution

    try:
        listed = distribution(package).files or []
    except Exception:  # gone meanwhile, or its list is broken: then its modules are what is known
        return
    for one in listed:
        # Scripts name the Python they were installed for; what pip keeps of the installation is no code.
        if one.parts[0] in ("..", "/") or ".dist-info" in one.parts[0] or one.name.startswith("__editable__"):
            continue
        if one.suffix not in (".pyc", ".pth"):
            yield one.as_posix(), Path(str(one.locate()))


def _module_files(top: str) -> Iterator[tuple[str, Path]]:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in map(Path, folders):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{top}/{path.relative_to(folder).as_posix()}", path
    if not folders and spec is not None and spec.origin:
        yield Path(spec.origin).name, Path(spec.origin)


def _content_hash(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > LARGEST_HASHED:
            return f"{size} bytes"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


# Which extra of the package brings a library, so that a missing one is answered with what to install.


# The extras of pyproject.toml that a node may need, each with the names under which its libraries are imported.
EXTRAS = {
    "node": ("torch", "pynvml"),
    "vision": ("torchvision", "timm", "PIL", "safetensors"),
    "language": ("transformers", "tokenizers", "safetensors"),
    "scenes": (
        "torchvision", "transformers", "segmentation_models_pytorch", "scipy",
        "timm", "PIL", "tokenizers", "safetensors",
    ),
}  # fmt: skip
OF_FAMILY = {"segment": "scenes", "dino": "scenes"}  # of others the first extra that has the library is right
FAMILIES = "prony_node.workloads."


def extra_of(library: str, module: str = "") -> str | None:
    """The extra that brings a library to the workload of this module; None for a library that no extra has."""
    own = OF_FAMILY.get(module.removeprefix(FAMILIES).partition(":")[0])
    if own is not None and library in EXTRAS[own]:
        return own
    return next((extra for extra, libraries in EXTRAS.items() if library in libraries), None)


def install_command(extra: str) -> str:
    return f"pip install 'prony[{extra}]'"


def missing_library(library: str, module: str = "") -> str:
    """The sentence of a run whose workload cannot import a library."""
    extra = extra_of(library, module)
    how = f": {install_command(extra)}" if extra else ""
    return f"this workload needs {library}, which is not installed here{how}"

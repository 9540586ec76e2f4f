"""`prony list`: what there is to measure, and with which settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import typer

from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.settings import Value
from prony_node.contract.typed import encode

THINGS = ("workloads", "settings", "kernels", "suites", "studies", "plugins")


@dataclass(frozen=True)
class WorkloadEntry:
    name: str
    help: str
    unit: str
    parameters: int | None
    flops: float | None
    flops_source: str | None
    sizes: list[str]
    needs: str | None  # a library besides torch
    source: str
    published: str | None
    package: str | None  # None: Prony's own

    @property
    def sources(self) -> str:
        ran = f"\npreset=published: {self.published}" if self.published else ""
        return self.source + ran + (f"\nof the package {self.package}" if self.package else "")


@dataclass(frozen=True)
class SettingEntry:
    name: str
    help: str
    kind: str
    values: str
    choices: list[str]
    workloads: list[str] | None  # None: of every workload

    @property
    def note(self) -> str:
        return self.values + (f"; of {', '.join(self.workloads)}" if self.workloads else "")


@dataclass(frozen=True)
class KernelEntry:
    name: str
    help: str
    mode: str | None
    workloads: list[str]

    @property
    def note(self) -> str:
        return f"{f'mode={self.mode}; ' if self.mode else ''}of {', '.join(self.workloads)}"


@dataclass(frozen=True)
class TrialEntry:
    hash: str
    workload: str
    settings: Mapping[str, Value]


@dataclass(frozen=True)
class SuiteTrialEntry(TrialEntry):
    on: str | None  # the kind of device that it is for; None: both


@dataclass(frozen=True)
class SuiteEntry:
    name: str
    help: str
    trials: list[SuiteTrialEntry]

    @property
    def note(self) -> str:
        return f"{len(self.trials)} trials"


@dataclass(frozen=True)
class StudyEntry:
    name: str
    help: str
    source: str
    sizes: list[str]
    trials: list[TrialEntry]

    @property
    def note(self) -> str:
        return f"{len(self.trials)} trials"


@dataclass(frozen=True)
class PluginEntry:
    name: str
    adds: str
    package: str
    version: str
    value: str
    refused: str | None  # why it cannot be used


Noted = SettingEntry | KernelEntry | SuiteEntry | StudyEntry  # a line each, with a note behind it


def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(THINGS), help="What to list.")] = "workloads",
    as_json: Annotated[bool, typer.Option("--json", help="Print the list alone, as JSON.")] = False,
) -> None:
    """List workloads, settings, kernels, suites, studies or plug-ins, a line each."""
    if what not in THINGS:
        raise unknown("thing to list", what, THINGS)
    if what == "workloads":
        _show(_workloads(), as_json, _print_workloads)
    elif what == "plugins":
        _show(_plugins(), as_json, _print_plugins)
    else:
        makers: dict[str, Callable[[], Sequence[Noted]]] = {
            "settings": _settings, "kernels": _kernels, "suites": _suites, "studies": _studies,
        }  # fmt: skip
        _show(makers[what](), as_json, _print_noted)


Listed = TypeVar("Listed")


def _show(entries: Sequence[Listed], as_json: bool, show: Callable[[Sequence[Listed]], None]) -> None:
    if as_json:
        print(json.dumps(encode(entries), indent=1))
    else:
        show(entries)


def _workloads() -> list[WorkloadEntry]:
    from prony_node.contract import plugins
    from prony_node.workloads import LIBRARIES, PUBLISHED, WORKLOADS, find_workload

    of_libraries = [make("NAME") for make in LIBRARIES.values()]
    packages = plugins.of_group(plugins.WORKLOADS, WORKLOADS)
    of_plugins = []
    for name in packages:
        try:
            of_plugins.append(find_workload(name))
        except RequestError as error:  # one that is broken must not hide the others
            print(f"prony: {error}", file=sys.stderr)
    return [
        WorkloadEntry(
            name=workload.name,
            help=workload.help,
            unit=workload.unit,
            parameters=workload.parameters,
            flops=workload.flops,
            flops_source=workload.flops_source or None,
            sizes=["full", "tiny"] if workload.tiny is not None else ["full"],
            needs=workload.library or None,
            source=workload.source,
            published=PUBLISHED[workload.name].named if workload.name in PUBLISHED else None,
            package=packages[workload.name].origin if workload.name in packages else None,
        )
        for workload in (*WORKLOADS.values(), *of_libraries, *of_plugins)
    ]


def _settings() -> list[SettingEntry]:
    from prony_node.contract.settings import SETTINGS, Setting
    from prony_node.workloads import WORKLOADS

    owners: dict[Setting, list[str]] = {}
    for workload in WORKLOADS.values():
        for own in workload.own_settings():
            owners.setdefault(own, []).append(workload.name)
    every = [*SETTINGS.values(), *owners]
    return [
        SettingEntry(one.name, one.help, one.kind, one.values(), list(one.words()), owners.get(one)) for one in every
    ]


def _kernels() -> list[KernelEntry]:
    from prony_node.workloads import WORKLOADS

    found: dict[str, KernelEntry] = {}
    for workload in WORKLOADS.values():
        for kernel in workload.kernels:
            known = found.setdefault(kernel.name, KernelEntry(kernel.name, kernel.help, kernel.mode or None, []))
            found[kernel.name] = replace(known, workloads=[*known.workloads, workload.name])
    return list(found.values())


def _suites() -> list[SuiteEntry]:
    from prony.study.study import load_suites

    return [
        SuiteEntry(
            suite.name,
            suite.help,
            [
                SuiteTrialEntry(entry.trial.hash, entry.trial.workload, entry.trial.settings, entry.on)
                for entry in suite.trials
            ],
        )
        for suite in load_suites().values()
    ]


def _studies() -> list[StudyEntry]:
    from prony.study.study_file import load_study, shipped_studies
    from prony_node.workloads import find_workload

    studies = [load_study(name, None, (), find_workload) for name in shipped_studies()]
    return [
        StudyEntry(
            study.name,
            study.question,
            study.source,
            list(study.sizes),
            [TrialEntry(one.trial.hash, one.trial.workload, one.trial.settings) for one in study.planned()],
        )
        for study in studies
    ]


def _plugins() -> list[PluginEntry]:
    """What other packages add in this Python, and why it cannot be used."""
    from prony_node.contract import plugins

    found = []
    for one in plugins.installed():
        refused = None
        try:
            one.load()
        except RequestError as error:
            refused = str(error)
        found.append(PluginEntry(one.name, plugins.GROUPS[one.group], one.package, one.version, one.value, refused))
    return found


def _print_plugins(entries: Sequence[PluginEntry]) -> None:
    for entry in entries:
        print(f"{entry.adds} {entry.name}: {entry.refused or entry.package + ' ' + entry.version}")
    if not entries:
        print("no package adds anything to Prony in this Python; docs/developers/plug-ins.md says how one does")


def _print_noted(entries: Sequence[Noted]) -> None:
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import make_console

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for entry in entries:
        table.add_row(Text(entry.name, "bold"), Text.assemble(entry.help, (f"  ({entry.note})", "dim")))
    make_console().print(table)


def _print_workloads(entries: Sequence[WorkloadEntry]) -> None:
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import make_console
    from prony.report.numbers import NOTHING, format_si

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, side in (("workload", "left"), ("unit", "left"), ("parameters", "right"), ("FLOP per sample", "right")):
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what it is, and its source", overflow="fold")
    for entry in entries:
        numbers = (format_si(number, "") if number else NOTHING for number in (entry.parameters, entry.flops))
        table.add_row(
            Text(entry.name, "bold"),
            entry.unit,
            *(Text(number) for number in numbers),
            Text.assemble(entry.help, "\n", (entry.sources, "dim")),
        )
    table.caption = "FLOP: of the forward pass, a multiply-add being two; --json says where each figure stands"
    table.caption_justify = "left"
    make_console().print(table)

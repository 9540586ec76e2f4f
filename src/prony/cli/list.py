"""`prony list`: what there is to measure, and with which settings; or one of them in detail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.settings import Value
from prony_node.contract.typed import encode

if TYPE_CHECKING:
    from prony_node.workloads.config import Workload

SINGULAR = {
    "workloads": "workload", "settings": "setting", "kernels": "kernel", "suites": "suite", "studies": "study",
    "plugins": "plug-in",
}  # fmt: skip
THINGS = tuple(SINGULAR)
KINDS = (("cpu", "a CPU"), ("accelerator", "an accelerator"))  # of a default batch size
RIGHT = ("parameters", "trials")
GAP = 2  # columns between two columns


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


@dataclass(frozen=True)
class SettingEntry:
    name: str
    help: str
    kind: str
    values: str
    choices: list[str]
    workloads: list[str] | None  # None: of every workload


@dataclass(frozen=True)
class KernelEntry:
    name: str
    help: str
    mode: str | None
    workloads: list[str]


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


@dataclass(frozen=True)
class StudyEntry:
    name: str
    help: str
    source: str
    sizes: list[str]
    trials: list[TrialEntry]


@dataclass(frozen=True)
class PluginEntry:
    name: str
    adds: str
    package: str
    version: str
    value: str
    refused: str | None  # why it cannot be used


Entry = WorkloadEntry | SettingEntry | KernelEntry | SuiteEntry | StudyEntry | PluginEntry
Lines = list[tuple[str, str]]  # labels and texts


def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(THINGS), help="What to list.")] = "workloads",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one in detail.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list, or the one named, as JSON.")] = False,
) -> None:
    """List workloads, settings, kernels, suites, studies or plug-ins, a line each; or show one of them."""
    if what not in THINGS:
        raise unknown("thing to list", what, THINGS)
    makers: dict[str, Callable[[], Sequence[Entry]]] = {
        "workloads": _workloads, "settings": _settings, "kernels": _kernels, "suites": _suites, "studies": _studies,
        "plugins": _plugins,
    }  # fmt: skip
    if name is not None:
        entry = _find(what, name, makers[what])
        print(json.dumps(encode(entry), indent=1)) if as_json else _print_entry(entry)
        return
    entries = makers[what]()
    if as_json:
        print(json.dumps(encode(entries), indent=1))
    elif what == "plugins":
        _print_plugins([entry for entry in entries if isinstance(entry, PluginEntry)])
    else:
        _print_table(what, entries)


def _find(what: str, name: str, make: Callable[[], Sequence[Entry]]) -> Entry:
    if what == "workloads":
        from prony_node.workloads import find_workload

        return _workload_entry(find_workload(name))  # any model of a library too: timm/NAME
    entries = {entry.name: entry for entry in make()}
    if name not in entries:
        raise unknown(SINGULAR[what], name, entries)
    return entries[name]


def _workloads() -> list[WorkloadEntry]:
    from prony_node.contract import plugins
    from prony_node.workloads import LIBRARIES, WORKLOADS, find_workload

    of_libraries = [make("NAME") for make in LIBRARIES.values()]
    of_plugins = []
    for name in plugins.of_group(plugins.WORKLOADS, WORKLOADS):
        try:
            of_plugins.append(find_workload(name))
        except RequestError as error:  # one that is broken must not hide the others
            print(f"prony: {error}", file=sys.stderr)
    return [_workload_entry(workload) for workload in (*WORKLOADS.values(), *of_libraries, *of_plugins)]


def _workload_entry(workload: Workload) -> WorkloadEntry:
    from prony_node.workloads import PUBLISHED, plugin_of

    plugin = plugin_of(workload.name)
    return WorkloadEntry(
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
        package=plugin.origin if plugin is not None else None,
    )


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


def _print_table(what: str, entries: Sequence[Entry]) -> None:
    """A line each. A narrow terminal cuts the last column, of which the detail has the rest."""
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import is_limited, make_console

    head, rows = _workload_rows(entries) if what == "workloads" else _help_rows(what, entries)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    console, before = make_console(), sum(widths[:-1]) + GAP * len(widths[:-1])
    if not is_limited(console):
        console.width = max(console.width, before + widths[-1])
    widths[-1] = min(widths[-1], console.width - before)
    table = Table.grid(padding=(0, GAP))
    for title, width in zip(head, widths, strict=True):
        table.add_column(justify="right" if title in RIGHT else "left", no_wrap=True, overflow="ellipsis", width=width)
    table.add_row(*(Text(title, "dim") for title in head))
    for name, *cells in rows:
        table.add_row(Text(name, "bold"), *map(Text, cells))
    console.print(table)
    console.print(Text(f"details: prony list {what} NAME", "dim"))


def _workload_rows(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    from prony.report.numbers import NOTHING
    from prony_node.workloads import find_workload

    rows = []
    for entry in entries:
        assert isinstance(entry, WorkloadEntry)
        rows.append([entry.name, find_workload(entry.name).task or NOTHING, _count(entry.parameters), entry.unit])
    return ["workload", "task", "parameters", "unit"], rows


def _help_rows(what: str, entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for entry in entries:
        assert not isinstance(entry, WorkloadEntry | PluginEntry)
        trials = [str(len(entry.trials))] if isinstance(entry, SuiteEntry | StudyEntry) else []
        rows.append([entry.name, *trials, entry.help])
    return [SINGULAR[what], *(["trials"] if what in ("suites", "studies") else []), "what it is"], rows


def _print_entry(entry: Entry) -> None:
    """What is known of one, a line a fact."""
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import make_console

    match entry:
        case WorkloadEntry():
            lines = _workload_lines(entry)
        case SettingEntry():
            lines = [("values", entry.values), ("of workloads", ", ".join(entry.workloads or ["all"]))]
        case KernelEntry():
            lines = [("mode", entry.mode or "train and infer"), ("of workloads", ", ".join(entry.workloads))]
        case SuiteEntry():
            lines = [("trials", _trials(entry.trials))]
        case StudyEntry():
            lines = [("source", entry.source), ("sizes", ", ".join(entry.sizes)), ("trials", _trials(entry.trials))]
        case PluginEntry():
            lines = [("package", f"{entry.package} {entry.version}"), ("object", entry.value)]
            lines += [("refused", entry.refused)] if entry.refused else []
    table = Table.grid(padding=(0, GAP))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines:
        table.add_row(Text(f"  {label}", "dim"), Text(text))
    console = make_console()
    said = entry.adds if isinstance(entry, PluginEntry) else entry.help
    console.print(Text.assemble((entry.name, "bold"), "  ", said))
    console.print(table)


def _workload_lines(entry: WorkloadEntry) -> Lines:
    from prony.analysis.summary import show_setting
    from prony.report.numbers import NOTHING, format_si
    from prony_node.workloads import find_workload

    workload = find_workload(entry.name)
    lines = [
        ("task", workload.task or NOTHING),
        ("unit", entry.unit),
        ("parameters", f"{entry.parameters:,}" if entry.parameters else NOTHING),
    ]
    if entry.flops:
        source = f"; {entry.flops_source}" if entry.flops_source else ""
        lines.append(("FLOP", f"{format_si(entry.flops, '')} per sample, forward, a multiply-add being two{source}"))
    for mode in workload.modes:
        sizes = [
            f"{workload.batch[key]} on {place}" for kind, place in KINDS if (key := f"{mode}/{kind}") in workload.batch
        ]
        lines.append((f"batch_size, {mode}", ", ".join(sizes)))
    lines += [("sizes", ", ".join(entry.sizes))]
    lines += [("needs", entry.needs)] if entry.needs else []
    lines += [("source", entry.source)]
    lines += [("published", f"{entry.published} (preset=published)")] if entry.published else []
    lines += [("package", entry.package)] if entry.package else []
    for number, setting in enumerate(workload.own_settings()):
        default = f"; default {show_setting(workload.fixed[setting.name])}" if setting.name in workload.fixed else ""
        lines.append(("" if number else "own settings", f"{setting.name}: {setting.help}{default}"))
    for number, kernel in enumerate(workload.kernels):
        lines.append(("" if number else "kernels", f"{kernel.name}: {kernel.help}"))
    return lines


def _trials(trials: Sequence[TrialEntry]) -> str:
    from prony_node.contract.trial import Trial

    return "\n".join(str(Trial(trial.workload, dict(trial.settings))) for trial in trials)


def _count(number: int | None) -> str:
    from prony.report.numbers import NOTHING, format_si

    return format_si(number, "") if number else NOTHING

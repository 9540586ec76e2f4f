"""`prony list`: what there is to measure, and with which settings."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from prony_node.contract.errors import RequestError, unknown

THINGS = ("workloads", "settings", "kernels", "suites", "studies", "plugins")


def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(THINGS), help="What to list.")] = "workloads",
    as_json: Annotated[bool, typer.Option("--json", help="Print the list alone, as JSON.")] = False,
) -> None:
    """List workloads, settings, kernels, suites, studies or plug-ins, a line each."""
    if what not in THINGS:
        raise unknown("thing to list", what, THINGS)
    makers = {
        "workloads": _workloads,
        "settings": _settings,
        "kernels": _kernels,
        "suites": _suites,
        "studies": _studies,
        "plugins": _plugins,
    }
    entries = makers[what]()
    if as_json:
        print(json.dumps(entries, indent=1))
    else:
        _print(what, entries)


def _workloads() -> list[dict[str, Any]]:
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
        {
            "name": workload.name,
            "help": workload.help,
            "unit": workload.unit,
            "parameters": workload.parameters,
            "flops": workload.flops,
            "flops_source": workload.flops_source or None,
            "sizes": ["full", "tiny"] if workload.tiny is not None else ["full"],
            "needs": workload.library or None,
            "source": workload.source,
            "published": PUBLISHED[workload.name].named if workload.name in PUBLISHED else None,
            "package": packages[workload.name].origin if workload.name in packages else None,  # null: Prony's own
        }
        for workload in (*WORKLOADS.values(), *of_libraries, *of_plugins)
    ]


def _settings() -> list[dict[str, Any]]:
    from prony_node.contract.settings import SETTINGS
    from prony_node.workloads import WORKLOADS

    owners: dict[Any, list[str]] = {}
    for workload in WORKLOADS.values():
        for own in workload.own_settings():
            owners.setdefault(own, []).append(workload.name)
    every = [*SETTINGS.values(), *owners]
    return [
        {
            "name": setting.name,
            "help": setting.help,
            "kind": setting.kind,
            "values": setting.values(),
            "choices": list(setting.words()),
            "workloads": owners.get(setting),  # null: of every workload
        }
        for setting in every
    ]


def _kernels() -> list[dict[str, Any]]:
    from prony_node.workloads import WORKLOADS

    entries: dict[str, dict[str, Any]] = {}
    for workload in WORKLOADS.values():
        for kernel in workload.kernels:
            entry: dict[str, Any] = {
                "name": kernel.name,
                "help": kernel.help,
                "mode": kernel.mode or None,
                "workloads": [],
            }
            entries.setdefault(kernel.name, entry)["workloads"].append(workload.name)
    return list(entries.values())


def _suites() -> list[dict[str, Any]]:
    from prony.study.study import load_suites

    return [
        {"name": suite.name, "help": suite.help, "trials": [_trial(entry) for entry in suite.trials]}
        for suite in load_suites().values()
    ]


def _studies() -> list[dict[str, Any]]:
    from prony.study.study_file import load_study, shipped_studies
    from prony_node.workloads import find_workload

    studies = [load_study(name, None, (), find_workload) for name in shipped_studies()]
    return [
        {
            "name": study.name,
            "help": study.question,
            "source": study.source,
            "sizes": list(study.sizes),
            "trials": [planned.trial.to_json() for planned in study.planned()],
        }
        for study in studies
    ]


def _plugins() -> list[dict[str, Any]]:
    """What other packages add in this Python, and why it cannot be used."""
    from prony_node.contract import plugins

    found = []
    for one in plugins.installed():
        refused = None
        try:
            one.load()
        except RequestError as error:
            refused = str(error)
        found.append(
            {
                "name": one.name,
                "adds": plugins.GROUPS[one.group],
                "package": one.package,
                "version": one.version,
                "value": one.value,
                "refused": refused,
            }
        )
    return found


def _trial(entry: Any) -> dict[str, Any]:
    trial = getattr(entry, "trial", entry)
    return {**trial.to_json(), "on": getattr(entry, "on", None)}


def _print(what: str, entries: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import make_console

    if what == "plugins":
        for entry in entries:
            print(f"{entry['adds']} {entry['name']}: {entry['refused'] or entry['package'] + ' ' + entry['version']}")
        if not entries:
            print("no package adds anything to Prony in this Python; docs/developers/plug-ins.md says how one does")
        return
    if what == "workloads":
        make_console().print(_workload_table(entries))
        return
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for entry in entries:
        if what == "settings":
            more = entry["values"] + (f"; of {', '.join(entry['workloads'])}" if entry["workloads"] else "")
        elif what == "kernels":
            modes = f"mode={entry['mode']}; " if entry["mode"] else ""
            more = f"{modes}of {', '.join(entry['workloads'])}"
        else:
            more = f"{len(entry['trials'])} trials"
        table.add_row(Text(entry["name"], "bold"), Text.assemble(entry["help"], (f"  ({more})", "dim")))
    make_console().print(table)


def _sources(entry: dict[str, Any]) -> str:
    ran = f"\npreset=published: {entry['published']}" if entry["published"] else ""
    return str(entry["source"]) + ran + (f"\nof the package {entry['package']}" if entry["package"] else "")


def _workload_table(entries: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    from prony.report.numbers import NOTHING, format_si

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, side in (("workload", "left"), ("unit", "left"), ("parameters", "right"), ("FLOP per sample", "right")):
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what it is, and its source", overflow="fold")
    for entry in entries:
        numbers = (format_si(entry[name], "") if entry[name] else NOTHING for name in ("parameters", "flops"))
        table.add_row(
            Text(entry["name"], "bold"),
            entry["unit"],
            *(Text(number) for number in numbers),
            Text.assemble(entry["help"], "\n", (_sources(entry), "dim")),
        )
    table.caption = "FLOP: of the forward pass, a multiply-add being two; --json says where each figure stands"
    table.caption_justify = "left"
    return table

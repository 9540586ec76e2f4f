"""Write the tables of docs/reference from the code, between `<!-- NAME -->` and `<!-- /NAME -->` of each page.

    python scripts/reference_pages.py [--docs docs]

What stands around the marks is written by hand. A test fails where a committed page is not what this writes.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import html
import inspect
import io
import json
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from page_tables import put_lines, table_lines
from record_schema import schema_text, write_schema

import prony
from prony import api
from prony.analysis.compare import Comparison
from prony.cli.main import VERBS, make_app
from prony.engine.runs import RunOutcome, StudyOutcome
from prony.engine.search import TuningOutcome
from prony_node.contract import errors, facts, record
from prony_node.contract.checks import CHECKS, GROUPS
from prony_node.contract.machine import Machine
from prony_node.contract.metrics import METRICS
from prony_node.contract.plugins import extra_of
from prony_node.contract.settings import SETTINGS, SEVERAL_ONLY, Setting, Value
from prony_node.contract.trial import DATA_SET_ONLY
from prony_node.workloads import WORKLOADS
from prony_node.workloads.config import PUBLISHED, Workload

DOCS = Path(__file__).parents[1] / "docs"
KINDS = ("cpu", "cuda", "xpu", "mps")
CORES = 4
# Defaults that no table of the code holds, since they follow from the machine, the data set or other settings.
DEFAULTS_IN_WORDS = {
    "data_samples": "20,000 images, 16,384 sequences or 2,975 street scenes to write, a tenth with `size=tiny`; "
    "all to use",
    "test_samples": "all",
    "data_format": "files",
    "decode": "cpu",
    "cache": "device for sets of small pictures, else off",
    "augment": "on for images",
    "workers": "one less than the cores, 1 to 8",
    "prefetch": "4",
    "cores": "all that are allowed",
    "device": "auto",
    "parallel": "ddp, or independent for `mode=infer`",
    "dp": "what the devices leave",
    "tp": "1",
    "pp": "1",
    "schedule": "1f1b",
    "reshard": "on",
    "batch_norm": "local",
    "learning_rate": "by workload",
}
WHERE = {"any": "everywhere", "cuda": "on CUDA", "cuda-training": "in training on CUDA"}
BETTER = {"more": "higher", "less": "lower", "neither": "-"}
PLAIN = {"string", "integer", "number", "boolean"}
Lines = Iterable[str]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=DOCS)
    folder = parser.parse_args(arguments).docs / "reference"
    write_schema(folder / "record.schema.json")
    for page, parts in PAGES.items():
        for name, make in parts.items():
            put_lines(folder / page, name, tight(make()))
    return 0


def tight(lines: Lines) -> Iterator[str]:
    """One empty line at most between two others."""
    before = None
    for line in lines:
        if line or before != "":
            yield line
        before = line


def table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """A table between empty lines, as Markdown wants it beside comments and text."""
    return ["", *table_lines(head, [[without_bars(cell) for cell in row] for row in rows]), ""]


def without_bars(cell: str) -> str:
    """A cell's bars as entities: what `\\|` in a code span means is not the same everywhere."""
    spans = re.sub(r"`([^`]*\|[^`]*)`", lambda match: f"<code>{html.escape(match[1], quote=False)}</code>", cell)
    return spans.replace("|", "&#124;")


def code(text: object) -> str:
    return f"`{text}`" if text not in ("", None) else ""


# Settings


def values_of(setting: Setting) -> str:
    return setting.values().replace(" | ", ", ")


def machine(kind: str) -> Machine:
    return Machine(kind, None, CORES)


def defaults_by_kind(workload: Workload) -> dict[str, dict[str, Value]]:
    return {kind: workload.defaults({}, machine(kind)) for kind in KINDS}


def is_own(workload: Workload, name: str) -> bool:
    """A default that a workload states for itself, which is in the table of workloads."""
    return name in {**workload.fixed, **workload.fixed_when_few, **workload.fixed_on_cpu}


def default_of(name: str, every: Mapping[str, Mapping[str, Mapping[str, Value]]]) -> str:
    """The default of a setting in a word: its value, or what it follows from."""
    if name in DEFAULTS_IN_WORDS:
        return DEFAULTS_IN_WORDS[name]
    if name in DATA_SET_ONLY or name in SEVERAL_ONLY:
        return several_default(name)
    usual = [work for work in WORKLOADS.values() if not work.operation and not is_own(work, name)]
    by_kind = [{every[work.name][kind].get(name) for work in usual} for kind in KINDS]
    if any(len(values) > 1 for values in by_kind):
        return "by workload"
    shown = [SETTINGS[name].show(values.pop()) for values in by_kind]
    if len(set(shown)) > 1:
        return "by device"
    return "none" if shown[0] == "-" else shown[0]


def several_default(name: str) -> str:
    """Of a setting that one device, or a run without a data set, does not have."""
    requested: dict[str, Value] = {"devices": 2, "mode": "train"}
    value = WORKLOADS["resnet50"].defaults(requested, machine("cuda")).get(name)
    return "none" if value is None else SETTINGS[name].show(value)


def settings_table() -> Lines:
    every = {workload.name: defaults_by_kind(workload) for workload in WORKLOADS.values()}
    rows = [[code(name), values_of(one), default_of(name, every), one.help] for name, one in SETTINGS.items()]
    return table(["setting", "values", "default", "meaning"], rows)


def own_settings_table() -> Lines:
    owners: dict[str, list[str]] = {}
    known = {}
    for workload in WORKLOADS.values():
        for setting in workload.own_settings():
            owners.setdefault(setting.name, []).append(workload.name)
            known[setting.name] = setting
    rows = [[code(name), ", ".join(owners[name]), values_of(one), one.help] for name, one in known.items()]
    return table(["setting", "workloads", "values", "meaning"], rows)


def device_defaults_table() -> Lines:
    every = {workload.name: defaults_by_kind(workload) for workload in WORKLOADS.values()}
    usual = next(work for work in WORKLOADS.values() if not work.operation)
    rows = [
        [code(name), *(SETTINGS[name].show(every[usual.name][kind].get(name)) for kind in KINDS)]
        for name in SETTINGS
        if default_of(name, every) == "by device"
    ]
    return table(["setting", *KINDS], rows)


def plain_table() -> Lines:
    workload = WORKLOADS["resnet50"]
    fast, plain = (workload.defaults(given, machine("cuda")) for given in ({}, {"preset": "plain"}))
    of_fast = {"kernels": "default", "workers": DEFAULTS_IN_WORDS["workers"]}
    rows = [
        [code(name), of_fast.get(name, SETTINGS[name].show(fast[name])), SETTINGS[name].show(plain[name])]
        for name in fast
        if name in SETTINGS and name != "preset" and plain[name] != fast[name]
    ]
    return table(["setting", "preset=fast, resnet50 on CUDA", "preset=plain"], rows)


def words_of(settings: Mapping[str, Value]) -> str:
    shown = {True: "on", False: "off"}
    return ", ".join(f"{name}={shown[value] if isinstance(value, bool) else value}" for name, value in settings.items())


def published_table() -> Lines:
    rows = [
        [code(name), study.named, study.data, words_of(study.stated), words_of(study.assumed)]
        for name, study in PUBLISHED.items()
    ]
    return table(["workload", "study", "data set", "stated", "assumed"], rows)


# Workloads and kernels


def workloads_table() -> Lines:
    rows = []
    for workload in WORKLOADS.values():
        library = workload.library or "torch"
        count = "-" if workload.parameters is None or workload.operation else f"{workload.parameters:,}"
        if workload.collective is not None:
            count = "-"
        extra = extra_of(library, workload.module) or ""
        rows.append([code(workload.name), workload.help, workload.unit, count, code(extra)])
    return table(["workload", "what it is", "unit", "parameters", "extra"], rows)


def workload_defaults_table() -> Lines:
    rows = []
    for workload in WORKLOADS.values():
        batches = [
            ", ".join(str(workload.batch[f"{mode}/{kind}"]) for mode in workload.modes)
            for kind in ("cpu", "accelerator")
        ]
        own = words_of(workload.fixed)
        if workload.fixed_on_cpu:
            own += f" (on a CPU {words_of(workload.fixed_on_cpu)})"
        if workload.fixed_when_few:
            own += f" (for up to {workload.few} on one CUDA device {words_of(workload.fixed_when_few)})"
        optimizer = workload.optimizer if "train" in workload.modes else "none"
        rows.append([code(workload.name), *batches, optimizer, workload.memory_format, own])
    head = ["workload", "batch size on a CPU (train, infer)", "on an accelerator", "optimizer", "memory format",
            "its own defaults"]  # fmt: skip
    return table(head, rows)


def kernels_table() -> Lines:
    owners: dict[str, list[str]] = {}
    defaults: dict[str, list[str]] = {}
    known = {}
    for workload in WORKLOADS.values():
        few = f"for up to {workload.few} samples on one CUDA device"
        for kernel in workload.kernels:
            known[kernel.name] = kernel
            owners.setdefault(kernel.name, []).append(workload.name)
            found = [f"{workload.name} {WHERE.get(kernel.default, few)}"] if kernel.default else []
            defaults.setdefault(kernel.name, []).extend(found)
    rows = [
        [code(name), ", ".join(owners[name]), one.mode or "both", ", ".join(defaults[name]) or "none", one.help]
        for name, one in known.items()
    ]
    return table(["kernel", "workloads", "mode", "default", "what it is"], rows)


# Metrics, checks, exit codes


def metrics_table() -> Lines:
    units = {"{unit}": "work", "{one}": "sample", "{score}": "score"}
    rows = []
    for metric in METRICS.values():
        unit = metric.unit
        for place, word in units.items():
            unit = unit.replace(place, word)
        rows.append([code(metric.name), "" if unit == "1" else unit, BETTER[metric.better], metric.help])
    return table(["metric", "unit", "better", "meaning"], rows)


def checks_tables() -> Iterator[str]:
    for group, title in GROUPS.items():
        rows = []
        for check in (one for one in CHECKS.values() if one.group == group):
            worse = "; ".join(f"**{level}**: {text}" for level, text in check.levels() if level != "pass")
            rows.append([code(check.name), check.asks, check.only or "all", check.passes, worse])
        yield from ["", f"## {title}"]
        yield from table(["check", "asks", "runs", "pass", "otherwise"], rows)


def exits_table() -> Lines:
    return table(["code", "meaning"], [[code(number), text] for number, text in errors.EXIT_MEANINGS.items()])


# The command line


def commands() -> Iterator[tuple[str, Any]]:
    """Each verb, and each verb of a verb, with its words."""
    for verb in VERBS:
        command = typer.main.get_command(make_app(verb)).commands[verb]  # type: ignore[attr-defined]
        yield verb, command
        for name, inner in getattr(command, "commands", {}).items():
            yield f"{verb} {name}", inner


def cli_lines() -> Iterator[str]:
    for words, command in commands():
        context = command.make_context(f"prony {words}", [], resilient_parsing=True)
        yield from ["", f"{'###' if ' ' in words else '##'} prony {words}", ""]
        yield from cleaned(command.help or "")
        yield from ["", "```text", f"prony {words} {' '.join(command.collect_usage_pieces(context))}", "```"]
        rows = [parameter_row(*known) for one in command.params if (known := one.get_help_record(context))]
        if rows:
            yield from table(["argument or option", "default", "meaning"], rows)


def parameter_row(names: str, text: str) -> list[str]:
    """What stands behind the names and the meaning in the help: their default, or that they are required."""
    meaning, default = " ".join(text.split()), ""
    if match := re.search(r"\s*\[(?:default: (.+)|(required))\]$", meaning):
        meaning = meaning[: match.start()]
        default = code(match[1]) if match[1] else "required"
    if not names.startswith("-"):
        names = re.sub(r" <\S+>$", "", names)
    return [code(names), default, meaning]


def cleaned(text: str) -> list[str]:
    """A help text, whose \\b marks what must not be wrapped."""
    return [line.rstrip() for line in inspect.cleandoc(text).replace("\b\n", "").splitlines()]


# The Python API


def api_lines() -> Iterator[str]:
    functions = [getattr(api, name) for name in prony.__all__ if inspect.isfunction(getattr(api, name, None))]
    yield from ["", "## Functions"]
    for function in functions:
        yield from ["", f"### prony.{function.__name__}", "", "```text", *signature_lines(function), "```", ""]
        yield from documented(function)
    yield from ["", "## Types"]
    for kind in (api.SiteOptions, StudyOutcome, RunOutcome, api.ScaleOutcome, TuningOutcome, Comparison, record.Record,
                 record.Metric, record.Check):  # fmt: skip
        yield from ["", f"### {kind.__name__}", "", *documented(kind)]
        yield from table(["attribute", "type", "meaning"], attributes(kind))


def documented(thing: Any) -> list[str]:
    return inspect.cleandoc(thing.__doc__ or "").splitlines()


def signature_lines(function: Callable[..., Any]) -> list[str]:
    """As in the source, one parameter per line."""
    source = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    lines = [f"prony.{node.name}("]
    plain = len(arguments.args) - len(arguments.defaults)
    for number, one in enumerate(arguments.args):
        default = ast.unparse(arguments.defaults[number - plain]) if number >= plain else None
        lines.append(f"    {parameter_text(one, default)},")
    if arguments.vararg:
        lines.append(f"    *{parameter_text(arguments.vararg)},")
    elif arguments.kwonlyargs:
        lines.append("    *,")
    for one, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        default = None if given is None else {"AT_SITE": "SiteOptions()"}.get(ast.unparse(given), ast.unparse(given))
        lines.append(f"    {parameter_text(one, default)},")
    if arguments.kwarg:
        lines.append(f"    **{parameter_text(arguments.kwarg)},")
    return [*lines, f") -> {ast.unparse(node.returns) if node.returns else 'None'}"]


def parameter_text(one: ast.arg, default: str | None = None) -> str:
    hint = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    return f"{one.arg}{hint}" + (f" = {default}" if default is not None else "")


def attributes(kind: type[Any]) -> Iterator[list[str]]:
    """The fields of a dataclass with their comments, then its properties and methods with their docstrings."""
    comments = field_comments(kind)
    for field in dataclasses.fields(kind):
        if field.name != "more" and not field.name.startswith("_"):
            yield [code(field.name), code(field.type), comments.get(field.name, "")]
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None) or member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        called = f"{name}()" if function is member else name
        yield [code(called), code(function.__annotations__.get("return", "")), (function.__doc__ or "").split("\n")[0]]


def field_comments(kind: type[Any]) -> dict[str, str]:
    """The comment that stands behind each field in the source."""
    found, name = {}, ""
    tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent(inspect.getsource(kind))).readline)
    for token in tokens:
        match = re.match(r"    (\w+):", token.line)
        name = match[1] if match else ""
        if token.type == tokenize.COMMENT and name and not re.match(r"# (fmt|noqa|type):", token.string):
            found[name] = token.string.lstrip("# ")
    return found


# The record


def record_lines() -> Iterator[str]:
    schema = json.loads(schema_text())
    kinds = schema["$defs"]
    order = ["Record"]
    for name in order:  # grows while it is read: each type behind the first that holds it
        order += [one for one in references(kinds[name]) if one not in order]
    for name in order:
        comments = field_comments(getattr(record, name, None) or getattr(facts, name))
        required = kinds[name].get("required", [])
        rows = [
            [code(key), type_text(one), "yes" if key in required else "", comments.get(key, "")]
            for key, one in kinds[name]["properties"].items()
        ]
        yield from ["", f"## {name}", "", kinds[name]["description"]]
        yield from table(["key", "type", "always there", "meaning"], rows)


def references(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        if "$ref" in document:
            yield document["$ref"].rpartition("/")[2]
        for one in document.values():
            yield from references(one)
    elif isinstance(document, list):
        for one in document:
            yield from references(one)


def type_text(document: Mapping[str, Any]) -> str:
    """A type of the schema in words."""
    if "$ref" in document:
        name = document["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in document:
        return ", ".join(code(word) for word in document["enum"])
    if "anyOf" in document:
        ways = [type_text(one) for one in document["anyOf"]]
        if set(ways) >= PLAIN:  # the value of a setting
            return "single value"
        return " or ".join(ways)
    if document.get("type") == "array":
        return f"list of {type_text(document['items'])}"
    if document.get("type") == "object":
        inner = document.get("additionalProperties")
        return f"object of {type_text(inner)}" if inner else "object"
    return document.get("type", "anything")


PAGES: dict[str, dict[str, Callable[[], Lines]]] = {
    "settings.md": {"settings": settings_table, "own-settings": own_settings_table, "by-device": device_defaults_table},
    "presets.md": {"plain": plain_table, "published": published_table},
    "workloads.md": {"workloads": workloads_table, "defaults": workload_defaults_table},
    "kernels.md": {"kernels": kernels_table},
    "metrics.md": {"metrics": metrics_table},
    "checks.md": {"checks": checks_tables},
    "exit-codes.md": {"exit-codes": exits_table},
    "cli.md": {"cli": cli_lines},
    "python-api.md": {"api": api_lines},
    "record.md": {"record": record_lines},
}

if __name__ == "__main__":
    sys.exit(main())

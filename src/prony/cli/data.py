"""`prony data`: a data set on disk shown, generated or verified. A node process does it, so that torch stays there."""

# ruff: noqa: RUF009  empty() makes dataclass fields

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from prony.sites.node import NodeTalk, talk
from prony_node.contract.cache import expand
from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, RequestError
from prony_node.contract.typed import JsonObject, decode, empty

ASKED_FROM_BYTES = 1e9  # of which more is not written on a terminal without asking

data = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@dataclass(frozen=True)
class SplitShown:
    """A split of a data set, or why it is refused."""

    refused: str | None = None
    samples: int = 0
    classes: int | None = None
    vocabulary: int | None = None
    sequence: int | None = None
    files: int = 0
    bytes: float = 0
    bytes_are_exact: bool = True
    fingerprint: str = ""
    more: JsonObject = empty()


@dataclass(frozen=True)
class GeneratedAs:
    """What the manifest of a generated data set says."""

    kind: str | None = None
    form: str | None = None
    seed: int | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class DataSetShown:
    path: str
    kind: str
    splits: Mapping[str, SplitShown]
    generated: GeneratedAs | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class DataSetEstimate:
    """What will be written; what is there already is not written again."""

    folder: str
    kind: str
    form: str
    samples: int  # to train
    every: int  # those to test with them
    there: int
    processes: int
    left_bytes: float
    left_s: float | None = None
    more: JsonObject = empty()


@dataclass(frozen=True)
class DataSetMade:
    folder: str
    was_made: bool
    files: int
    bytes: float
    more: JsonObject = empty()


@dataclass(frozen=True)
class DataSetVerified:
    path: str
    files: int
    bytes: float
    more: JsonObject = empty()


@data.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a data set, or a text file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print only the document, as JSON.")] = False,
) -> None:
    """Describe the data set in a folder.

    Its kind, and samples, classes, bytes and fingerprint of each split.
    """
    with _node("show", _absolute(path)) as node:
        document = _answer(node)
    found = decode(DataSetShown, document)
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        print_data_set(found)
    for split in found.splits.values():
        if split.refused is not None:
            raise RequestError(split.refused)


@data.command()
def generate(
    kind: Annotated[
        str, typer.Argument(metavar="imagenet|food101|tokens|coco|cityscapes", help="Data set to imitate.")
    ],
    samples: Annotated[int | None, typer.Option(metavar="N", help="Training samples; test samples are added.")] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="files|shards", help="One file per image, or tar files of many images.")
    ] = "files",
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of the samples.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write (default: in $PRONY_DATA or ~/.cache/prony/data)."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before writing a large data set.")] = False,
) -> None:
    """Write a data set that is like a real one.

    It has the same shape, size and encoding. What was begun is resumed.
    """
    words = [f"--format={form}", f"--seed={seed}"]
    words += [] if samples is None else [f"--samples={samples}"]
    words += [] if out is None else [f"--out={_absolute(out)}"]

    def agree(node: NodeTalk, estimate: DataSetEstimate) -> None:
        for line in estimate_lines(estimate):
            _note(line)
        asks = not yes and estimate.left_bytes > ASKED_FROM_BYTES and _on_terminal()
        if asks and not _confirmed():
            _note("nothing was written")
            raise typer.Exit(EXIT_INTERRUPTED)
        node.agree()

    with _node("generate", *words, "--", kind) as node:
        try:
            made = decode(DataSetMade, _answer(node, f"generating {kind}", "samples", agree))
        except KeyboardInterrupt:
            _note("interrupted; what is finished is kept, and the same command goes on with it")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    already = "" if made.was_made else " was there already:"
    print(f"{made.folder}{already} {made.files:,} files, {_size(made.bytes)}")
    print(f"to use it: data={made.folder}")


@data.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a generated data set.")],
) -> None:
    """Compare every file of a generated data set with its checksum."""
    with _node("verify", _absolute(path)) as node:
        found = decode(DataSetVerified, _answer(node, "verifying", "B"))
    print(f"{found.path} is as it was made: {found.files:,} files, {_size(found.bytes)}")


def estimate_lines(estimate: DataSetEstimate) -> list[str]:
    """What will be written, how large it is, how long it takes and where it goes, before it is."""
    from prony.engine.progress import roughly

    held_out = estimate.every - estimate.samples
    what = f"{estimate.samples:,} samples of {estimate.kind} to train and {held_out:,} to test"
    there = f"; {estimate.there:,} of {estimate.every:,} are there" if estimate.there else ""
    left_s, many = estimate.left_s, estimate.processes
    took = "a time that could not be estimated" if left_s is None else f"about {roughly(left_s)}"
    by = f"{many} processes" if many > 1 else "one process"
    return [
        f"{what}, as {estimate.form}{there}",
        f"{_size(estimate.left_bytes)} to write, {took} with {by}, into {estimate.folder}",
    ]


def print_data_set(found: DataSetShown) -> None:
    """What lies in a folder, for a person."""
    from rich.table import Table
    from rich.text import Text

    from prony.cli.console import make_console

    console = make_console()
    made = found.generated
    about = f", generated: {made.kind}, {made.form}, seed {made.seed}" if made else ""
    console.print(f"{found.path}\n  {found.kind}{about}", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("split", "samples", "classes", "files", "size", "fingerprint"):
        table.add_column(name, justify="left" if name in ("split", "fingerprint") else "right", no_wrap=True)
    for name, split in found.splits.items():
        cells = _cells(split) if split.refused is None else ["–"] * 5
        table.add_row(*(Text(cell) for cell in (name, *cells)))
    console.print(table)
    splits = found.splits.values()
    for label, numbers in (
        ("vocabulary", [split.vocabulary for split in splits]),
        ("sequence", [split.sequence for split in splits]),
    ):
        values = sorted({number for number in numbers if number})
        if values:
            console.print(f"{label} {', '.join(f'{value:,}' for value in values)}")


def _cells(split: SplitShown) -> list[str]:
    classes = f"{split.classes:,}" if split.classes else "–"
    about = "" if split.bytes_are_exact else "about "
    return [f"{split.samples:,}", classes, f"{split.files:,}", about + _size(split.bytes), split.fingerprint]


@contextmanager
def _node(*words: str) -> Iterator[NodeTalk]:
    with talk("data", "--attended", *words) as it:
        yield it


def _answer(
    node: NodeTalk,
    title: str = "",
    unit: str = "",
    agree: Callable[[NodeTalk, DataSetEstimate], None] = lambda node, estimate: node.agree(),
) -> JsonObject:
    """The node's answer, with a bar while it works; its refusal, its failure and its silence end the verb."""
    from prony.cli.console import make_console
    from prony.cli.progress import Bar, make_bar

    bar: Bar | None = None
    try:
        for what, content in node.lines():
            if what == "answer":
                answer: JsonObject = content
                return answer
            if what == "refused":
                raise RequestError(content)
            if what == "failed":
                _fail(f"it could not go on: {content}")
            if what == "damaged":
                print("\n".join(content["files"]))
                _fail(content["sentence"])
            if what == "estimate":
                estimate = decode(DataSetEstimate, content)
                agree(node, estimate)
                content = (estimate.there, estimate.every)
            bar = bar or make_bar(make_console(stderr=True), title, unit)
            bar.update(*content)
    finally:
        if bar is not None:
            bar.end()
    return _fail(f"the node process ended without an answer: {node.last_words()}")


def _fail(sentence: str) -> Any:
    _note(sentence)
    raise typer.Exit(EXIT_FAILED)


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _confirmed() -> bool:
    try:
        return typer.confirm("write it?", err=True)
    except typer.Abort:  # Ctrl-C, or the end of input
        print(file=sys.stderr)
        return False


def _note(sentence: str) -> None:
    print(f"prony: {sentence}", file=sys.stderr)


def _absolute(path: Path) -> str:
    return str(expand(path).absolute())


def _size(size_bytes: float) -> str:
    from prony.report.numbers import format_si

    return format_si(size_bytes, "B")

"""The front door: which verbs there are. A verb's file is imported when that verb is used, and not before."""

from __future__ import annotations

import errno
import functools
import importlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from prony import __version__
from prony.cli.clean import clean_output
from prony_node.contract.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REQUEST,
    ParameterError,
    RequestError,
    Unfinished,
    nearest,
)


@dataclass(frozen=True)
class Verb:
    """A verb's function and the line that stands for it in `prony --help`."""

    module: str
    function: str
    help: str
    wraps: bool = False  # a command follows: from its first word on nothing is an option of ours


VERBS = {
    "run": Verb("prony.cli.run", "run", "Measure a workload, or every trial of a suite, on this machine."),
    "sweep": Verb("prony.cli.sweep", "sweep", "Measure a grid of settings; what is finished is skipped."),
    "scale": Verb("prony.cli.scale", "scale", "Measure a workload on 1, 2, 4 devices: what is gained and lost."),
    "tune": Verb("prony.cli.tune", "tune", "Find the best settings for a goal with few and short runs."),
    "study": Verb("prony.cli.study", "study", "Plan, run or resume a study: a question as a set of trials."),
    "list": Verb("prony.cli.list", "list_", "List workloads, settings, kernels, suites, studies or plugins."),
    "show": Verb("prony.cli.show", "show", "Show the record of a run, with its phases and checks."),
    "runs": Verb("prony.cli.runs", "runs", "List the runs here, newest first."),
    "query": Verb("prony.cli.query", "query", "Ask the store: filter, sort and choose columns of records."),
    "store": Verb("prony.cli.store", "store", "Move or share runs, take in others' results, rebuild the index."),
    "verify": Verb("prony.cli.verify", "verify", "Check records against their manifests, files and schema."),
    "compare": Verb("prony.cli.compare", "compare", "Say what differs between two runs, and which is faster."),
    "report": Verb("prony.cli.report", "report", "Write runs as one self-contained HTML file."),
    "figures": Verb("prony.cli.figures", "figures", "Draw the plots of a publication, with ours in front."),
    "data": Verb("prony.cli.data", "data", "Show, generate or verify a data set on disk."),
    "power": Verb("prony.cli.power", "power", "Measure the energy of any command, or show live power.", wraps=True),
    "site": Verb("prony.cli.site", "site", "List, show, add or check the places where runs are started."),
    "jobs": Verb("prony.cli.jobs", "jobs", "List the jobs submitted from here, brought up to date."),
    "logs": Verb("prony.cli.logs", "logs", "Print what a run and its job said, with -f until they end."),
    "cancel": Verb("prony.cli.cancel", "cancel", "End a job, by its name or by a run of it."),
    "collect": Verb("prony.cli.collect", "collect", "Record and index what jobs have ended, however long ago."),
    "screen": Verb("prony.cli.screen", "screen", "Measure every node of a partition; name those out of family."),
    "container": Verb("prony.cli.container", "container", "Build and check the images that sites use."),
    "doctor": Verb("prony.cli.doctor", "doctor", "Describe this machine as Prony sees it."),
}

EXAMPLES = (
    ("prony run resnet50", "Measure a workload on this machine."),
    ("prony sweep gpt-117m batch_size=1..64", "Measure a range of settings."),
    ("prony show latest", "Show the newest result and its checks."),
    ("prony compare RUN_A RUN_B", "Say which of two runs is faster."),
    ("prony list workloads", "List what can be measured."),
)


def main() -> None:
    """The entry point of `prony`; it exits with 0, 1, 2 or 130."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without a dash is no reason to fail after hours
    clean_output()
    words = sys.argv[1:]
    if not words:
        print_examples()
        sys.exit(EXIT_OK)
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is not None and verb not in VERBS:
        guess = nearest(verb, VERBS)
        hint = f"; did you mean {guess!r}?" if guess else f"; known: {', '.join(VERBS)}"
        refuse(f"unknown command {verb!r}{hint}")
    try:
        make_app(verb)(args=words, prog_name="prony")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def print_examples() -> None:
    """What to type first; `prony --help` has the rest."""
    width = max(len(command) for command, _ in EXAMPLES)
    print("Measure AI workloads on this machine, so that the number can be defended.\n")
    for command, what in EXAMPLES:
        print(f"  {command:<{width}}  {what}")
    print("\nAll commands: prony --help. Options of one: prony run --help.")


def make_app(chosen: str | None) -> typer.Typer:
    """The application, with the chosen verb's own function and a line for each of the others."""
    app = typer.Typer(
        help="Measure AI workloads on this machine, so that the number can be defended.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help, in a third of the time
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, verb in VERBS.items():
        if name == chosen:
            _add(app, name, verb)
        else:
            app.command(name, help=verb.help)(_not_loaded)
    return app


def _add(app: typer.Typer, name: str, verb: Verb) -> None:
    """The verb's own function, or the application of a verb with verbs of its own."""
    loaded = _load(verb)
    if not isinstance(loaded, typer.Typer):
        app.command(name, context_settings={"allow_interspersed_args": not verb.wraps})(guarded(_expanded(loaded)))
        return
    for command in loaded.registered_commands:
        assert command.callback is not None
        command.callback = guarded(_expanded(command.callback))
    app.add_typer(loaded, name=name, help=verb.help)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A verb whose user's mistakes end as one sentence on stderr, without a traceback."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except ParameterError as error:
            refuse(error.said_of_option)
        except RequestError as error:
            refuse(str(error), EXIT_FAILED if isinstance(error, Unfinished) else EXIT_REQUEST)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read the output has gone, as `head` does
                raise
            refuse(_said(error), EXIT_FAILED)
        except KeyboardInterrupt:
            print("prony: interrupted", file=sys.stderr)
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return call


def refuse(sentence: str, code: int = EXIT_REQUEST) -> None:
    print(f"prony: {sentence}", file=sys.stderr)
    sys.exit(code)


def _said(error: OSError) -> str:
    """What the system would not do that nobody had reckoned with: of what, where it says so, or of the output."""
    where = f"{error.filename}: " if error.filename is not None else ""
    if error.errno == errno.ENOSPC and not where:
        where = "the output could not be written: "
    return f"{where}{error.strerror or error}"


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    from prony.cli.options import with_groups  # not for --help alone

    return with_groups(function)


def _load(verb: Verb) -> Callable[..., Any] | typer.Typer:
    loaded: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(verb.module), verb.function)
    return loaded


def _not_loaded() -> None:
    raise AssertionError("only the chosen verb is called")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"prony {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure AI workloads on this machine, so that the number can be defended."""


if __name__ == "__main__":
    main()

"""Groups of options: one parameter for the verb, an option per field for a person."""

from __future__ import annotations

import importlib
import inspect
import typing
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from prony.cli.main import VERBS
from prony.cli.options import JobOptions, with_groups
from prony_node.contract.errors import RequestError

MOST_OPTIONS = 12


@dataclass(frozen=True)
class Colours:
    """Two options."""

    front: Annotated[str, typer.Option(help="In front.")] = "red"
    is_dark: Annotated[bool, typer.Option("--dark", help="Darker.")] = False


def paint(what: str, times: int = 1, colours: Colours = Colours(), last: int = 0) -> None:  # noqa: B008
    print(what, times, colours.front, colours.is_dark, last)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "red False 0"),
        (["--dark", "--last", "3"], "red True 3"),
        (["--front", "blue", "--dark"], "blue True 0"),
    ],
)
def test_the_fields_of_a_group_are_options_in_its_place(words: list[str], said: str) -> None:
    app = typer.Typer()
    app.command()(with_groups(paint))
    assert CliRunner().invoke(app, ["wall", "--times", "2", *words]).stdout == f"wall 2 {said}\n"
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert shown.index("--times") < shown.index("--front") < shown.index("--dark") < shown.index("--last")


def test_from_python_a_group_is_given_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with_groups(paint)("wall", colours=Colours("green"))
    with_groups(paint)("wall")
    assert capsys.readouterr().out == "wall 1 green False 0\nwall 1 red False 0\n"


def test_a_function_without_groups_is_left_alone() -> None:
    def plain(what: str) -> None: ...

    assert with_groups(plain) is plain


def test_the_time_limit_of_jobs_is_parsed() -> None:
    assert JobOptions(job_time="2h", block=3).parse().time_s == 7200.0
    with pytest.raises(RequestError, match="time soon is not possible"):
        JobOptions(job_time="soon").parse()


def functions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, verb in VERBS.items():
        loaded = getattr(importlib.import_module(verb.module), verb.function)
        if isinstance(loaded, typer.Typer):
            commands = loaded.registered_commands
            # An app that was made of them in this process has wrapped them.
            own = [inspect.unwrap(one.callback) for one in commands if one.callback]
            found |= {f"{name} {one.__name__}": one for one in own}
        else:
            found[name] = loaded
    return found


def test_no_verb_has_more_than_twelve_options_of_its_own() -> None:
    counts = {}
    for name, function in functions().items():
        hints = typing.get_type_hints(function, include_extras=True)
        own = [hints[parameter] for parameter in inspect.signature(function).parameters]
        infos = [one for hint in own for one in getattr(hint, "__metadata__", ()) if isinstance(one, OptionInfo)]
        counts[name] = len(infos)
    assert counts["run"] > 5, "the count is broken"
    assert {name: count for name, count in counts.items() if count > MOST_OPTIONS} == {}

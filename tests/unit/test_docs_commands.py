"""Every `prony ...` that a page shows parses: verb, options, workloads, settings and values exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from prony.cli.list import THINGS
from prony.cli.main import EXAMPLES, VERBS, make_app
from prony.study.request import make_stop, parse_trial, split_words
from prony.study.search_space import find_goal, make_space, parse_limits, split_searched
from prony.study.study import load_suites, make_grid, make_series, parse_counts
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.data.generated_folder import DEFAULT_SAMPLES, FORMS
from prony_node.workloads import find_workload

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL_ENDS = {"|", ">", "&&", ";", "2>"}
PLACEHOLDER = re.compile(r"\[|\.\.\.|^[A-Z][A-Z|]*$")  # WORKLOAD, RUN, [setting=value ...]


@dataclass(frozen=True)
class Command:
    """`prony ...` as a page shows it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(['prony', *self.words])}"


def command_of(page: str, line: str) -> Command | None:
    """The prony command of a line of a shell, if it is one."""
    if line.startswith(" "):  # a drawing
        return None
    try:
        words = shlex.split(line.removeprefix("$ "), comments=True)
    except ValueError:  # prose with an apostrophe
        return None
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    if not words or words[0] not in ("prony", ".venv/bin/prony"):
        return None
    kept = []
    for word in words[1:]:
        if word in SHELL_ENDS:
            break
        kept.append(word)
    return Command(page, tuple(kept))


def shown_commands() -> Iterator[Command]:
    """In fenced blocks every line, in prose every code span, that begins with prony; and the examples of `prony`."""
    yield from (Command("prony", tuple(shlex.split(example)[1:])) for example, _ in EXAMPLES)
    for path in PAGES:
        text, page = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        fenced = [line for block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        spans = re.findall(r"`(prony [^`\n]+|\.venv/bin/prony [^`\n]+)`", FENCE.sub("", text))
        for line in [*fenced, *spans]:
            command = command_of(page, line)
            if command is not None and not any(PLACEHOLDER.search(word) and "..." in word for word in command.words):
                yield command


COMMANDS = list(dict.fromkeys(shown_commands()))
OPTIONS_FIRST = ("--help", "-h", "--version")


def test_the_pages_show_commands() -> None:
    verbs = {command.words[0] for command in COMMANDS if command.words}
    assert set(VERBS) <= verbs, "a verb that no page shows"
    assert sum(command.page == "README.md" for command in COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_shown_command_parses(command: Command) -> None:
    if not command.words or command.words[0] in OPTIONS_FIRST:
        return
    verb, *rest = command.words
    assert verb in VERBS, f"{verb} is no verb"
    group = typer.main.get_command(make_app(verb))
    parser = group.commands[verb]  # type: ignore[attr-defined]
    if not rest:  # the verb by its name alone
        return
    if isinstance(parser, typer.core.TyperGroup):  # a verb with verbs of its own
        below, *rest = rest
        assert below in parser.commands, f"{below} is no verb of {verb}"
        parser = parser.commands[below]
        verb = f"{verb} {below}"
        if not rest:  # likewise
            return
    if "[" in " ".join(rest):  # a synopsis: what may be left out stands in brackets
        rest = [word.strip("[]") for word in rest if not PLACEHOLDER.search(word) or "--" in word]
        known = {name for parameter in parser.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("-")} <= known
        return
    try:
        parsed = parser.make_context(verb, rest).params
    except typer.Exit:  # --help
        return
    check_meaning(verb, parsed)


def check_meaning(verb: str, parsed: dict[str, object]) -> None:
    """What the verb itself would refuse: workloads, settings, values, times."""
    if verb == "list":
        assert parsed["what"] in THINGS
    if verb == "data generate":
        assert set(str(parsed["kind"]).split("|")) <= set(DEFAULT_SAMPLES)
        assert parsed["form"] in FORMS
    if verb == "tune" and not PLACEHOLDER.search(str(parsed["workload"])):
        find_goal(str(parsed["goal"]))
        parse_limits(parsed["within"] or ())  # type: ignore[arg-type]
        workload = find_workload(str(parsed["workload"]))
        make_space(workload, *split_searched(workload, parsed["settings"] or ()))  # type: ignore[arg-type]
    if verb not in ("run", "sweep", "scale"):
        return
    make_stop(parsed["tolerance"], parsed["max_time"])  # type: ignore[arg-type]
    target = str(parsed.get("target") or parsed.get("workload"))
    words = [str(word) for word in (parsed["settings"] or ())]  # type: ignore[attr-defined]
    if PLACEHOLDER.search(target) or target in ("lenet", "./mymodel.py"):  # the examples of the guides
        return
    if verb == "sweep":
        make_grid(target, [word for word in words if not PLACEHOLDER.search(word)])
    elif verb == "scale":
        kinds = [kind for kind in ("weak", "strong") if parsed[kind] or parsed["both"]] or ["weak"]
        nodes = parse_counts(str(parsed["nodes"]), "--nodes") if parsed["nodes"] else []
        make_series(
            target, [word for word in words if not PLACEHOLDER.search(word)], kinds, lambda _: Machine("cuda"), nodes
        )
    elif target in load_suites():
        split_words(words)
    else:
        parse_trial(target, words)


@pytest.mark.parametrize(
    "words",
    [
        "run resnet51",
        "run resnet50 batchsize=4",
        "run resnet50 precision=fp31",
        "scale resnet50 devices=2,4",
        "walk x",
        "data make imagenet",
        "data generate imagnet",
        "data generate tokens --format zip",
    ],
)
def test_a_wrong_command_would_be_found(words: str) -> None:
    with pytest.raises((RequestError, AssertionError)):
        test_a_shown_command_parses(Command("nowhere", tuple(words.split())))

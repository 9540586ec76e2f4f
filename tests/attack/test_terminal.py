"""Text of others that is printed: a terminal would obey the escape sequences in it."""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony.analysis.compare import compare
from prony.cli.clean import CleanStream, clean
from prony.cli.compare import print_comparison
from prony.cli.console import CleanConsole
from prony.cli.main import main
from prony.cli.progress import LiveDisplay, LiveView, PlainDisplay, make_bar
from prony.cli.tables import print_record, results_table
from prony.engine.progress import StudyProgress
from prony.sites.collect import ProgressLine
from prony_node.contract.record import Failure, new_record, parse_record
from prony_node.contract.trial import Plan, Trial

SOURCE = Path(__file__).parents[2] / "src"
REPLAY = Path(__file__).parents[1] / "replay" / "records"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x1bP1$r\x9b5A\x85\u202egnp\u2066\r\x08\x7f\udc9b"
HOSTILE = f"<{ESCAPES}\x1b]8;;http://evil.example\x1b\\[link=http://evil.example]x[/link][bold]b[/bold] :bomb:>"
FOREIGN = {"message", "name", "hostname", "os", "product", "model", "kernel", "reason", "source", "note", "driver"}
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
COLOUR = re.compile("\x1b\\[[0-9;]*m")
SEQUENCE = re.compile("\x1b\\[[0-9;?]*[A-Za-z]|\x1b.|\r")

Call = Callable[..., tuple[str, str]]


def poisoned(value: Any, text: str, key: str = "") -> Any:
    """A record with this text after everything that is prose or a name."""
    if isinstance(value, dict):
        return {name: poisoned(one, text, name) for name, one in value.items()}
    if isinstance(value, list):
        return [poisoned(one, text, key) for one in value]
    return value + text if isinstance(value, str) and key in FOREIGN else value


def read(end: str) -> dict[str, Any]:
    (folder,) = REPLAY.glob(f"*{end}")
    record: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return record


def everything(console: CleanConsole, text: str) -> None:
    """All that shows records, and all that shows progress, with this text in it."""
    good, other, failed = (
        parse_record(poisoned(copy.deepcopy(read(end)), text)) for end in ("d00001", "c00000", "b00f07")
    )
    for record in (good, failed):
        print_record(console, record, Path(f"/runs/{text}"))
    console.print(results_table([good, failed], width=100))
    print_comparison(console, compare(good, other))
    plain = PlainDisplay(console)
    plain.begin(text)
    plain.note(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root of runs in which every name and sentence is hostile."""
    for end in ("d00001", "c00000", "b00f07"):
        (folder,) = REPLAY.glob(f"*{end}")
        mine = Path(shutil.copytree(folder, tmp_path / "runs" / folder.name))
        (mine / "manifest.json").unlink(missing_ok=True)
        record = poisoned(json.loads((mine / "record.json").read_text(encoding="utf-8")), HOSTILE + end)
        record["trial"]["settings"]["data"] = f"/data/{HOSTILE}"
        (mine / "record.json").write_text(json.dumps(record), encoding="utf-8")
    return tmp_path / "runs"


@pytest.fixture
def call(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A verb with its words as `prony` runs it, on these runs; what it printed."""
    monkeypatch.setenv("PRONY_RUNS", str(root))
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table leaves columns out

    def run(*words: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["prony", *words])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr()

    return run


@given(st.text(), st.text(alphabet=st.sampled_from(sorted(set(ESCAPES) | set("[0;31mx\n\t")))))
def test_cleaned_text_holds_nothing_that_a_terminal_obeys(usual: str, hostile: str) -> None:
    for text in (usual, hostile, usual + hostile):
        once = clean(text)
        assert not FORBIDDEN.search(once)
        assert clean(once) == once
        if not FORBIDDEN.search(text):
            assert once == text


@settings(max_examples=15)
@given(st.text(alphabet=st.sampled_from(sorted(set(ESCAPES) | set("[]/=0;31mxyz"))), min_size=1, max_size=40))
def test_no_text_of_a_record_reaches_what_is_no_terminal_uncleaned(text: str) -> None:
    out = io.StringIO()
    everything(CleanConsole(file=out, width=110, markup=False, emoji=False, highlight=False), text)
    assert not FORBIDDEN.search(out.getvalue())


@settings(max_examples=15)
@given(st.text(alphabet=st.sampled_from(sorted(set(ESCAPES) | set("[]/=0;31mxyz"))), min_size=1, max_size=40))
def test_a_terminal_gets_the_colours_of_rich_and_nothing_else(text: str) -> None:
    out = io.StringIO()
    console = CleanConsole(
        file=out, width=110, force_terminal=True, color_system="truecolor", markup=False, emoji=False
    )
    everything(console, text)
    assert COLOUR.search(out.getvalue()), "without a colour this would show nothing"
    assert not FORBIDDEN.search(COLOUR.sub("", out.getvalue()))


@pytest.mark.parametrize("make", [LiveDisplay, LiveView], ids=["run", "study"])
def test_a_live_view_moves_the_cursor_by_itself_alone(make: Any) -> None:
    """The message of a failing model is shown in the middle of a view that moves the cursor."""

    def sequences(text: str) -> set[str]:
        out = io.StringIO()
        console = CleanConsole(file=out, width=500, force_terminal=True, markup=False, emoji=False, color_system=None)
        view = make(console)
        view.begin(f"trial {text}")
        view.update(ProgressLine(f"phase {text}", note=text))
        view.note(f"failed: {text}")
        if isinstance(view, LiveView):
            tally = StudyProgress(3)
            made = new_record(Plan("a", Trial("a")), status="failed", started="", ended="")
            failed = parse_record(made | {"failure": {"kind": "hung", "message": ""}})
            kind: Any = text  # a record may come from anyone
            tally.learn(Trial(text), replace(failed, failure=Failure(kind, text)))
            view.show(tally)
            view.close()
        view.end()
        return set(SEQUENCE.findall(out.getvalue()))

    assert sequences("harmless"), "without a sequence this would show nothing"
    assert sequences(HOSTILE) == sequences("harmless")


def test_brackets_in_a_title_are_no_markup() -> None:
    out = io.StringIO()
    title = "[link=http://evil.example]x[/link][bold]b[/bold]"
    bar = make_bar(CleanConsole(file=out, width=200, force_terminal=True, markup=False), title, "samples")
    bar.update(1, 10)
    bar.end()
    assert title in out.getvalue()
    assert "\x1b]8" not in out.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["runs", "--json"],
        ["show", "d00001"],
        ["show", "b00f07"],
        ["show", "d00001", "--json"],
        ["compare", "c00000", "d00001"],
        ["compare", "c00000", "d00001", "--json"],
        ["query", "--columns", "id,device,data"],
        ["query", "--columns", "id,device,data", "--format", "csv"],
        ["query", "--columns", "id,device,data", "--format", "json"],
        ["show", HOSTILE],
        ["run", f"./{HOSTILE}.py"],
        ["run", "gpt-tiny", f"{HOSTILE}=1"],
        ["site", "show", HOSTILE],
        ["study", "plan", f"./{HOSTILE}.yaml"],
        ["runs", f"--{HOSTILE}"],
        [HOSTILE],
    ],
    ids=lambda words: " ".join(words).replace(HOSTILE, "HOSTILE"),
)
def test_no_verb_passes_an_escape_sequence_on(call: Call, words: list[str]) -> None:
    out, err = call(*words)
    assert out or err
    assert not FORBIDDEN.search(out)
    assert not FORBIDDEN.search(err)
    assert "gnp" in out + err, "the text itself is shown"


def test_logs_keep_lines_and_tabs_and_lose_commands(call: Call, root: Path) -> None:
    folder = root / "gpt-tiny-20260101T000000-abcdef"
    folder.mkdir()
    (folder / "plan.json").write_text("{}")
    (folder / "rank0.log").write_text(f"one\ttwo\n\x1b[31mred\x1b[0m\n10%\r20%\n{HOSTILE}\n", errors="surrogateescape")
    out, _ = call("logs", folder.name)
    assert not FORBIDDEN.search(out)
    assert "one\ttwo\nred\n10%\n20%\n<" in out


def test_a_real_terminal_gets_colours_alone(root: Path) -> None:
    """The program itself, on a terminal: its colours stay, and nothing of a record is a command."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "prony", "show", "d00001", "--runs", str(root)]
    environment = {**own(), "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(argv, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the terminal's end, once nobody holds the other side
            while part := os.read(ours, 65536):
                said += part
        assert process.wait() == 0
    os.close(ours)
    text = said.decode().replace("\r\n", "\n")
    assert COLOUR.search(text)
    assert not FORBIDDEN.search(COLOUR.sub("", text))


def test_a_traceback_is_clean_too(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom prony.cli import main as front\nfrom prony.store import index\n"
        f"def fail(*a, **k): raise ValueError({HOSTILE!r})\n"
        "import prony.cli.runs as verb\nverb.open_store = fail\n"
        "sys.argv = ['prony', 'runs']\nfront.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path, env=own(), check=False)
    said = done.stderr.decode()
    assert "ValueError" in said
    assert not FORBIDDEN.search(said)


def test_a_failing_models_message_is_clean(tmp_path: Path) -> None:
    """In a process of its own, to the last byte: a model file that raises what would clear the screen."""
    (tmp_path / "bad.py").write_text(f"raise RuntimeError({HOSTILE!r})\n", encoding="utf-8", errors="surrogateescape")
    argv = [sys.executable, "-m", "prony", "run", "./bad.py"]
    done = subprocess.run(argv, capture_output=True, cwd=tmp_path, env=own(), check=False)
    assert done.returncode == 2
    assert b"RuntimeError" in done.stderr
    assert not FORBIDDEN.search(done.stderr.decode())


def own() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUTF8": "1"}


def test_a_clean_stream_is_the_stream_behind_it_in_all_else() -> None:
    behind = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    stream = CleanStream(behind)
    assert stream.write("a\x1bb") == 3
    stream.writelines(["c\x9b", "\n"])
    stream.flush()
    assert stream.buffer.getvalue().decode() == "a\ufffdbc\ufffd\n"
    assert not stream.isatty()


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((SOURCE / "prony").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(SOURCE).as_posix(), node


def test_nothing_prints_past_the_cleaner() -> None:
    """A console that somebody makes by themselves, or the stream behind a clean one, would be a way round it."""
    ways = {"Console", "CleanConsole", "stream_behind", "__stdout__", "__stderr__"}
    found = set()
    for file, node in sources():
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "id", None) or getattr(called, "attr", None)
        reached = node.attr if isinstance(node, ast.Attribute) else None
        if name in ways or reached in ("__stdout__", "__stderr__", "behind"):
            found.add(file)
        if name == "print" and isinstance(called, ast.Name):
            own = file.startswith("prony/cli/") or file == "prony/sites/start_node.py"  # the latter: on a node
            assert own, f"{file} prints, which only the command line may"
    assert found == {"prony/cli/console.py", "prony/cli/clean.py"}

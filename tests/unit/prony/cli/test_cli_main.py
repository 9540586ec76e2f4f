"""The front door: help without weight, mistakes as one sentence, exit codes."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prony.cli.main import EXAMPLES, VERBS, guarded, main
from prony_node.contract import RequestError

ROOT = Path(__file__).parents[4]

Call = Callable[..., subprocess.CompletedProcess[str]]


def prony(*words: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": str(columns)}
    return subprocess.run([sys.executable, "-m", "prony", *words], env=environment, capture_output=True, text=True)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """The same in this process, which has its libraries already."""

    def make(*words: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["prony", *words])
        monkeypatch.setenv("COLUMNS", str(columns))
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with monkeypatch.context() as streams:
            streams.setattr(sys, "stdout", out)
            streams.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as end:
                main()
        assert isinstance(end.value.code, int)
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        return subprocess.CompletedProcess(words, end.value.code, *said)

    return make


def test_help_names_every_verb_in_little_more_time_than_its_libraries_take() -> None:
    """A command line that imports torch, or the store, before it knows what was asked is a second late each time."""

    def seconds_of(call: Callable[[], subprocess.CompletedProcess[str]]) -> float:
        began = resource.getrusage(resource.RUSAGE_CHILDREN)  # CPU time: a shared machine takes any other time
        done = call()
        assert done.returncode == 0
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    bare = [sys.executable, "-c", "import typer, rich"]
    shown = prony("--help").stdout
    assert all(verb in shown for verb in VERBS)
    ours, theirs = [], []
    while len(ours) < 5 or (len(ours) < 20 and min(ours) >= 2 * min(theirs)):
        ours.append(seconds_of(lambda: prony("--help")))
        theirs.append(seconds_of(lambda: subprocess.run(bare, capture_output=True, text=True)))
    assert min(ours) < 2 * min(theirs)


def test_no_words_at_all_are_answered_with_five_examples() -> None:
    done = prony(columns=80)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    examples = [line.split("  ")[1] for line in lines if line.startswith("  prony ")]
    assert examples == [command for command, _ in EXAMPLES]
    assert len(examples) == 5
    assert "prony --help" in lines[-1]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", [(), ("study",), ("site",), ("data",), ("container",), ("store",)])
def test_a_list_of_commands_cuts_no_line_on_a_narrow_terminal(call: Call, words: tuple[str, ...]) -> None:
    listed = call(*words, "--help", columns=80).stdout.partition("Commands:")[2].splitlines()
    assert len(listed) > 2
    assert not [line for line in listed if line.endswith("...")]


def test_the_version() -> None:
    done = prony("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "prony")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rum"], "unknown command 'rum'; did you mean 'run'?"),
        (["run", "gpt-tinny"], "did you mean 'gpt-tiny'?"),
        (["run", "quik"], "did you mean 'quick'?"),
        (["run", "gpt-tiny", "batchsize=4"], "did you mean 'batch_size'?"),
        (["run", "gpt-tiny", "precision=bf61"], "did you mean precision=bf16?"),
        (["run", "quick", "precison=bf16"], "did you mean 'precision'?"),
        (["run", "gpt-tiny", "--tolerance", "much"], "--tolerance much is not possible"),
        (["run", "gpt-tiny", "--repeats", "0"], "--repeats 0 is not possible"),
        (["sweep", "gpt-tiny", "seed=1", "--repeats", "1001"], "--repeats 1001 is not possible"),
        (["sweep", "gpt-tiny", "precision=fp32,bf61"], "did you mean precision=bf16?"),
        (["sweep", "gpt-tinny", "seed=1,2"], "did you mean 'gpt-tiny'?"),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(call: Call, tmp_path: Path, words: list[str], says: str) -> None:
    out = ["--out", str(tmp_path / "runs")] if len(words) > 1 else []
    done = call(*words, *out)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [["query"], ["sweep", "gpt-tiny", "seed=1"], ["tune", "gpt-tiny"]])
def test_runs_that_lie_in_no_folder_are_refused(call: Call, words: list[str]) -> None:
    """It would be called a full disk."""
    done = call(*words, "--out", "/dev/null")
    assert (done.returncode, done.stderr) == (2, "prony: /dev/null is no folder, so no runs can lie there\n")


def test_an_unknown_option_is_refused_with_2() -> None:
    done = prony("run", "gpt-tiny", "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_can_be_loaded_and_explains_itself(call: Call, verb: str) -> None:
    done = call(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert f"prony {verb}" in done.stdout


@pytest.mark.parametrize("verb", ["run", "sweep", "tune", "verify"])
def test_a_verb_for_scripts_states_its_exit_codes(call: Call, verb: str) -> None:
    assert "Exit code: 0 " in call(verb, "--help").stdout


def test_the_commands_of_the_store_are_not_cut_on_a_narrow_terminal(call: Call) -> None:
    _, listed = call("store", "--help", columns=80).stdout.split("Commands:")
    assert "share" in listed
    assert "..." not in listed


def test_a_verb_that_refuses_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    def verb() -> None:
        raise RequestError("that cannot be")

    with pytest.raises(SystemExit) as end:
        guarded(verb)()
    assert end.value.code == 2
    assert capsys.readouterr().err == "prony: that cannot be\n"


def test_what_the_system_refuses_is_a_sentence_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def verb() -> None:
        (tmp_path / "nothing").read_text()

    with pytest.raises(SystemExit) as end:
        guarded(verb)()
    assert end.value.code == 1
    assert capsys.readouterr().err == f"prony: {tmp_path / 'nothing'}: No such file or directory\n"


def test_a_full_disk_under_the_output_is_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        argv = [sys.executable, "-m", "prony", "list"]
        done = subprocess.run(argv, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "prony: the output could not be written: No space left on device\n")


@pytest.mark.parametrize(("words", "closed"), [("store import -", "<&-"), ("store export -", ">&-")])
def test_a_closed_end_is_a_sentence(tmp_path: Path, words: str, closed: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    argv = ["sh", "-c", f"exec {sys.executable} -m prony {words} --runs {tmp_path} {closed}"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("prony: nothing can ")


def test_letters_that_a_terminal_does_not_have_are_replaced(replay: Path, tmp_path: Path) -> None:
    """A sweep would fail with a traceback at its end, for the dash in its table."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
    folder = replay / "resnet50-20260302T100000-d00001"
    argv = [sys.executable, "-m", "prony", "show", str(folder), "--runs", str(tmp_path)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "resnet50" in done.stdout
    assert "?" in done.stdout


def test_an_interrupted_verb_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def verb() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("prony.cli.main._load", lambda chosen: verb)
    monkeypatch.setattr(sys, "argv", ["prony", "run"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130


@pytest.mark.parametrize("ignored", [False, True])
def test_interrupted_while_it_is_being_loaded_it_ends_without_a_word(tmp_path: Path, ignored: bool) -> None:
    # A library that Ctrl-C meets while it is imported.
    (tmp_path / "typer.py").write_text("import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\nsys.exit(7)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    argv = [sys.executable, "-m", "prony", "list"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    # What was started to ignore it, as a shell does with what it puts into the background, goes on doing so.
    assert (done.returncode, done.stdout, done.stderr) == (7 if ignored else -signal.SIGINT, "", "")

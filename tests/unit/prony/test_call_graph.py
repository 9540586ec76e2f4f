"""From `prony run` to the start of the node: few calls, each in the room that ARCHITECTURE.md draws it in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import typer

from prony.cli.run import run
from prony.sites.local import LocalRun

SRC = Path(__file__).parents[3] / "src"
MOST_CALLS = 6
ARCHITECTURE = SRC.parent / "ARCHITECTURE.md"


class Reached(Exception):
    """The node would be started here."""


def test_the_controllers_half_of_a_run_is_six_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain: list[tuple[str, str]] = []

    def start(self: LocalRun) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not run.__code__:
            frame = frame.f_back
            assert frame is not None, "the run did not begin in the verb"
            chain.append((Path(frame.f_code.co_filename).relative_to(SRC).as_posix(), frame.f_code.co_name))
        raise Reached

    monkeypatch.setattr(LocalRun, "start", start)
    with pytest.raises(Reached):
        run("gpt-tiny", ["device=cpu", "steps=1"], out=tmp_path)
    chain.reverse()
    assert len(chain) <= MOST_CALLS, chain  # each makes the next call, the last one that of LocalRun.start
    assert [file for file, _ in chain[:3]] == ["prony/cli/run.py", "prony/api.py", "prony/engine/execute.py"]
    drawn = ARCHITECTURE.read_text(encoding="utf-8")
    drawn = drawn[drawn.index("cli/run.py run ->") : drawn.index("LocalRun.start")]
    assert drawn.split() == _drawing(chain).split()


def test_a_refused_request_never_reaches_the_engine(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'gpt-tiny'"):
        run("gpt-tinny", None, out=tmp_path)
    with pytest.raises((ValueError, typer.Exit), match="no meaning with mode=infer"):
        run("gpt-tiny", ["mode=infer", "optimizer=sgd"], out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def _drawing(chain: list[tuple[str, str]]) -> str:
    """The chain as the page draws it: a file is named where it changes."""
    words, before = [], ""
    for file, function in chain:
        place = file.removeprefix("prony/")
        words.append(f"{place} {function}" if place != before else function)
        before = place
    return " -> ".join([*words, "sites/local.py"])

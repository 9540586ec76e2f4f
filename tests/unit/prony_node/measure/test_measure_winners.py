"""The fastest form of a kernel is timed once, and found again only for forms that were all timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prony_node.backends.torch import compiling

heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The blocks that were timed, a list for each time; the smallest wins."""
    seen: list[list[int]] = []

    def autotune(kernel, *given, **named) -> None:
        seen.append([one.config.kwargs["R0_BLOCK"] for one in kernel.launchers])
        kernel.launchers = [min(kernel.launchers, key=lambda one: one.config.kwargs["R0_BLOCK"])]

    monkeypatch.setattr(heuristics.CachingAutotuner, "autotune_to_one_config", autotune)
    compiling.remember_winners()
    compiling.remember_winners()  # a second time changes nothing
    return seen


def chosen(filename: Path | None, *blocks: int, keeps: bool = True) -> int:
    """The block with which a new process would run the kernel."""
    configs = [SimpleNamespace(kwargs={"XBLOCK": 1, "R0_BLOCK": one}, num_warps=4, num_stages=1) for one in blocks]
    launchers = [SimpleNamespace(config=one) for one in configs]
    kernel = SimpleNamespace(filename=filename and str(filename), launchers=launchers)
    heuristics.CachingAutotuner.autotune_to_one_config(kernel)
    if keeps:
        compiling.keep_winners()
    compiling.FOUND.clear()  # the process ends
    (winner,) = kernel.launchers
    return winner.config.kwargs["R0_BLOCK"]


def test_a_second_process_does_not_time_again(tmp_path: Path, timed: list[list[int]]) -> None:
    kernel = tmp_path / "ab" / "kernel.py"
    assert [chosen(kernel, 2048, 1024), chosen(kernel, 2048, 1024), chosen(kernel, 1024, 2048)] == [1024] * 3
    assert timed == [[2048, 1024]]


def test_a_run_that_may_not_have_been_alone_keeps_nothing(tmp_path: Path, timed: list[list[int]]) -> None:
    assert chosen(tmp_path / "kernel.py", 2048, 1024, keeps=False) == 1024
    assert chosen(tmp_path / "kernel.py", 2048, 1024) == 1024
    assert len(timed) == 2
    assert chosen(tmp_path / "kernel.py", 2048, 1024) == 1024
    assert len(timed) == 2


def test_fewer_forms_with_the_winner_are_known(tmp_path: Path, timed: list[list[int]]) -> None:
    """torch narrows to its own winner and adds the smaller block of that one alone."""
    kernel = tmp_path / "kernel.py"
    assert chosen(kernel, 4096, 2048, 1024) == 1024
    assert chosen(kernel, 1024, 2048) == 1024
    assert len(timed) == 1


def test_a_form_that_was_never_timed_is(tmp_path: Path, timed: list[list[int]]) -> None:
    kernel = tmp_path / "kernel.py"
    assert chosen(kernel, 2048, 1024) == 1024
    assert chosen(kernel, 1024, 512) == 512
    assert chosen(kernel, 4096, 2048) == 2048  # without the winner
    assert len(timed) == 3


def test_kernels_do_not_share_a_winner(tmp_path: Path, timed: list[list[int]]) -> None:
    chosen(tmp_path / "a.py", 2048, 1024)
    chosen(tmp_path / "b.py", 2048, 1024)
    chosen(None, 2048, 1024)
    chosen(None, 2048, 1024)
    assert len(timed) == 4


STRANGE = ("", "{", "[]", '{"torch": "0.1", "tried": [], "winner": "x"}',
           f'{{"torch": "{compiling.torch.__version__}", "tried": [[]], "winner": []}}')  # fmt: skip


@pytest.mark.parametrize("text", STRANGE)
def test_a_file_that_is_not_understood_is_replaced(tmp_path: Path, timed: list[list[int]], text: str) -> None:
    kernel = tmp_path / "kernel.py"
    Path(f"{kernel}.winner").write_text(text)
    assert chosen(kernel, 2048, 1024) == 1024
    assert chosen(kernel, 2048, 1024) == 1024
    assert len(timed) == 1


def test_another_version_of_torch_times_again(
    tmp_path: Path, timed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(tmp_path / "kernel.py", 2048, 1024)
    monkeypatch.setattr(compiling.torch, "__version__", "99.0")
    chosen(tmp_path / "kernel.py", 2048, 1024)
    assert len(timed) == 2


def test_a_place_that_cannot_be_written_costs_time_alone(tmp_path: Path, timed: list[list[int]]) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert chosen(tmp_path / "file" / "kernel.py", 2048, 1024) == 1024
    assert len(timed) == 2


RUNS = """
import sys
from pathlib import Path
from prony_node.contract.trial import Plan, Stop
from prony_node.contract.trial import Trial
from prony_node.backends.torch import compiling
from prony_node.parallel.place import RankPosition
from prony_node.run.journal import Journal
from prony_node.run.run import run
small = {"size": "tiny", "device": "cpu", "batch_size": 2, "sequence": 16}
for name, more in (("measured", {}), ("counted", {"steps": 2})):
    folder = Path(sys.argv[1], name)
    folder.mkdir()
    compiling.FOUND[folder / "kernel.winner"] = {"a", "b"}, "a"
    stop = Stop(min_time_s=0.1, max_time_s=0.1)
    run(Plan(run_id=name, trial=Trial("gpt-tiny", small | more), stop=stop), Journal(folder), RankPosition())
"""


def test_a_run_keeps_them_if_it_measured(tmp_path: Path) -> None:
    """A given number of steps is what scripts compile with, several at once on a device."""
    subprocess.run([sys.executable, "-c", RUNS, str(tmp_path)], check=True, timeout=300)
    assert compiling.recall(tmp_path / "measured" / "kernel.winner", {"a", "b"}) == "a"
    assert compiling.recall(tmp_path / "counted" / "kernel.winner", {"a", "b"}) is None

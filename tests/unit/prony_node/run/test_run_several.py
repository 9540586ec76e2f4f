"""Several ranks, one record: the common window of copies, the slowest by name, and who is to blame."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prony_node.backends.torch.backend import EventClock
from prony_node.contract import files
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.record import Check, WorkDone, measured, missing
from prony_node.contract.run_folder import RankResult, RankTimes
from prony_node.contract.typed import encode
from prony_node.parallel.replicas import Ranks, RankWord
from prony_node.run import judge, processes
from prony_node.run.conditions import distinct, worst_of
from prony_node.run.processes import OutOfMemoryWitness
from prony_node.run.several_ranks import (
    JoinedRanks,
    Pace,
    RankAccount,
    SummedCopies,
    ranks_check,
    replicas_check,
    sum_copies,
)
from prony_node.run.step_series import CopySeries, common_window, summed

ENDED = processes.LauncherEnd(pid=1, status=1)


def copy(rank: int, begin_s: float, step_s: float, steps: int, cut_s: float = 0.0) -> RankAccount:
    blocks = ((1, step_s, 0.0),) * steps
    series = CopySeries(begin_s, cut_s, steps * step_s, step_s, step_s / 1.1, step_s / 0.9, blocks)
    pace = Pace(step_s, 0.99 * step_s, 1.01 * step_s)
    return RankAccount(
        rank, 0, "node7", f"cuda:{rank}", steps, steps + 7, 1000.0, series, RankTimes(0, rank), pace=pace
    )


def series(*copies: RankAccount) -> list[CopySeries]:
    return [one.series for one in copies]


def test_only_the_window_that_all_copies_share_is_summed() -> None:
    """One is alone at first, another at the end, when it is faster: neither time counts."""
    first = copy(0, 0.0, 0.1, 100, cut_s=1.0)  # steady from 1 s to 10 s
    second = copy(1, 2.0, 0.2, 50)  # from 2 s to 12 s
    window = common_window(series(first, second))
    assert window is not None
    assert (window.start_s, window.end_s) == pytest.approx((2.0, 10.0))
    assert window.steps == pytest.approx((80.0, 40.0))
    rate = summed(window, series(first, second), units_per_step=4)
    assert rate.value == pytest.approx(4 * (80 + 40) / 8)
    assert rate.low == pytest.approx(0.9 * rate.value)
    assert rate.high == pytest.approx(1.1 * rate.value)


def test_copies_with_too_few_steps_have_a_sum_without_an_interval() -> None:
    first, second = series(copy(0, 0.0, 0.1, 100), copy(1, 0.0, 0.1, 100))
    window = common_window([first, second])
    assert window is not None
    unknown = summed(window, [first, replace(second, low_s=None, high_s=None)], units_per_step=4)
    assert (unknown.low, unknown.high) == (None, None)
    open_above = summed(window, [first, replace(second, low_s=0.0)], units_per_step=4)
    assert open_above.low is not None
    assert open_above.high is None


def test_a_block_across_an_edge_counts_in_part() -> None:
    window = common_window(series(copy(0, 0.0, 1.0, 10), copy(1, 2.25, 0.5, 5)))
    assert window is not None
    assert window.steps == pytest.approx((2.5, 5.0))


def test_copies_that_were_never_measured_together_have_no_sum() -> None:
    assert common_window(series(copy(0, 0.0, 0.1, 10), copy(1, 5.0, 0.1, 10))) is None


def joined(*copies: RankAccount) -> SummedCopies:
    """Copies that the first of them has joined; what is at stake was found of that one alone before."""
    built: Any = SimpleNamespace(units_per_step=4, samples_per_step=2, task=SimpleNamespace(unit="tokens"))
    rate = measured(1.0, "tokens/s", scope="all devices", source="counted")
    return sum_copies(built, copies, 1000.0, WorkDone(steps=100, devices=1), rate)


def test_work_and_energy_of_copies_are_of_the_window_that_all_share() -> None:
    """Else a unit seems to cost more: the energy of the first copy's window over the work of a shorter one."""
    found = joined(copy(0, 0.0, 0.1, 100, cut_s=1.0), copy(1, 5.0, 0.2, 50))
    assert found.window == pytest.approx((1005.0, 1010.0))
    assert found.seconds == pytest.approx(5.0)
    work = found.work
    assert (work.steps, work.samples, work.units) == (50, 2 * (50 + 25), 4 * (50 + 25))
    assert work.total_samples == 2 * (107 + 57)
    assert found.metrics["throughput"].value == pytest.approx(4 * 75 / 5.0)
    assert found.rate_per_device == pytest.approx(4 * 75 / 5.0)
    assert [one.common_steps for one in found.accounts] == pytest.approx([50.0, 25.0])


def test_copies_that_never_ran_together_have_no_rate_no_utilisation_and_no_energy() -> None:
    found = joined(copy(0, 0.0, 0.1, 10), copy(1, 5.0, 0.1, 20))
    reason = "the copies were never measured at the same time"
    assert [found.metrics[name] for name in ("throughput", "throughput_per_device")] == [missing(reason)] * 2
    assert (found.window, found.rate_per_device, found.never_together) == (None, None, reason)
    assert (found.work.samples, found.work.window) == (2 * 30, "each copy's own")
    built: Any = SimpleNamespace(model=SimpleNamespace(flops=None), task=SimpleNamespace(varies="made up"))
    result = judge.judge_joined(cast(Any, None), built, JoinedRanks(RankResult(), never_together=reason))
    assert result.metrics["mfu"] == missing(reason)
    assert [(check.name, check.level) for check in result.checks] == [("utilisation", "unknown")]


def test_a_straggler_is_flagged_by_name() -> None:
    made = ranks_check([copy(0, 0, 0.100, 9), copy(1, 0, 0.101, 9), copy(2, 0, 0.120, 9), copy(3, 0, 0.1, 9)])
    assert made.level == "warn"
    assert "straggler: rank 2 (node7, cuda:2) takes 20.0% longer" in made.message


def test_noise_makes_no_straggler() -> None:
    noisy = replace(copy(1, 0, 0.120, 9), pace=Pace(0.120, 0.09, 1.01 * 0.120))
    made = ranks_check([copy(0, 0, 0.1, 9), noisy])
    assert (made.level, "the slowest, by 20.0%, is rank 1" in made.message) == ("pass", True)
    assert ranks_check([copy(0, 0, 0.1, 9), replace(noisy, pace=None)]).level == "unknown"


def test_replicas_that_drifted_apart_fail() -> None:
    assert replicas_check([[1.0, 2.0], [1.0, 2.0]]).level == "pass"
    made = replicas_check([[1.0, 2.0], [1.0, 2.1]])
    assert (made.level, made.message.split(" are")[0]) == ("fail", "1 of 2 parameter tensors")


def test_only_the_same_part_of_a_split_model_is_compared() -> None:
    parts = [[1.0, 2.0], [3.0]]
    made = replicas_check(parts + parts, parts=2)
    assert (made.level, made.message) == ("pass", "all 2 replicas of 2 ranks have the same weights")
    made = replicas_check([*parts, [1.0, 2.0], [3.1]], parts=2)
    assert made.level == "fail"
    assert "1 of 3 parameter tensors" in made.message


def test_the_worst_device_speaks_for_all() -> None:
    good, bad = Check("throttled", "pass", "no"), Check("throttled", "warn", "hot")
    assert worst_of([("GPU-a", [good]), ("GPU-b", [bad])]) == [replace(bad, message="GPU-b: hot")]
    assert worst_of([("cpu", [bad])]) == [bad]
    devices = [*(DeviceFacts(uuid=uuid) for uuid in "aba"), DeviceFacts(kind="cpu")]
    assert list(distinct(devices)) == ["a", "b", "cpu"]


def ranks_in(folder: Path, *failures: dict[str, Any] | None) -> None:
    """A rank for each: how it says that it failed, or nothing at all."""
    for rank, failure in enumerate(failures):
        own = files.rank_folder(folder, rank)
        own.mkdir(exist_ok=True)
        files.write_whole(own / files.RANK, {"rank": rank, "host": "node7", "device": f"cuda:{rank}"})
        (folder / files.rank_log(rank)).write_text(f"[Gloo] connected\nrank {rank} was here\n")
        if failure is not None:
            files.write_whole(own / files.RESULT, {"status": "failed", "failure": failure})


ECHO = {
    "kind": "exception",
    "message": "RuntimeError: [gloo/pair.cc] Connection closed by peer",
    "at_monotonic": 1.0,
}


def blamed(folder: Path, *ended: tuple[int, int], local: int = 2) -> dict[str, str]:
    ranks = [{"rank": rank, "pid": 1, "exit_status": status} for rank, status in ended]
    files.write_whole(folder / files.LAUNCHER, {"failure": None, "ranks": ranks})
    return encode(processes.launcher_failure(folder, 2, local, "in phase measure", OutOfMemoryWitness(folder), ENDED))


def test_the_rank_that_was_killed_is_to_blame_and_not_its_echo(tmp_path: Path) -> None:
    ranks_in(tmp_path, ECHO, None)
    failure = blamed(tmp_path, (0, 1), (1, -9))
    assert failure["kind"] == "killed"
    assert failure["message"] == (
        "rank 1 of 2 (node7, cuda:1) was killed by SIGKILL in phase measure; its last words:\nrank 1 was here"
    )


def test_a_rank_that_torch_aborted_is_to_blame_only_where_no_other_is(tmp_path: Path) -> None:
    """NCCL aborts a rank whose others have gone: that is the echo of their end."""
    ranks_in(tmp_path, None, None)
    assert blamed(tmp_path, (0, -6), (1, -9))["message"].startswith("rank 1 of 2 (node7, cuda:1) was killed by SIGKILL")
    assert blamed(tmp_path, (0, -6), (1, -15))["message"].startswith(
        "rank 0 of 2 (node7, cuda:0) was killed by SIGABRT"
    )
    short = {"kind": "out-of-memory", "message": "tried to allocate 9 GiB", "at_monotonic": 2.0}
    ranks_in(tmp_path, None, short)
    assert blamed(tmp_path, (0, -6), (1, 1))["kind"] == "out-of-memory"


def test_a_node_that_could_not_come_says_why_the_nodes_did_not_meet(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    here = {"kind": "rendezvous", "message": "the 2 node(s) of this run did not all meet"}
    files.write_whole(folder / files.LAUNCHER, {"failure": here, "ranks": []})
    other = files.node_folder(folder, 1)
    other.mkdir()
    for failure, found in (
        (None, here),
        ({"kind": "rendezvous", "message": "nor here"}, here),
        ({"kind": "request", "message": "torch finds 1"}, {"kind": "request", "message": "on node 1: torch finds 1"}),
    ):
        files.write_whole(other / files.NODE, {"node": 1, "failure": failure})
        assert encode(processes.launcher_failure(folder, 2, 1, "", OutOfMemoryWitness(folder), ENDED)) == found


def test_the_rank_with_a_reason_of_its_own_is_to_blame(tmp_path: Path) -> None:
    short = {"kind": "out-of-memory", "message": "tried to allocate 9 GiB", "at_monotonic": 2.0}
    ranks_in(tmp_path, ECHO, short)
    assert blamed(tmp_path, (0, 1), (1, 1)) == {
        "kind": "out-of-memory", "message": "rank 1 of 2 (node7, cuda:1): tried to allocate 9 GiB",
    }  # fmt: skip


def test_a_request_that_every_rank_refuses_is_nobodys(tmp_path: Path) -> None:
    refused = {"kind": "request", "message": "cores=9: this machine lets us use 2 cores"}
    ranks_in(tmp_path, refused, refused)
    assert blamed(tmp_path, (0, 1), (1, 1)) == refused


def test_a_failure_on_another_node_is_told_where_its_folder_can_be_seen(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ranks_in(folder, ECHO)
    other = files.node_folder(folder, 1)
    other.mkdir()
    told = {"kind": "killed", "message": "rank 1 of 2 (node8, cuda:0) was killed by SIGKILL"}
    files.write_whole(other / files.NODE, {"node": 1, "failure": told})
    assert blamed(folder, (0, 1), local=1) == {"kind": "killed", "message": f"on node 1: {told['message']}"}


def test_the_launchers_own_failure_comes_first(tmp_path: Path) -> None:
    said = {"kind": "rendezvous", "message": "port 29500 cannot be listened on"}
    files.write_whole(tmp_path / files.LAUNCHER, {"failure": said, "ranks": []})
    assert encode(processes.launcher_failure(tmp_path, 2, 2, "", OutOfMemoryWitness(tmp_path), ENDED)) == said
    (tmp_path / files.LAUNCHER).unlink()
    (tmp_path / files.LAUNCHER_LOG).write_text("ImportError: no torch here\n")
    assert (
        "no torch here"
        in encode(processes.launcher_failure(tmp_path, 2, 2, "", OutOfMemoryWitness(tmp_path), ENDED))["message"]
    )


WAITS = 'File "x/torch/autograd/graph.py", line 865 in _engine_run_backward\nFile "x/torch/_tensor.py", line 1'
SLEEPS = 'File "x/prony_node/data/loader.py", line 9 in __next__\nFile "x/prony_node/measure/loop.py", line 60 in loop'


@pytest.mark.parametrize(
    ("stacks", "says"),
    [
        ({0: WAITS, 1: SLEEPS}, 'rank 1 of 2 (node7, cuda:1) stood at File "x/prony_node/data/loader.py", line 9'),
        ({0: "", 1: WAITS}, "rank 0 of 2 (node7, cuda:0) gave no answer when asked where it stands"),
        ({0: WAITS, 1: WAITS}, "which rank the others waited for cannot be told; rank 0 of 2 (node7, cuda:0) stood at"),
        ({}, "no rank of it lives here"),
    ],
)
def test_the_rank_that_hangs_is_the_one_that_does_not_wait(tmp_path: Path, stacks: dict[int, str], says: str) -> None:
    ranks_in(tmp_path, None, None)
    assert says in processes.where_they_stood(tmp_path, 2, stacks)


@pytest.mark.parametrize("waits", [Ranks.barrier, Ranks.gathered, RankWord.wait, EventClock.finished])
def test_a_rank_that_stands_in_our_own_waits_is_not_the_one_that_hangs(
    tmp_path: Path, waits: Callable[..., object]
) -> None:
    """The names are taken from the code: a file that is renamed must not make every rank one that hangs."""
    ranks_in(tmp_path, None, None)
    stood = f'File "{inspect.getsourcefile(waits)}", line 9 in {waits.__name__}\nFile "x/run.py", line 1 in run'
    told = processes.where_they_stood(tmp_path, 2, {0: stood, 1: SLEEPS})
    assert told.startswith("rank 1 of 2")
    assert told.endswith("the other 1 waited")

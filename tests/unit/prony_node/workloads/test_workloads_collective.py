"""Collectives count what nccl-tests counts, are checked before they are timed, and one device gets a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads import WORKLOADS
from prony_node.workloads.collective_config import COLLECTIVES, KINDS, message_sizes
from prony_node.workloads.config import Workload

EVERY = pytest.mark.parametrize("workload", COLLECTIVES, ids=lambda workload: workload.name)
CPU, GPU = Machine("cpu", None, 2), Machine("cuda", 141.0, 16)


@pytest.mark.parametrize(
    ("name", "two", "eight"),
    [("allreduce", Fraction(1), Fraction(7, 4)), ("allgather", Fraction(1, 2), Fraction(7, 8)),
     ("reducescatter", Fraction(1, 2), Fraction(7, 8)), ("alltoall", Fraction(1, 2), Fraction(7, 8)),
     ("broadcast", Fraction(1), Fraction(1)), ("sendrecv", Fraction(1), Fraction(1))],
)  # fmt: skip
def test_bus_bandwidth_has_the_factors_of_nccl_tests(name: str, two: Fraction, eight: Fraction) -> None:
    assert (KINDS[name].factor(2), KINDS[name].factor(8)) == (two, eight)


@EVERY
def test_messages_double_from_a_kibibyte_to_a_gibibyte(workload: Workload) -> None:
    sizes = message_sizes(workload.effective({"devices": 8}, GPU))
    assert sizes == [2**power for power in range(10, 31)]
    assert message_sizes(workload.effective({"devices": 2}, CPU))[-1] == 2**24
    odd = workload.effective(workload.parse({"devices": "2", "smallest": "4KiB", "largest": "10KiB"}), CPU)
    assert message_sizes(odd) == [4096, 8192, 10240]


@EVERY
def test_what_has_no_meaning_is_refused_with_a_sentence(workload: Workload) -> None:
    for words, sentence in (
        ({}, "one alone has nobody to do it with"),
        ({"devices": 1}, "add devices=2 or more"),
        ({"devices": 2, "mode": "train"}, "mode=infer alone"),
        ({"devices": 2, "batch_size": 4}, "a step is one operation on one message"),
        ({"devices": 2, "precision": "tf32"}, "a message is of fp32, bf16, fp16"),
        ({"devices": 2, "compile": "default"}, "nothing to compile or capture"),
        ({"devices": 2, "smallest": "1MiB", "largest": "1KiB"}, "larger than largest=1KiB"),
        ({"devices": 8, "smallest": "16B"}, "8 ranks need an element of 4 bytes each"),
        ({"devices": 2, "largest": "1 GB"}, "a size such as 1KiB, 16MiB or 1GiB"),
    ):
        with pytest.raises(RequestError, match=sentence):
            workload.parse(words)
    with pytest.raises(RequestError, match="one alone"):
        workload.effective({}, GPU)
    assert workload.parse({"nodes": 2}) == {"nodes": 2}  # two nodes are two devices
    assert WORKLOADS[workload.name] is workload


# Every rank of three, in processes of their own: torch is imported once, before they part.
RANKS = """
import multiprocessing, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from prony_node.contract.machine import Machine
from prony_node.backends.torch.backend import TorchBackend
from prony_node.backends.torch.backend import stopwatch_of
from prony_node.run.collective import measure_collective
from prony_node.run.journal import Journal
from prony_node.run.prepare import Setup
from prony_node.contract.trial import Plan, Trial
from prony_node.parallel.replicas import Ranks
from prony_node.workloads import WORKLOADS
from prony_node.measure.loop import TimedOperation, time_point
from prony_node.stats import StopRule
from prony_node.workloads import collective
from prony_node.workloads.collective import MAKERS, gather, make_collective

CPU = torch.device("cpu")

def right(name, size, precision="fp32"):
    made = make_collective(name, size, {"precision": precision}, CPU)
    assert 0 < made.size <= size
    return made.is_right()

def work(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=3)
    collective.AT_ONCE = 1000  # so that a buffer is looked at in several parts
    for name in MAKERS:
        for size in (16, 1024, 40000):
            assert right(name, size), (name, size)
        for precision in ("bf16", "fp16"):
            assert right(name, 1024, precision), (name, precision)
        broken = type("Broken", (MAKERS[name],), {"run": lambda self: None})
        made = broken(1024, "fp32", CPU)
        seen = gather((float(made.is_right()),), CPU)
        assert (0.0,) in seen, f"{name} that does nothing passes for right"
        assert len(set(seen)) == 1 or name == "broadcast"  # whose first rank has the answer already

    made = make_collective("allreduce", 1024, {"precision": "fp32"}, CPU)
    operation = TimedOperation(made.run, made.renew, lambda values: gather(values, CPU), lambda: stopwatch_of(CPU))
    series = time_point(operation, StopRule())
    same = gather((float(series.operations), series.seconds, series.blocks[-1].end_s), CPU)
    assert len(set(same)) == 1, "ranks that see different times would decide differently, and wait for ever"
    estimate = series.tracker.estimate()
    assert estimate is not None
    assert estimate.step_time_low_s < estimate.step_time_s < estimate.step_time_high_s
    a_wrong_answer_has_no_time()
    dist.destroy_process_group()

def a_wrong_answer_has_no_time():
    workload = WORKLOADS["alltoall"]
    asked = {"devices": 3, "device": "cpu", "largest": "2KiB"}
    settings, backend = workload.effective(asked, Machine("cpu", None, 2)), TorchBackend(CPU)
    plan = Plan(run_id="x", trial=Trial("alltoall", asked))
    room = backend.cap_memory(None, 1.0)
    setup = Setup(plan, workload, settings, backend, Ranks(), (0,), room, StopRule())
    collective.MAKERS["alltoall"] = type("Broken", (MAKERS["alltoall"],), {"run": lambda self: None})
    folder = Path(sys.argv[1]).with_name(f"rank{dist.get_rank()}")
    folder.mkdir()
    journal = Journal(folder)
    measure_collective(setup, journal)
    found = journal.result
    assert [(row.time_s, row.reason) for row in found.collective.curve] == [
        (None, "the answer was wrong on rank 0, 1, 2")] * 2
    assert found.metrics["throughput"].reason == "the answer was wrong on rank 0, 1, 2"
    assert [(check.name, check.level) for check in found.checks] == [("collective", "fail")]

context = multiprocessing.get_context("fork")
ranks = [context.Process(target=work, args=(rank,)) for rank in range(3)]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
sys.exit(max(abs(process.exitcode) for process in ranks))
"""


def test_every_collective_is_right_and_one_that_is_not_shows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RANKS, str(tmp_path / "meeting")],
        env=environment, timeout=300, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]

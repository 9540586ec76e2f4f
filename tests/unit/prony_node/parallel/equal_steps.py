"""Some steps of a workload, by one process or by several over the same samples: the parameters that come out.

Started as a script by the test, once a number of processes: SIZE, PORT, the file to write and the cases. It imports
torch once and then becomes all of them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import torch
import torch.distributed.fsdp
from torch import Tensor

from prony_node.backends.torch.model import replicas_of
from prony_node.backends.torch.step import Step
from prony_node.contract.machine import Machine
from prony_node.parallel.place import RankPosition
from prony_node.parallel.replicas import Ranks
from prony_node.workloads import build_task, find_workload

CPU = torch.device("cpu")
EACH = 4  # samples of a rank
STEPS = 3  # besides the first ones, which `prepare` takes
SMALL = {"gpt-tiny": {"size": "tiny", "sequence": 16}, "wideresnet": {"size": "tiny", "image_size": 16}}
SAME = {"device": "cpu", "precision": "fp64", "optimizer": "sgd"}


def parameters_after(name: str, requested: dict[str, Any], rank: int, size: int) -> dict[str, Tensor]:
    """The steps of one rank of so many, each on its share of the batches; every parameter whole."""
    workload = find_workload(name)
    settings = workload.effective({**SAME, **SMALL[name], **requested}, Machine("cpu", None, 1))
    task = build_task(workload, settings)
    step = Step(task, settings, CPU, replicas_of(settings, CPU))
    step.finish_model()
    generator = torch.Generator().manual_seed(7)
    whole = [step.place(task.sample(generator, batch_of(requested))) for _ in range(1 + STEPS)]
    mine = [tuple(tensor.chunk(size)[rank] for tensor in batch) for batch in whole]
    step.prepare(mine[0])
    for batch in mine[1:]:
        step(batch)
    return {name: full(parameter).clone() for name, parameter in step.model.named_parameters()}


def batch_of(requested: dict[str, Any]) -> int:
    """Samples of one update: those of all ranks."""
    pieces, devices = requested.get("grad_accumulation", 1), requested.get("devices", 1)
    return int(requested["batch_size"] * pieces * devices)


def full(parameter: Tensor) -> Tensor:
    whole: Tensor = parameter.detach()
    return whole.full_tensor() if hasattr(whole, "full_tensor") else whole


def main(rank: int, size: int, port: str, out: str, cases: list[tuple[str, dict[str, Any]]]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    ranks = Ranks(RankPosition(rank, size, rank, size))
    ranks.start(CPU, 60.0, True)
    found = [parameters_after(name, requested, rank, size) for name, requested in cases]
    if rank == 0:
        torch.save(found, out)
    ranks.end()


def fork_all(size: int, port: str, out: str, cases: list[tuple[str, dict[str, Any]]]) -> int:
    """A process for each rank, none of which imports anything again; 0 when all went well."""
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            try:
                main(rank, size, port, out, cases)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    return max(os.waitpid(child, 0)[1] for child in children)


if __name__ == "__main__":
    sys.exit(fork_all(int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])) != 0)

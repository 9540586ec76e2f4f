"""Some steps of the tiny gpt by one process, and by several that split it: how far their parameters lie apart.

Started as a script by the test, once for all cases: the file to write and the cases. The processes are forked, so that
torch is imported once.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from prony_node.backends.torch.model import replicas_of
from prony_node.backends.torch.step import Step
from prony_node.contract.machine import Machine
from prony_node.parallel import split  # noqa: F401  before the fork: it takes seconds to import
from prony_node.parallel.replicas import Replicas
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.language_split import Stage, part_of, whole_name

CPU = torch.device("cpu")
SAMPLES = 16  # of one update, whoever makes it
STEPS = 3  # besides the first ones, which `prepare` takes
SAME = {"device": "cpu", "precision": "fp64", "optimizer": "sgd", "fused": "off", "sequence": 16}


def steps_of(requested: Mapping[str, Any], replica: int) -> Step:
    """A step that was taken a few times, each on this replica's share of the batches."""
    workload = find_workload("gpt-tiny")
    replicas, pieces = int(requested.get("dp", 1)), int(requested.get("grad_accumulation", 1))
    asked = workload.parse({**SAME, **requested, "batch_size": SAMPLES // replicas // pieces})
    settings = workload.effective(asked, Machine("cpu", None, 1))
    task = build_task(workload, settings)
    step = Step(task, settings, CPU, replicas_of(settings, CPU, task.split))
    step.finish_model()
    generator = torch.Generator().manual_seed(7)
    batches = [tuple(tensor.chunk(replicas)[replica] for tensor in task.sample(generator, SAMPLES)) for _ in range(4)]
    step.held_out_loss(batches[0])
    with step.kernels():
        step.prepare(batches[0])
        for batch in batches[1 : 1 + STEPS]:
            step(batch)
    return step


def distance(step: Step, alone: dict[str, Tensor], place: int, devices: int) -> float:
    """The largest between this rank's parameters and one process's."""
    stages = [module for module in step.model.modules() if isinstance(module, Stage)]
    worst = 0.0
    for stage in stages:
        for name, parameter in stage.named_parameters():
            whole = whole_name(name, stage.first_layer)
            expected = part_of(whole, alone[whole], place, devices)
            found = parameter.detach()
            if isinstance(found, DTensor):  # in parts over the replicas too: all of them, in the order of devices
                found = found.full_tensor()
                parts = [part_of(whole, alone[whole], at, devices) for at in range(devices)]
                side = 1 if whole.endswith(("out.weight", "down.weight")) else 0
                expected = torch.cat(parts, side) if found.shape != expected.shape else expected
            assert found.shape == expected.shape
            assert found.dtype is torch.float64
            worst = max(worst, float((found - expected).abs().max()))
    return worst


def replicas_tie(step: Step) -> Replicas:
    assert isinstance(step.tied, Replicas)
    return step.tied


def rank_main(rank: int, folder: str, cases: list[dict[str, Any]], alone: tuple[dict[str, Tensor], float]) -> None:
    torch.set_num_threads(1)
    for number, requested in enumerate(cases):
        size, devices = int(requested["devices"]), int(requested.get("tp", 1))
        if rank >= size:
            continue
        dist.init_process_group("gloo", init_method=f"file://{folder}/{number}", rank=rank, world_size=size)
        step = steps_of(requested, rank // (devices * int(requested.get("pp", 1))))
        apart = distance(step, alone[0], rank % devices, devices)
        sent = replicas_tie(step).wire(step.model)
        found = {"apart": apart, "loss": float(step.last_loss()), "sent": sent.bytes_sent, "how": sent.how}
        (Path(folder) / f"{number}-{rank}.json").write_text(json.dumps(found))
        dist.destroy_process_group()


def main(out: str, cases: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    single = steps_of({}, 0)
    alone = {name: parameter.detach() for name, parameter in single.model.named_parameters()}, float(single.last_loss())
    forked = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        most = max(int(requested["devices"]) for requested in cases)
        ranks = [forked.Process(target=rank_main, args=(rank, folder, cases, alone)) for rank in range(most)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        found = [
            [json.loads((Path(folder) / f"{number}-{rank}.json").read_text()) for rank in range(int(one["devices"]))]
            for number, one in enumerate(cases)
        ]
    Path(out).write_text(json.dumps({"loss": alone[1], "cases": found}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

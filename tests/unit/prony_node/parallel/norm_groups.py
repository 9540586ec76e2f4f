"""Whose samples the batch norms of each rank see: started as a script by the test, with SIZE, PORT and a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from prony_node.parallel.place import RankPosition
from prony_node.parallel.replicas import Ranks, Replicas

CPU = torch.device("cpu")
SPANS = (2, 4, "synced")


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.ModuleDict({"norm": nn.BatchNorm2d(4)}), nn.BatchNorm2d(4))


def seen_with(span: int | str) -> list[list[int]]:
    """The ranks whose samples each batch norm of this rank takes its statistics from."""
    model = Replicas({"devices": dist.get_world_size(), "batch_norm": span}, CPU).prepare_model(network())
    norms = [module for module in model.modules() if isinstance(module, nn.SyncBatchNorm)]
    return [dist.get_process_group_ranks(norm.process_group or dist.group.WORLD) for norm in norms]


def main(rank: int, size: int, port: str, out: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = Ranks(RankPosition(rank, size, rank, size))
    ranks.start(CPU, 60.0, True)
    told = ranks.gathered({str(span): seen_with(span) for span in SPANS})
    if ranks.first:
        Path(out).write_text(json.dumps(told))
    ranks.end()


if __name__ == "__main__":
    size, port, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    children = []
    for rank in range(size):
        if (child := os.fork()) == 0:
            main(rank, size, port, out)
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitpid(child, 0)[1] for child in children) != 0)

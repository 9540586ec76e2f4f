"""Batch norms over pairs of four processes that share one device: started as a script by the test, with a port.

Gloo carries the exchange, since NCCL takes a device once; torch's SyncBatchNorm takes both. Fails where a rank's
answer or gradient is not that of one batch norm over the samples of its pair.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from torch import nn

from prony_node.parallel.place import RankPosition
from prony_node.parallel.replicas import Ranks, Replicas

RANKS, SPAN, EACH = 4, 2, 3


def both_passes(model: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The answer, and the gradient of what came in."""
    images = images.clone().requires_grad_()
    answer = model(images)
    weights = torch.linspace(-1, 1, answer[0].numel(), device=images.device).view_as(answer[0])
    (answer * weights).square().sum().backward()
    assert images.grad is not None
    return answer.detach(), images.grad


def one_rank(rank: int, device: torch.device) -> None:
    ranks = Ranks(RankPosition(rank, RANKS, rank, RANKS))
    ranks.start(device, 60.0, exchanging=False)
    torch.manual_seed(0)
    with device:
        plain = nn.BatchNorm2d(5, dtype=torch.float64)
        samples = torch.arange(1, RANKS * EACH + 1).view(-1, 1, 1, 1)  # each with another variance
        images = samples * torch.randn(RANKS * EACH, 5, 4, 4, dtype=torch.float64)
    synced = Replicas({"devices": RANKS, "batch_norm": SPAN}, device).prepare_model(nn.Sequential(plain))
    assert isinstance(synced[0], nn.SyncBatchNorm)
    first = rank // SPAN * SPAN * EACH  # sample of its pair
    of_pair = both_passes(nn.BatchNorm2d(5, dtype=torch.float64, device=device), images[first : first + SPAN * EACH])
    own = slice(rank * EACH - first, (rank + 1) * EACH - first)
    for found, expected in zip(both_passes(synced, images[rank * EACH : (rank + 1) * EACH]), of_pair, strict=True):
        torch.testing.assert_close(found, expected[own], rtol=1e-9, atol=1e-9)
    ranks.end()


if __name__ == "__main__":
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    if len(sys.argv) > 2:
        one_rank(int(sys.argv[2]), torch.device("cuda", 0))
    else:
        others = [subprocess.Popen([sys.executable, __file__, sys.argv[1], str(rank)]) for rank in range(RANKS)]
        sys.exit(max(other.wait() for other in others))

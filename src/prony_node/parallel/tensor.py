"""Tensor parallel with torch's DTensor: what each device holds of a matrix, and a loss over a shared vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.utils import parametrize


def share(module: nn.Module, styles: Mapping[str, ParallelStyle], mesh: DeviceMesh) -> None:
    """Leave each device its part of these matrices, by the path of their modules."""
    parallelize_module(module, mesh, dict(styles), src_data_rank=None)  # None: each cuts its own, nothing is sent


class AsDTensor(nn.Module):
    """A device's part of a matrix as it is kept, plain, and as it is used, a DTensor."""

    def __init__(self, mesh: DeviceMesh, placements: Any) -> None:
        super().__init__()
        self.mesh, self.placements = mesh, placements

    def forward(self, part: Tensor) -> Tensor:
        return DTensor.from_local(part, self.mesh, self.placements, run_check=False)


def keep_plain(module: nn.Module) -> None:
    """Keep every shared matrix as a plain tensor, for DDP and fused optimizers, which take no DTensor beside others."""
    for part in list(module.modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                form = AsDTensor(parameter.device_mesh, parameter.placements)
                own = parameter.to_local().detach().clone()  # so that the memory of the whole goes back
                part.register_parameter(name, nn.Parameter(own))
                parametrize.register_parametrization(part, name, form, unsafe=True)


def vocabulary_logits(states: Tensor, weight: Tensor) -> DTensor:
    """Each device's part of the logits; `weight` is shared by rows, one a token of the vocabulary."""
    assert isinstance(weight, DTensor)
    everywhere = DTensor.from_local(states, weight.device_mesh, [Replicate()], run_check=False)
    logits: Any = F.linear(everywhere, weight)
    assert isinstance(logits, DTensor)
    return logits


def vocabulary_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy over logits that no device has all of.

    Inside torch's `loss_parallel`, entered around forward and backward alike, none is sent them all either.
    """
    assert isinstance(logits, DTensor)
    everywhere = DTensor.from_local(targets, logits.device_mesh, [Replicate()], run_check=False)
    loss = F.cross_entropy(logits, everywhere)
    assert isinstance(loss, DTensor)
    return loss.full_tensor()

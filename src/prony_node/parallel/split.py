"""A model that is split over devices: stages of a pipeline, layers shared by columns, and replicas of that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel

from prony_node.contract.mesh import arrangement
from prony_node.contract.settings import Value
from prony_node.parallel.counting import Counting
from prony_node.parallel.mesh import Share, line_of, open_mesh
from prony_node.parallel.pipeline import Pipeline, refuse_older_torch
from prony_node.parallel.replicas import Replicas, blocks_of
from prony_node.parallel.wire import Wire

# What stages hand on in, by precision: autocast's own in bf16, since the residual stream is cast.
MESSAGE = {"bf16": torch.bfloat16, "bf16-pure": torch.bfloat16, "fp64": torch.float64}
Cutting = Callable[[nn.Module, Share], list[nn.Module]]


class Split(Replicas):
    """How this rank's step is tied to those that hold the rest of its model, and to those of other replicas."""

    def __init__(self, settings: dict[str, Value], device: torch.device, cut: Cutting) -> None:
        super().__init__(settings, device)
        self._cut = cut
        self.shape = arrangement(settings, dist.get_world_size())
        self.mesh = open_mesh(self.shape, device)
        self.sharded = self.split = True
        self.staged = self.shape.pp > 1
        self.all_pieces = self._all_pieces if self.staged else None
        self.schedule = str(settings.get("schedule", "1f1b"))
        self.message = MESSAGE.get(str(settings["precision"]), torch.float32)
        self.loss = torch.float64 if settings["precision"] == "fp64" else torch.float32
        self.pipeline: Pipeline | None = None
        self._counted: Counting | None = None

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """This rank's part of a model without values, with its values."""
        stages, count = [0], 1
        if self.staged:
            refuse_older_torch()
            self.line = line_of(self.mesh)
            stages, count = self.line.indices(self.schedule), self.line.stages(self.schedule)
        shared = self.mesh["tp"] if self.shape.tp > 1 else None
        own = self._cut(model, Share(tuple(stages), count, shared, self.device, plain=not self.in_parts))
        return nn.ModuleList(own) if self.staged else own[0]

    def around(self) -> AbstractContextManager[Any]:
        """Around forward and backward passes: no device is sent all logits."""
        return loss_parallel() if self.shape.tp > 1 else nullcontext()

    def wrap(self, loss: nn.Module) -> Callable[..., Tensor]:
        """The loss of a batch on every rank of a replica; ties stages or the whole to those of other replicas."""
        model: Any = loss.model
        stages: list[Any] = list(model) if self.staged else [model]
        if self.settings["compile"] != "off":
            for block in [block for stage in stages for block in blocks_of(stage)]:
                block.compile(mode=str(self.settings["compile"]), dynamic=False)
        if not self.staged:
            self._wrapped = self._tied(loss)
            wrapped: Callable[..., Tensor] = self._wrapped
            return wrapped
        for stage in stages:
            stage.precision = self.precision
        tied = [self._tied(stage) for stage in stages]
        self.pipeline = Pipeline(self.line, self.schedule, stages, tied, self.device)
        return self._loss_of_stages

    def _tied(self, module: nn.Module) -> nn.Module:
        return self.tie(module, self.mesh["dp"]) if self.shape.dp > 1 else module

    def before_piece(self, last: bool) -> None:
        if self.shape.dp > 1:
            super().before_piece(last)

    def _all_pieces(self, batch: tuple[Tensor, ...], pieces: int) -> Tensor | None:
        """Forward and backward of all micro-batches; the mean loss, on the rank that has the last stage."""
        assert self.pipeline is not None
        tokens, targets = batch
        if not self.pipeline.ready:
            self.pipeline.prepare(tokens, pieces, self.message, self.loss)
        return self.pipeline.train(tokens, targets)

    def _loss_of_stages(self, tokens: Tensor, targets: Tensor) -> Tensor:
        assert self.pipeline is not None
        return self.told(self.pipeline.forward(tokens, targets, self.message))

    def told(self, loss: Tensor | None) -> Tensor:
        """The loss that the rank with the last stage has, on all of its replica."""
        if self.pipeline is None:
            assert loss is not None
            return loss
        return self.pipeline.tell(loss, lambda: torch.empty((), dtype=self.loss, device=self.device))

    def gathered(self) -> list[nn.Module]:
        return super().gathered() if self.pipeline is None else self.pipeline.modules

    def counting(self) -> AbstractContextManager[Any]:
        """Around one of the first steps, layers that are compiled aside: those would be compiled anew for it."""
        self._counted = Counting() if self.settings["compile"] == "off" else None
        return self._counted or nullcontext()

    def wire(self, model: nn.Module) -> Wire:
        """What this device sent in the step that was counted."""
        if self._counted is None:
            return Wire(None, "exchanges inside of compiled layers are not counted; compile=off counts them")
        return self._counted.wire()

    def part(self) -> bool:
        """No rank can go by itself: each has a part of the model alone."""
        return False

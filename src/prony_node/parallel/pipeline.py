"""Pipeline parallel with torch's schedules: stages of a model on several devices, micro-batches one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor

from prony_node.contract.errors import RequestError
from prony_node.parallel.mesh import Line


def refuse_older_torch() -> None:
    """A schedule must not join what the last stage answers: one number a micro-batch, which cannot be joined."""
    if "return_outputs" not in inspect.signature(Schedule1F1B.step).parameters:
        raise RequestError(f"pp needs the pipelines of torch 2.10 or newer; this is torch {torch.__version__}")


class Cut(Protocol):
    """What a stage of a model has besides being a module."""

    last: bool

    @property
    def tied(self) -> nn.Parameter | None: ...

    def message(self, samples: int, dtype: torch.dtype) -> Tensor: ...


class Pipeline:
    """This device's stages, as they are cut (`cuts`) and as they are called (`modules`, wrapped for data parallel)."""

    def __init__(
        self,
        line: Line,
        schedule: str,
        cuts: Sequence[Cut],
        modules: Sequence[nn.Module],
        device: torch.device,
    ) -> None:
        self.line, self.schedule, self.device = line, schedule, device
        self.cuts = cuts
        self.modules = list(modules)
        self.count = line.stages(schedule)
        self.has_last = any(cut.last for cut in self.cuts)
        self._runner: Any = None

    @property
    def ready(self) -> bool:
        return self._runner is not None

    def prepare(self, tokens: Tensor, micro_batches: int, message: torch.dtype, loss: torch.dtype) -> None:
        """Make the schedule for whole batches of this shape; `message` is what stages hand on in."""
        samples = len(tokens) // micro_batches
        between = self.cuts[0].message(samples, message)
        first = torch.empty_like(tokens[:samples], device="meta")
        result = torch.empty((), dtype=loss, device="meta")
        stages = [
            PipelineStage(
                module,
                index,
                self.count,
                self.device,
                input_args=first if index == 0 else between,
                output_args=result if index == self.count - 1 else between,
                group=self.line.group,
            )
            for index, module in zip(self.line.indices(self.schedule), self.modules, strict=True)
        ]
        # The mean over micro-batches: torch would divide every gradient, one by one, once they are summed.
        options: dict[str, Any] = {"loss_fn": lambda loss, _: loss / micro_batches, "scale_grads": False}
        if self.schedule == "interleaved":
            self._runner = ScheduleInterleaved1F1B(stages, micro_batches, **options)
        else:
            self._runner = Schedule1F1B(stages[0], micro_batches, **options)

    def train(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward of every micro-batch; answers the mean loss on the device that has the last stage."""
        losses: list[Tensor] = []
        inputs = (tokens,) if self.line.place == 0 else ()
        if self.has_last:
            # The loss is the last stage's answer, so that its weights are used inside the module that wraps them.
            self._runner.step(*inputs, targets=targets, target=targets, losses=losses, return_outputs=False)
        else:
            self._runner.step(*inputs, return_outputs=False)
        self._sum_tied()
        return torch.stack([loss.detach() for loss in losses]).sum() if losses else None

    def _sum_tied(self) -> None:
        """Gradients of a weight that the first stage and the last each have a copy of: one weight, so one gradient."""
        if self.line.ends is None:
            return
        for cut in self.cuts:
            if cut.tied is None or cut.tied.grad is None:
                continue
            gradient = cut.tied.grad
            dist.all_reduce(gradient.to_local() if isinstance(gradient, DTensor) else gradient, group=self.line.ends)

    def forward(self, tokens: Tensor, targets: Tensor | None, message: torch.dtype) -> Tensor | None:
        """One batch of any size through all stages, without gradients; what the last stage answers, where it is."""
        own = dict(zip(self.line.indices(self.schedule), self.modules, strict=True))
        answer: Tensor | None = None
        with torch.no_grad():
            for index in range(self.count):
                if index not in own:
                    continue
                x = tokens
                if index > 0:
                    shape = self.cuts[0].message(len(tokens), message).shape
                    x = torch.empty(shape, dtype=message, device=self.device)
                    dist.recv(x, group=self.line.group, group_src=(index - 1) % self.line.devices)
                if index == self.count - 1:
                    answer = own[index](x, targets)
                else:
                    dist.send(own[index](x), group=self.line.group, group_dst=(index + 1) % self.line.devices)
        return answer

    def tell(self, value: Tensor | None, like: Callable[[], Tensor]) -> Tensor:
        """What the device with the last stage knows, on every device of the pipeline; `like` has its shape."""
        told = value.contiguous() if value is not None else like()
        dist.broadcast(told, group=self.line.group, group_src=(self.count - 1) % self.line.devices)
        return told

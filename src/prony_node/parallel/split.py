"""A model split over devices: their mesh, tensor and pipeline parallel, and the bytes sent, counted on a step."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import AXES, STAGES_A_DEVICE, Arrangement, Value, Wire, arrangement
from prony_node.parallel.replicas import Replicas, blocks_of


def open_mesh(shape: Arrangement, device: torch.device) -> DeviceMesh:
    """All devices of the run, by axis."""
    return init_device_mesh(device.type, (shape.dp, shape.pp, shape.tp), mesh_dim_names=AXES)


@dataclass(frozen=True)
class ModelShare:
    """What of a model is on this device."""

    stages: tuple[int, ...]  # of `count`, by their number in order
    count: int
    tensor: DeviceMesh | None  # the devices that share each of these stages, if there are others
    device: torch.device
    plain: bool  # parameters are kept as plain tensors


@dataclass(frozen=True)
class PipelineLine:
    """The devices that a pipeline goes through, and this one's place among them."""

    group: dist.ProcessGroup
    ends: dist.ProcessGroup | None  # the first device and the last, on those two
    place: int
    devices: int

    def indices(self, schedule: str) -> list[int]:
        """The stages that this device computes, one in so many as there are devices: the next is on the next device."""
        return [self.place + turn * self.devices for turn in range(STAGES_A_DEVICE[schedule])]

    def stages(self, schedule: str) -> int:
        return self.devices * STAGES_A_DEVICE[schedule]


def line_of(mesh: DeviceMesh) -> PipelineLine:
    """This device's pipeline; every device of the mesh must ask, since groups are made by all together."""
    own = mesh["pp"]
    place, devices = own.get_local_rank(), own.size()
    ends: dist.ProcessGroup | None = own.get_group()
    if devices > 2:
        pairs = mesh.mesh[:, [0, -1], :].transpose(1, 2).reshape(-1, 2).tolist()
        made, _ = dist.new_subgroups_by_enumeration(pairs)
        ends = made if place in (0, devices - 1) else None
    return PipelineLine(own.get_group(), ends, place, devices)


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


def refuse_older_torch() -> None:
    """A schedule must not join what the last stage answers: one number a micro-batch, which cannot be joined."""
    if "return_outputs" not in inspect.signature(Schedule1F1B.step).parameters:
        raise RequestError(f"pp needs the pipelines of torch 2.10 or newer; this is torch {torch.__version__}")


class ModelStage(Protocol):
    """What a stage of a model has besides being a module."""

    last: bool

    @property
    def tied(self) -> nn.Parameter | None: ...

    def message(self, samples: int, dtype: torch.dtype) -> Tensor: ...


class Pipeline:
    """This device's stages, as they are cut (`cuts`) and as they are called (`modules`, wrapped for data parallel)."""

    def __init__(
        self,
        line: PipelineLine,
        schedule: str,
        cuts: Sequence[ModelStage],
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

    def from_last_stage(self, value: Tensor | None, like: Callable[[], Tensor]) -> Tensor:
        """What the device with the last stage knows, on every device of the pipeline; `like` has its shape."""
        sent = value.contiguous() if value is not None else like()
        dist.broadcast(sent, group=self.line.group, group_src=(self.count - 1) % self.line.devices)
        return sent


# What a device sends of a collective over n devices, in bytes of the larger side of it, by a ring's definition.
RING: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
}
# By torch's names: what it is, and where in its arguments the larger side and the group are.
COLLECTIVES = {
    "_c10d_functional::all_reduce": ("all-reduce", 0, 2),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", None, 2),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", 0, 3),
    "c10d::allreduce_": ("all-reduce", 0, 1),
    "c10d::_allgather_base_": ("all-gather", 0, 2),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", 1, 2),
    "c10d::send": ("send", 0, 1),
}


class Counting(TorchDispatchMode):
    """Entered around one step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes_sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # until it has become exchanges and plain operations
        known = COLLECTIVES.get(func._schema.name)
        if known is not None:
            self._count(*known, args)
        return func(*args, **(kwargs or {}))

    def _count(self, kind: str, side: int | None, group: int, args: Any) -> None:
        devices = _size(args[group])
        size = args[1] * _bytes(args[0]) if side is None else _bytes(args[side])  # gathered: so many times one's own
        self.calls[kind] += 1
        self.bytes_sent += RING[kind](devices) * size

    def wire(self) -> Wire:
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(self.calls.items()))
        return Wire(self.bytes_sent, f"counted on a step of rank 0, collectives by the definition of a ring: {said}")


def _bytes(value: Any) -> int:
    """Of a tensor, or of several."""
    return value.numel() * value.element_size() if isinstance(value, Tensor) else sum(map(_bytes, value))


def _size(group: Any) -> int:
    """Devices of a group, which is named, or in a box."""
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group).size()
    return dist.ProcessGroup.unbox(group).size()


# What stages hand on in, by precision: autocast's own in bf16, since the residual stream is cast.
MESSAGE = {"bf16": torch.bfloat16, "bf16-pure": torch.bfloat16, "fp64": torch.float64}
Cutting = Callable[[nn.Module, ModelShare], list[nn.Module]]


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
        own = self._cut(model, ModelShare(tuple(stages), count, shared, self.device, plain=not self.in_parts))
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
        return self.loss_of_replica(self.pipeline.forward(tokens, targets, self.message))

    def loss_of_replica(self, loss: Tensor | None) -> Tensor:
        """The loss that the rank with the last stage has, on all of its replica."""
        if self.pipeline is None:
            assert loss is not None
            return loss
        return self.pipeline.from_last_stage(loss, lambda: torch.empty((), dtype=self.loss, device=self.device))

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

    def stop_exchanging(self) -> bool:
        """No rank can go by itself: each has a part of the model alone."""
        return False

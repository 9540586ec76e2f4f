"""Replicas of a model that exchange gradients, whole (DDP) or sharded (FSDP), and what ranks tell each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value, Wire, form_of
from prony_node.parallel.place import RankPosition

# This rank among the others: what they tell each other, outside of the measured steps.


T = TypeVar("T")


class RankWord:
    """A number of the first rank, on its way to all."""

    def __init__(self, flag: torch.Tensor, work: dist.Work) -> None:
        self._flag, self._work = flag, work

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self) -> int:
        """The number, once it is here."""
        self._work.wait()
        return int(self._flag.item())


class Ranks:
    """All ranks of a run. One alone has no process group, and each of these is then for nothing."""

    def __init__(self, place: RankPosition | None = None) -> None:
        self.place = place or RankPosition()
        self.backend: str | None = None  # of what the steps exchange
        self.timeout_s: float | None = None
        self._control: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        return self.place.size

    @property
    def first(self) -> bool:
        return self.place.rank == 0

    def start(self, device: torch.device, timeout_s: float, exchanging: bool) -> None:
        """Meet the others. What they say to each other goes by a group on the host, apart from what steps exchange."""
        if self.size == 1:
            return
        os.environ["RANK"] = str(self.place.rank)  # counted by node, where the launcher counts by arrival
        backend = dist.get_default_backend_for_device(device) if exchanging else "gloo"
        dist.init_process_group(
            backend,
            rank=self.place.rank,
            world_size=self.size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if exchanging and device.type != "cpu" else None,
        )
        self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.backend, self.timeout_s = backend if exchanging else None, timeout_s

    def barrier(self) -> None:
        if self._control is not None:
            dist.barrier(self._control)

    @contextmanager
    def one_of_a_node_first(self) -> Iterator[None]:
        """Each node's first rank does this before its others: what it writes, they find."""
        if self.place.local_rank > 0:
            self.barrier()
        yield
        if self.place.local_rank == 0:
            self.barrier()

    def from_first(self, thing: T) -> T:
        """What the first rank has, for all."""
        if self._control is None:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def gathered(self, thing: T) -> list[T]:
        """What every rank has, in their order; for the first one alone, the others get nothing."""
        if self._control is None:
            return [thing]
        things: list[T] | None = [thing] * self.size if self.first else None
        dist.gather_object(thing, things, dst=0, group=self._control)
        return things or []

    def tell(self, number: int) -> RankWord:
        """Begin to bring the first rank's number to all, and do not wait for it."""
        assert self._control is not None
        flag = torch.tensor([number], dtype=torch.int64)
        work = dist.broadcast(flag, src=0, group=self._control, async_op=True)
        assert work is not None
        return RankWord(flag, work)

    def end(self) -> None:
        if self._control is not None:
            dist.destroy_process_group()
            self._control = None


# Replicas of a model that exchange gradients: whole (DDP) or sharded (FSDP), and the bytes that they send.


def tensor_bytes(model: nn.Module) -> int:
    """Of everything that has a gradient, in whole."""
    return sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)


def all_reduce(model: nn.Module, ranks: int) -> Wire:
    """Gradients averaged: by a ring each device sends 2 (n - 1) / n of them."""
    size = float(tensor_bytes(model))
    return Wire(
        2 * (ranks - 1) / ranks * size,
        f"ring all-reduce, 2 (n - 1) / n of the gradients' {size:,.0f} bytes with n = {ranks}; the traffic of "
        "synchronised batch norms is not counted",
    )


def gather_and_scatter(model: nn.Module, ranks: int, pieces: int, reshard: bool) -> Wire:
    """Weights in parts: gathered for each forward pass, again for each backward pass where they were given up."""
    share, size = (ranks - 1) / ranks, float(tensor_bytes(model))
    gathers = pieces * (2 if reshard else 1)
    return Wire(
        share * size * (gathers + 1),
        f"{gathers} ring all-gather of the weights and one ring reduce-scatter of the gradients, each (n - 1) / n of "
        f"{size:,.0f} bytes with n = {ranks}",
    )


class Replicas:
    """How this rank's step is tied to those of the others."""

    def __init__(self, settings: dict[str, Value], device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.form = form_of(settings)
        self.in_parts = self.form == "fsdp"  # of the weights each rank has a part
        self.sharded = self.in_parts  # no rank can compute by itself
        self.split = False  # a model is more than one rank
        self.precision: Callable[[], AbstractContextManager[Any]] = nullcontext  # of the step
        # All micro-batches of a step, forward and backward, where they do not go one after another.
        self.all_pieces: Callable[[tuple[Tensor, ...], int], Tensor | None] | None = None
        self._wrapped: Any = None
        self._learns_graph = bool(settings.get("static_graph"))

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Before it has its final shape: batch norms over several ranks."""
        span = self.settings.get("batch_norm", "local")
        if span == "local":
            return model
        refuse_other_norms(model, span)
        group = None
        if isinstance(span, int) and span < dist.get_world_size():
            group, _ = dist.new_subgroups(span)
        synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
        return synced

    def wrap(self, loss: nn.Module) -> Callable[..., Tensor]:
        """The loss of a batch as a module whose backward pass exchanges gradients."""
        self._wrapped = self.tie(loss, None)
        wrapped: Callable[..., Tensor] = self._wrapped
        return wrapped

    def tie(self, module: nn.Module, mesh: DeviceMesh | None) -> nn.Module:
        """A module whose backward pass exchanges gradients with the same one on these devices, or on all."""
        if self.in_parts:
            return shard(module, self.device, mesh, reshard=bool(self.settings["reshard"]))
        return DistributedDataParallel(
            module,
            device_ids=None if self.device.type == "cpu" else [self.device.index],
            process_group=None if mesh is None else mesh.get_group(),
            bucket_cap_mb=int(self.settings["bucket_mb"]),
            static_graph=bool(self.settings["static_graph"]),
            gradient_as_bucket_view=True,
            broadcast_buffers=False,  # statistics of batch norms stay each rank's own; none is used in training
        )

    def before_piece(self, last: bool) -> None:
        """Gradients are exchanged with the last micro-batch of a step, and not at all with sync=off."""
        exchange = last and bool(self.settings.get("sync", True))
        if self._learns_graph:  # DDP takes it down in an exchange: the very first, whose means a later one leaves alone
            exchange, self._learns_graph = True, False
        if self.in_parts:
            self._wrapped.set_requires_gradient_sync(exchange)
        else:
            self._wrapped.require_backward_grad_sync = exchange

    def around(self) -> AbstractContextManager[Any]:
        """Entered once, around everything that the step does."""
        return nullcontext()

    def rest(self) -> None:
        """After a forward pass alone: gathered weights are given up, since an optimizer takes those that are there."""
        if self.in_parts:
            from torch.distributed.fsdp import FSDPModule

            for module in self.gathered():
                for part in module.modules():
                    if isinstance(part, FSDPModule):
                        part.reshard()

    def gathered(self) -> list[nn.Module]:
        """What holds weights in parts."""
        return [self._wrapped]

    def counting(self) -> AbstractContextManager[Any]:
        """Entered around one of the first steps, to count what is exchanged."""
        return nullcontext()

    def loss_of_replica(self, loss: Tensor | None) -> Tensor:
        """The loss of this rank, where it has one, or of the rank that has it."""
        assert loss is not None
        return loss

    def stop_exchanging(self) -> bool:
        """From here on every rank trains alone; False where none can: its weights or its statistics need others."""
        self.settings = {**self.settings, "sync": False}
        return not self.sharded and self.settings.get("batch_norm", "local") == "local"

    def wire(self, model: nn.Module) -> Wire:
        """What this device sends in a step."""
        ranks, pieces = dist.get_world_size(), int(self.settings.get("grad_accumulation", 1))
        if self.sharded:
            return gather_and_scatter(model, ranks, pieces, bool(self.settings["reshard"]))
        if not self.settings["sync"]:
            return Wire(0.0, "sync=off: no gradients are exchanged; synchronised batch norms are not counted")
        return all_reduce(model, ranks)


def refuse_other_norms(model: nn.Module, span: Value) -> None:
    """Torch puts a norm of its own in the place of each, so that what another kind does besides would be lost."""
    found = {type(module) for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)}
    if not found:
        raise RequestError(f"batch_norm={span} has no meaning for this model, which has no batch norm; leave it out")
    others = sorted(kind.__name__ for kind in found - {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d})
    if others:
        raise RequestError(
            f"batch_norm={span} is not possible for this model: torch's SyncBatchNorm would replace its "
            f"{' and '.join(others)} and leave out what that does besides, such as an activation; use batch_norm=local"
        )


def shard(module: nn.Module, device: torch.device, mesh: DeviceMesh | None, *, reshard: bool) -> nn.Module:
    """FSDP2: each block of the model is gathered when its turn comes, what lies outside of blocks at the start."""
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),))
    for block in blocks_of(module):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    sharded: nn.Module = fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    return sharded


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The members of a model's outermost lists: the layers of a transformer, the stages of a convolutional network."""
    found: list[nn.Module] = []
    for child in module.children():
        listed = isinstance(module, nn.ModuleList | nn.Sequential) and not isinstance(child, nn.ModuleList)
        found += [child] if listed and any(True for _ in child.parameters()) else blocks_of(child)
    return found

"""The devices of a run as torch's mesh: replicas, each a pipeline of devices that share every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from prony_node.contract.mesh import AXES, STAGES_A_DEVICE, Arrangement


def open_mesh(shape: Arrangement, device: torch.device) -> DeviceMesh:
    """All devices of the run, by axis."""
    return init_device_mesh(device.type, (shape.dp, shape.pp, shape.tp), mesh_dim_names=AXES)


@dataclass(frozen=True)
class Share:
    """What of a model is on this device."""

    stages: tuple[int, ...]  # of `count`, by their number in order
    count: int
    tensor: DeviceMesh | None  # the devices that share each of these stages, if there are others
    device: torch.device
    plain: bool  # parameters are kept as plain tensors


@dataclass(frozen=True)
class Line:
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


def line_of(mesh: DeviceMesh) -> Line:
    """This device's pipeline; every device of the mesh must ask, since groups are made by all together."""
    own = mesh["pp"]
    place, devices = own.get_local_rank(), own.size()
    ends: dist.ProcessGroup | None = own.get_group()
    if devices > 2:
        pairs = mesh.mesh[:, [0, -1], :].transpose(1, 2).reshape(-1, 2).tolist()
        made, _ = dist.new_subgroups_by_enumeration(pairs)
        ends = made if place in (0, devices - 1) else None
    return Line(own.get_group(), ends, place, devices)

"""A site: how runs are started somewhere, as its file says it. Nothing here reads or asks anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("local", "slurm", "kubernetes")
ENGINES = ("apptainer", "podman", "docker", "none")
VENDORS = ("nvidia", "amd", "intel", "none")
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Partition:
    """Nodes that are alike, and how to ask for them: a partition of Slurm, or nodes that a selector finds."""

    name: str
    accelerators: int | None = None  # of a node; None: nobody has said, and the scheduler is asked
    accelerator: str = ""  # what they are, for a person
    gres: str = "gpu"  # how Slurm calls them, with a type where it has several: gpu:a100
    vendor: str = "nvidia"
    arch: str | None = None  # amd64 or arm64
    nodes: int | None = None  # at most, for a job
    max_time_s: float | None = None
    cores_per_device: int | None = None
    memory: str | None = None  # of a node, as Slurm takes it: 0 is all of it
    exclusive: bool = False
    options: tuple[str, ...] = ()  # further options of sbatch
    resource: str = "nvidia.com/gpu"  # how Kubernetes calls an accelerator
    selector: dict[str, str] = field(default_factory=dict)  # labels of the nodes, for Kubernetes
    tolerations: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Container:
    """What the node program runs in."""

    engine: str = "none"
    images: dict[str, str] = field(default_factory=dict)  # by architecture, or one under ""
    binds: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    pull_secret: str | None = None

    def image(self, arch: str | None) -> str | None:
        """The image for nodes of this architecture."""
        return self.images.get(arch or "") or self.images.get("")


@dataclass(frozen=True)
class Limits:
    """What a site's owner would not want exceeded."""

    jobs: int = 20  # in the queue at once
    nodes: int | None = None  # of a job
    time_s: float | None = None  # of a job


@dataclass(frozen=True)
class Environment:
    """What holds around the node program on a compute node."""

    modules: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    interface: str | None = None  # of the network between nodes, such as ib0
    host_suffix: str = ""  # what a host's name gets to mean its address on that network


@dataclass(frozen=True)
class Site:
    """One site."""

    name: str
    kind: str
    partitions: dict[str, Partition] = field(default_factory=dict)
    partition: str = ""  # the one that is taken when nobody names one
    about: str = ""
    source: str = ""
    account: str | None = None
    python: str = "python3"  # on the compute nodes, with torch
    runs: Path | None = None  # where run folders lie, seen from here and from the nodes
    limits: Limits = field(default_factory=Limits)
    environment: Environment = field(default_factory=Environment)
    container: Container = field(default_factory=Container)
    options: tuple[str, ...] = ()
    signal_before_s: int = 60  # before the time limit, so that the supervisor writes its record
    retry_node_failure: int = 0
    namespace: str = "default"  # of Kubernetes, as the following ones
    context: str | None = None
    volume: str | None = None  # a claim that holds run folders; without one they come back through the log
    shared_memory: str = "8Gi"
    queue: str | None = None  # of Kueue
    carbon: str | None = None  # g/kWh, as PRONY_CARBON_G_PER_KWH takes it
    price: str | None = None  # of a kWh, as PRONY_PRICE_PER_KWH takes it
    text: str = ""  # its file
    found_as: str = "local"  # the name or the path by which a later command finds the file again

    @property
    def shares_files(self) -> bool:
        """Whether a run folder on a node is one here."""
        return self.kind != "kubernetes" or self.volume is not None


LOCAL = Site("local", "local", {"": Partition("", accelerators=0, nodes=1)}, python="")

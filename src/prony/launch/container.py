"""What stands before the node program so that it runs in a container: Apptainer, Podman or Docker."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from prony.launch.site import Partition, Site
from prony_node.contract.errors import RequestError

# How each engine gives a container the devices of a vendor. Nothing here needs more rights than the devices do.
APPTAINER_GPUS = {"nvidia": ("--nv",), "amd": ("--rocm",), "intel": ("--bind", "/dev/dri")}
RUN_GPUS = {
    ("podman", "nvidia"): ("--device", "nvidia.com/gpu=all"),  # the container device interface
    ("docker", "nvidia"): ("--gpus", "all"),
    ("podman", "amd"): ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "keep-groups"),
    ("docker", "amd"): ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"),
    ("podman", "intel"): ("--device", "/dev/dri", "--group-add", "keep-groups"),
    ("docker", "intel"): ("--device", "/dev/dri", "--group-add", "video"),
}
# Apptainer takes the environment over; the others are told which variables, each by its name alone: a value is then
# never part of a command line. One that is not set outside is not set inside.
PASSED_ON = (
    "USER", "LOGNAME",  # torch asks for a name, and the image may know none for this user
    "PYTHONPATH", "PYTHONSAFEPATH", "PRONY_JOB", "PRONY_RUN_LOG", "PRONY_NODE_RANK", "PRONY_RENDEZVOUS",
    "PRONY_ADDRESS", "PRONY_CARBON_G_PER_KWH", "PRONY_PRICE_PER_KWH", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "OMP_NUM_THREADS",
    "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NODEID", "SLURM_JOB_NODELIST",
)  # fmt: skip


def container_words(site: Site, partition: Partition, paths: Sequence[str]) -> list[str]:
    """The words of the container engine, ready for bash, none where there is no engine; `paths` are seen inside too."""
    container = site.container
    if container.engine == "none":
        return []
    image = image_for(site, partition)
    binds = list(dict.fromkeys([*paths, *container.binds]))
    if container.engine == "apptainer":
        gpu = APPTAINER_GPUS.get(partition.vendor, ()) if partition.accelerators != 0 else ()
        words = ["apptainer", "exec", *gpu, *(word for path in binds for word in ("--bind", path))]
        return [shlex.quote(word) for word in (*words, *container.options, image)]
    return _run_words(site, partition, paths, binds, image)


def _run_words(site: Site, partition: Partition, paths: Sequence[str], binds: Sequence[str], image: str) -> list[str]:
    """Podman and Docker: a new container that is gone afterwards, with the network and shared memory of the node."""
    engine = site.container.engine
    words = [engine, "run", "--rm", "--network=host", "--ipc=host", "--security-opt", "label=disable"]
    words += ["--entrypoint", ""]  # an image of a vendor has one that prints a page
    if partition.accelerators != 0:
        words += RUN_GPUS.get((engine, partition.vendor), ())
    for path in binds:
        words += ["--volume", path if ":" in path else f"{path}:{path}"]
    words += ["--workdir", paths[-1]]
    for name in dict.fromkeys([*PASSED_ON, *sorted(site.environment.variables)]):
        words += ["--env", name]
    ready = [shlex.quote(word) for word in words]
    # Files must be the user's. Root inside is the user outside for a rootless Podman; Docker has to be told.
    ready += ["--user", '"$(id -u):$(id -g)"'] if engine == "docker" else ["--user", "0:0"]
    return [*ready, *(shlex.quote(word) for word in (*site.container.options, image))]


def image_for(site: Site, partition: Partition) -> str:
    """The image for nodes of a partition."""
    image = site.container.image(partition.arch)
    if image is None:
        has = ", ".join(sorted(site.container.images)) or "none"
        raise RequestError(
            f"{site.name} has no image for {partition.arch or 'nodes whose architecture it does not say'} "
            f"(it has {has}); `container: image:` names one with Python and torch"
        )
    return image

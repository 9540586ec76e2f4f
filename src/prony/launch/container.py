"""What stands before the node program so that it runs in a container."""

from __future__ import annotations

from collections.abc import Sequence

from prony.launch.site import Partition, Site
from prony_node.contract.errors import RequestError

GPU_FLAGS = {"nvidia": ("--nv",), "amd": ("--rocm",)}


def container_words(site: Site, partition: Partition, paths: Sequence[str]) -> list[str]:
    """The words of the container engine, empty where there is none; `paths` are seen inside as outside."""
    container = site.container
    if container.engine == "none":
        return []
    image = container.image(partition.arch)
    if image is None:
        has = ", ".join(sorted(container.images))
        raise RequestError(
            f"{site.name} has no image for {partition.arch or 'nodes whose architecture it does not say'}; it has {has}"
        )
    if container.engine != "apptainer":
        raise RequestError(f"engine {container.engine} is not offered under {site.kind}; use apptainer")
    gpu = GPU_FLAGS.get(partition.vendor, ()) if partition.accelerators != 0 else ()
    binds = [word for path in (*paths, *container.binds) for word in ("--bind", path)]
    return ["apptainer", "exec", *gpu, *binds, *container.options, image]

"""For which architectures an image is, asked of wherever it lies, so that a wrong one is caught before submission."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from prony.launch.container import image_for
from prony.launch.job import Job
from prony.launch.protocol import Warn
from prony.launch.registry import registry_architectures
from prony.launch.site import ARCHITECTURES, Partition, Site
from prony_node.contract.errors import RequestError

PATIENCE_S = 60.0
# The header of a SIF file: 32 bytes to start it with, "SIF_MAGIC", a version, and the architecture as two digits.
SIF_MAGIC, SIF_MAGIC_AT, SIF_ARCH_AT = b"SIF_MAGIC", 32, 45
SIF_ARCHITECTURES = {
    b"01": "386",
    b"02": "amd64",
    b"03": "arm",
    b"04": "arm64",
    b"06": "ppc64le",
    b"11": "s390x",
    b"12": "riscv64",
}


class Unknown(Exception):
    """It could not be found out; the sentence says why."""


def architectures_of(image: str, engine: str) -> tuple[str, ...]:
    """The architectures of an image, in the words of container images."""
    if engine == "apptainer" and "://" not in image:
        return (sif_architecture(Path(image)),)
    if engine in ("podman", "docker") and shutil.which(engine) is not None:
        found = _of_engine(image, engine)
        if found is not None:
            return found
    return registry_architectures(image.removeprefix("docker://"), Unknown)


def sif_architecture(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise Unknown(f"{path} cannot be read here: {error.strerror or error}") from error
    if head[SIF_MAGIC_AT : SIF_MAGIC_AT + len(SIF_MAGIC)] != SIF_MAGIC:
        raise Unknown(f"{path} is no SIF file")
    code = head[SIF_ARCH_AT : SIF_ARCH_AT + 2]
    return SIF_ARCHITECTURES.get(code, f"architecture {code.decode(errors='replace')}")


def _of_engine(image: str, engine: str) -> tuple[str, ...] | None:
    """What the engine's own store says; None where the image is not in it."""
    for words, read in (
        (("manifest", "inspect", image), _of_index),
        (("image", "inspect", image), _of_inspection),
    ):
        if words[0] == "manifest" and engine == "docker":  # it would ask the registry, with its own credentials
            continue
        try:
            done = subprocess.run(
                [engine, *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=False
            )
            if done.returncode == 0 and (found := read(done.stdout)):
                return found
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None


def _of_index(text: bytes) -> tuple[str, ...]:
    try:
        entries = json.loads(text).get("manifests") or []
        return tuple(sorted({str(entry["platform"]["architecture"]) for entry in entries} - {"unknown"}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _of_inspection(text: bytes) -> tuple[str, ...]:
    try:
        return tuple(str(entry["Architecture"]) for entry in json.loads(text) if entry.get("Architecture"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def check_image(job: Job, warn: Warn, find: Callable[[str, str], tuple[str, ...]] = architectures_of) -> None:
    """Refuse a job whose image cannot run on its nodes; where that cannot be found out, a warning says so."""
    site, partition = job.site, job.partition
    if site.container.engine == "none" and site.kind != "kubernetes":
        return
    wanted = partition.arch or _here(site)
    image = image_for(site, partition)
    if wanted is None:
        where = f"{site.name}, partition {partition.name}," if partition.name else site.name
        warn(f"whether {image} fits could not be checked: `arch` in the site file says what the nodes of {where} are")
        return
    try:
        found = find(image, site.container.engine)
    except Unknown as error:
        warn(f"whether {image} is for {wanted} could not be checked: {error}")
        return
    if wanted not in found:
        raise RequestError(mismatch(image, found, site, partition, wanted))


def mismatch(image: str, found: tuple[str, ...], site: Site, partition: Partition, wanted: str) -> str:
    where = f"the nodes of {site.name}" + (f", partition {partition.name}," if partition.name else "")
    return (
        f"the image {image} is for {' and '.join(found) or 'no known architecture'}, and {where} are {wanted}; "
        f"`container: image:` names one for each architecture, `prony container build` makes them"
    )


def _here(site: Site) -> str | None:
    """The architecture of this machine, where that is the one that runs the job."""
    import platform

    return ARCHITECTURES.get(platform.machine()) if site.kind == "local" else None

"""`prony container`: build the images that sites run the node program in, and check one before it is used."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.asking import find_partition
from prony.sites.image import Build, Unknown, architectures_of, build_commands, mismatch, read_pins
from prony.sites.script import container_words, image_for
from prony.sites.site import ARCHITECTURES, Partition, Site, find_site
from prony_node.contract.errors import RequestError, unknown

ENGINES = ("podman", "docker", "apptainer")
QUESTION = "import platform, torch; print(platform.machine(), platform.python_version(), torch.__version__)"
PATIENCE_S = 600.0

container = typer.Typer(help="Build and check the images that sites use.", no_args_is_help=True)


@container.command("build")
def build(
    vendor: Annotated[str, typer.Argument(help="Whose devices: cpu, nvidia or rocm.")] = "cpu",
    engine: Annotated[str, typer.Option(help="podman, docker or apptainer.")] = "podman",
    arch: Annotated[list[str] | None, typer.Option(help="amd64 or arm64; may be given twice. All, if not.")] = None,
    tag: Annotated[str | None, typer.Option(help="Name of the image, or of the .sif file.")] = None,
    base: Annotated[str | None, typer.Option(help="Another base image; {arch} stands for the architecture.")] = None,
    torch: Annotated[str | None, typer.Option(help="keep the base's, none, or pip.")] = None,
    checkout: Annotated[Path | None, typer.Option(help="Where Prony's source lies.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be called.")] = False,
) -> None:
    """Build an image from containers/.

    For every architecture that its base has, or for those that are named.
    """
    if engine not in ENGINES:
        raise unknown("container engine", engine, ENGINES)
    root = checkout or Path(__file__).parents[3]
    wanted = tuple(_architecture(one) for one in arch or ())
    asked = Build(engine, vendor, wanted, tag or f"prony-{vendor}", base, torch)
    commands = build_commands(asked, read_pins(root), _architecture(platform.machine()))
    if engine == "podman" and not dry_run:
        _forget_list(asked.tag)
    for command in commands:
        print(f"prony: {shlex.join(command)}", file=sys.stderr)
        if dry_run:
            continue
        if shutil.which(command[0]) is None:
            raise RequestError(f"{command[0]} is not installed here; --engine names another")
        code = subprocess.run(command, cwd=root, check=False).returncode
        if code != 0:
            raise RequestError(f"{command[0]} could not build the image: exit code {code}; what it said is above")


def _forget_list(tag: str) -> None:
    """Podman adds to a list of images that is there, and takes the oldest of an architecture when it is used."""
    if shutil.which("podman") is None:
        return
    if subprocess.run(["podman", "manifest", "exists", tag], check=False, capture_output=True).returncode == 0:
        print(f"prony: {shlex.join(['podman', 'manifest', 'rm', tag])}", file=sys.stderr)
        subprocess.run(["podman", "manifest", "rm", tag], check=False, capture_output=True)


@container.command("check")
def check(
    site: Annotated[str, typer.Argument(help="A site, by name or file.")],
    partition: Annotated[str | None, typer.Option(help="One of its partitions; all, if none is named.")] = None,
) -> None:
    """Compare a site's images with its nodes; try those that run here."""
    found = find_site(site)
    if found.container.engine == "none" and found.kind != "kubernetes":
        raise RequestError(f"{found.name} uses no container; `container: engine:` in its file names one")
    chosen = [find_partition(found, name) for name in ([partition] if partition is not None else found.partitions)]
    bad = [one for one in chosen if not _check(found, one)]
    raise typer.Exit(1 if bad else 0)


def _check(site: Site, partition: Partition) -> bool:
    title = partition.name or site.name
    image = image_for(site, partition)
    wanted = partition.arch or (_architecture(platform.machine()) if site.kind == "local" else None)
    try:
        found = architectures_of(image, site.container.engine)
    except Unknown as error:
        print(f"unknown  {title}: whether {image} fits could not be found out: {error}")
        return True
    if wanted is None:
        print(f"unknown  {title}: {image} is for {' and '.join(found)}; the site file does not say `arch`")
        return True
    if wanted not in found:
        print(f"fail     {title}: {mismatch(image, found, site, partition, wanted)}")
        return False
    print(f"pass     {title}: {image} is for {' and '.join(found)}, as the nodes are")
    return _try(site, partition, title)


def _try(site: Site, partition: Partition, title: str) -> bool:
    """Python and torch of an image, where this machine can run it."""
    words = container_words(site, partition, [str(Path.cwd())])
    if not words or shutil.which(site.container.engine) is None or partition.arch not in (
        None, _architecture(platform.machine()),
    ):  # fmt: skip
        print(f"unknown  {title}: the image cannot be run here; `prony site check` runs it there")
        return True
    line = " ".join([*words, shlex.quote(site.python or "python3"), "-c", shlex.quote(QUESTION)])
    try:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"fail     {title}: the image did not answer within {PATIENCE_S:g} s")
        return False
    if done.returncode != 0:
        said = last_words(done.stderr) or f"exit code {done.returncode}"
        print(f"fail     {title}: Python with torch does not start in it: {said}")
        return False
    machine, python, torch = [*done.stdout.split(), "?", "?", "?"][:3]
    print(f"pass     {title}: Python {python} with torch {torch} starts in it, on {machine}")
    return True


def last_words(stderr: str) -> str:
    """The end of what an engine said, without its colours: Apptainer's last line alone may be an exit status."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", stderr).splitlines()]
    return "; ".join([line for line in lines if line][-3:])[-400:]


def _architecture(name: str) -> str:
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    return ARCHITECTURES[name]

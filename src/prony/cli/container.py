"""`prony container`: build the images that sites run the node program in, and check one before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.present import report

container = typer.Typer(help="Build and check the images that sites use.", no_args_is_help=True)


@container.command("build")
def build(
    vendor: Annotated[str, typer.Argument(help="Devices of the image: cpu, nvidia or rocm.")] = "cpu",
    engine: Annotated[str, typer.Option(help="Engine: podman, docker or apptainer.")] = "podman",
    arch: Annotated[list[str] | None, typer.Option(help="amd64 or arm64; may be repeated (default: all).")] = None,
    tag: Annotated[str | None, typer.Option(help="Name of the image, or of the .sif file.")] = None,
    base: Annotated[str | None, typer.Option(help="Base image; {arch} stands for the architecture.")] = None,
    torch: Annotated[str | None, typer.Option(help="Source of torch: keep (the base's), none or pip.")] = None,
    checkout: Annotated[Path | None, typer.Option(help="Folder of Prony's source.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the commands; run nothing.")] = False,
) -> None:
    """Build an image from containers/.

    For every architecture that its base has, or for those that are named.
    """
    api.build_image(
        vendor, engine=engine, architectures=arch or (), tag=tag, base=base, torch=torch, checkout=checkout,
        dry_run=dry_run, progress=report,
    )  # fmt: skip


@container.command("check")
def check(
    site: Annotated[str, typer.Argument(help="Name of a site, or a site file.")],
    partition: Annotated[str | None, typer.Option(help="Partition to check (default: all).")] = None,
) -> None:
    """Compare a site's images with its nodes; try those that run here."""
    failed = False
    for one in api.check_images(site, partition=partition, progress=report):
        print(f"{one.level:<9}{one.name}: {one.message}")
        failed |= one.level == "fail"
    raise typer.Exit(1 if failed else 0)

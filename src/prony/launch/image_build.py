"""Building images: what is called, from the pins of containers/pins.yaml. Nothing here calls anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prony.launch.section import Section, read_section
from prony.launch.site import ARCHITECTURES
from prony_node.contract.errors import RequestError, unknown

PINS, CONTAINERFILE, DEFINITION = "containers/pins.yaml", "containers/Containerfile", "containers/prony.def"


@dataclass(frozen=True)
class Pins:
    """What images for a vendor's devices are made from."""

    base: str
    architectures: tuple[str, ...]
    torch: str


@dataclass(frozen=True)
class Build:
    """One image that someone wants."""

    engine: str
    vendor: str
    architectures: tuple[str, ...]  # empty: all that there are
    tag: str
    base: str | None = None  # instead of the pinned one; {arch} stands for the architecture
    torch: str | None = None


def read_pins(checkout: Path) -> dict[str, Pins]:
    """The pins of a checkout."""
    path = checkout / PINS
    try:
        section = read_section(path.read_text(encoding="utf-8"), str(path), "file of pins")
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read ({error.strerror}): images are built from a checkout of Prony; --checkout names it"
        ) from error
    return {name: _pins(inner) for name, inner in section.sections_of_all().items()}


def _pins(section: Section) -> Pins:
    pins = Pins(
        section.text("base") or "", section.texts("architectures", "|".join(ARCHITECTURES)), section.text("torch") or ""
    )
    section.done()
    return pins


def build_commands(build: Build, pins: dict[str, Pins], here: str) -> list[list[str]]:
    """What is called, in the root of the checkout; `here` is this machine's architecture."""
    if build.vendor not in pins:
        raise unknown("vendor of images", build.vendor, pins)
    pin = pins[build.vendor]
    wanted = build.architectures or ((here,) if build.engine == "apptainer" else pin.architectures)
    for arch in wanted:
        if arch not in pin.architectures and build.base is None:
            has = " and ".join(pin.architectures)
            raise RequestError(f"there is no {build.vendor} base for {arch}, only for {has}; --base names another")
    torch = build.torch or pin.torch
    bases = {arch: (build.base or pin.base).replace("{arch}", arch) for arch in wanted}
    if build.engine == "apptainer":
        return _apptainer(build, bases, torch, here)
    return [_engine(build, arch, base, torch) for arch, base in bases.items()]


def _engine(build: Build, arch: str, base: str, torch: str) -> list[str]:
    """Podman adds the image to the list of that name, so that one name stands for all; Docker gets a name for each."""
    start = ["podman", "build"] if build.engine == "podman" else ["docker", "buildx", "build", "--load"]
    name = ["--manifest", build.tag] if build.engine == "podman" else ["--tag", f"{build.tag}-{arch}"]
    arguments = ["--build-arg", f"BASE={base}", "--build-arg", f"TORCH={torch}"]
    return [*start, "--platform", f"linux/{arch}", *name, *arguments, "--file", CONTAINERFILE, "."]


def _apptainer(build: Build, bases: dict[str, str], torch: str, here: str) -> list[list[str]]:
    other: Sequence[str] = [arch for arch in bases if arch != here]
    if other:
        raise RequestError(
            f"Apptainer builds for the machine it runs on: this one is {here}, and an image for {other[0]} is wanted; "
            f"build it on such a machine"
        )
    file = build.tag if build.tag.endswith(".sif") else f"{build.tag}.sif"
    return [
        ["apptainer", "build", "--build-arg", f"BASE={bases[here]}", "--build-arg", f"TORCH={torch}", file, DEFINITION]
    ]

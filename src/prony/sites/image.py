"""Container images: building them, and for which architectures they are."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prony.sites.job import Job
from prony.sites.protocol import Warn
from prony.sites.script import container_words, image_for
from prony.sites.site import ARCHITECTURES, Partition, Section, Site, read_section
from prony.sites.site_check import Finding
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.typed import JsonObject

REGISTRY_PATIENCE_S = 20.0
MOST_BYTES = 4 << 20
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")


def split_image(image: str) -> tuple[str, str, str]:
    """Host, name and tag or digest of an image, as Docker reads it: a first part with a dot or a port is a host."""
    name, _, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    host = first if slash and ("." in first or ":" in first or first == "localhost") else "registry-1.docker.io"
    path = rest if host == first else name
    if host == "docker.io":
        host = "registry-1.docker.io"
    path, _, tag = path.partition(":")
    if host == "registry-1.docker.io" and "/" not in path:
        path = f"library/{path}"
    return host, path, digest or tag or "latest"


def registry_architectures(image: str, problem: type[Exception]) -> tuple[str, ...]:
    """The architectures of an image in a registry that anyone may read; `problem` where it does not say."""
    host, name, reference = split_image(image)
    plain = host.partition(":")[0] in ("localhost", "127.0.0.1")
    registry = _Registry(f"{'http' if plain else 'https'}://{host}/v2/{urllib.parse.quote(name)}")
    try:
        manifest = registry.get(f"manifests/{urllib.parse.quote(reference)}", (*INDEXES, *MANIFESTS))
        entries = manifest.get("manifests")
        if isinstance(entries, list):
            found = {str((entry.get("platform") or {}).get("architecture")) for entry in entries}
        else:
            config = registry.get(f"blobs/{manifest['config']['digest']}", ("*/*",))
            found = {str(config.get("architecture"))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        words = " ".join(str(getattr(reason, "strerror", None) or reason).split())
        raise problem(f"{host} did not say: {words[:200]}") from error
    return tuple(sorted(found - {"unknown", "None"}))


class _Registry:
    """One repository of a registry, read without an account."""

    def __init__(self, base: str) -> None:
        self._base, self._token = base, ""

    def get(self, path: str, accept: tuple[str, ...]) -> JsonObject:
        try:
            return self._get(path, accept)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate") or ""
            if error.code != 401 or self._token or not challenge.lower().startswith("bearer "):
                raise
            self._token = _anonymous_token(challenge)
            return self._get(path, accept)

    def _get(self, path: str, accept: tuple[str, ...]) -> JsonObject:
        request = urllib.request.Request(f"{self._base}/{path}", headers={"Accept": ", ".join(accept)})
        if self._token:
            # Not a usual header: it must not follow a redirect to where the bytes lie.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return _read(request)


def _anonymous_token(challenge: str) -> str:
    """A token for whoever asks, from where the registry sends us."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", "")
    if not realm.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        raise ValueError(f"it wants a token from {realm!r}")
    document = _read(urllib.request.Request(f"{realm}?{urllib.parse.urlencode(fields)}"))
    return str(document.get("token") or document.get("access_token") or "")


def _read(request: urllib.request.Request) -> JsonObject:
    with urllib.request.urlopen(request, timeout=REGISTRY_PATIENCE_S) as answer:
        document = json.loads(answer.read(MOST_BYTES))
    if not isinstance(document, dict):
        raise ValueError("its answer is no document")
    return document


ENGINE_PATIENCE_S = 60.0
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
                [engine, *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=ENGINE_PATIENCE_S, check=False
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
    return ARCHITECTURES.get(platform.machine()) if site.kind == "local" else None


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


ENGINES = ("podman", "docker", "apptainer")
QUESTION = "import platform, torch; print(platform.machine(), platform.python_version(), torch.__version__)"
PATIENCE_S = 600.0


def build_image(build: Build, checkout: Path, note: Callable[[str], None], dry_run: bool = False) -> None:
    """Build an image; `note` is told each command, and a dry run calls none of them."""
    if build.engine not in ENGINES:
        raise unknown("container engine", build.engine, ENGINES)
    commands = build_commands(build, read_pins(checkout), architecture(platform.machine()))
    if build.engine == "podman" and not dry_run:
        _forget_list(build.tag, note)
    for command in commands:
        note(shlex.join(command))
        if dry_run:
            continue
        if shutil.which(command[0]) is None:
            raise RequestError(f"{command[0]} is not installed here; name another engine")
        code = subprocess.run(command, cwd=checkout, check=False).returncode
        if code != 0:
            raise RequestError(f"{command[0]} could not build the image: exit code {code}; what it said is above")


def _forget_list(tag: str, note: Callable[[str], None]) -> None:
    """Podman adds to a list of images that is there, and takes the oldest of an architecture when it is used."""
    if shutil.which("podman") is None:
        return
    if subprocess.run(["podman", "manifest", "exists", tag], check=False, capture_output=True).returncode == 0:
        note(shlex.join(["podman", "manifest", "rm", tag]))
        subprocess.run(["podman", "manifest", "rm", tag], check=False, capture_output=True)


def check_images(site: Site, partition: Partition) -> Iterator[Finding]:
    """Whether the image of a partition fits its nodes, and whether Python with torch starts in it here."""
    title = partition.name or site.name
    image = image_for(site, partition)
    wanted = partition.arch or (architecture(platform.machine()) if site.kind == "local" else None)
    try:
        found = architectures_of(image, site.container.engine)
    except Unknown as error:
        yield Finding(title, "unknown", f"whether {image} fits could not be found out: {error}")
        return
    if wanted is None:
        yield Finding(title, "unknown", f"{image} is for {' and '.join(found)}; the site file does not say `arch`")
        return
    if wanted not in found:
        yield Finding(title, "fail", mismatch(image, found, site, partition, wanted))
        return
    yield Finding(title, "pass", f"{image} is for {' and '.join(found)}, as the nodes are")
    yield _try(site, partition, title)


def _try(site: Site, partition: Partition, title: str) -> Finding:
    """Python and torch of an image, where this machine can run it."""
    words = container_words(site, partition, [str(Path.cwd())])
    if not words or shutil.which(site.container.engine) is None or partition.arch not in (
        None, architecture(platform.machine()),
    ):  # fmt: skip
        return Finding(title, "unknown", "the image cannot be run here; `prony site check` runs it there")
    line = " ".join([*words, shlex.quote(site.python or "python3"), "-c", shlex.quote(QUESTION)])
    try:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return Finding(title, "fail", f"the image did not answer within {PATIENCE_S:g} s")
    if done.returncode != 0:
        said = last_words(done.stderr) or f"exit code {done.returncode}"
        return Finding(title, "fail", f"Python with torch does not start in it: {said}")
    machine, python, torch = [*done.stdout.split(), "?", "?", "?"][:3]
    return Finding(title, "pass", f"Python {python} with torch {torch} starts in it, on {machine}")


def last_words(stderr: str) -> str:
    """The end of what an engine said, without its colours: Apptainer's last line alone may be an exit status."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", stderr).splitlines()]
    return "; ".join([line for line in lines if line][-3:])[-400:]


def architecture(name: str) -> str:
    """The architecture as container images name it."""
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    return ARCHITECTURES[name]

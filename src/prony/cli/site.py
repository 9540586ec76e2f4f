"""`prony site`: list, show, add and check the places where runs are started."""

# ruff: noqa: RUF009  optional() makes dataclass fields

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from prony.cli.asking import find_partition
from prony.cli.present import print_rendered, warn
from prony.engine.site import site_root
from prony.sites.collect import read_log
from prony.sites.job import ENDED_STATE, Job, load_own, new_job
from prony.sites.jobs import Jobs
from prony.sites.kubernetes_answers import DetectedPartition, detect_partitions
from prony.sites.protocol import NoAnswer
from prony.sites.site import (
    NAME,
    Partition,
    Site,
    dump_site,
    example_sites,
    find_site,
    parse_site,
    read_site,
    sites_folder,
    user_sites,
)
from prony.sites.site_check import Finding, judge, judge_limits
from prony_node.contract.errors import EXIT_FAILED, RequestError
from prony_node.contract.typed import encode, optional

CHECK_S = 300.0  # at most: importing torch from a busy file system takes minutes
site = typer.Typer(no_args_is_help=True, help="List, show, add and check the places where runs are started.")


@site.command("list")
def list_() -> None:
    """List your sites, and the examples that Prony ships."""
    own = user_sites()
    print("local  this machine")
    for name, path in own.items():
        try:
            found = read_site(path)
            print(f"{name}  {found.kind}, {', '.join(found.partitions) or 'no partition'}  {path}")
        except RequestError as error:
            print(f"{name}  {error}")
    for name, text in example_sites().items():
        if name not in own:
            print(f"{name}  an example: {parse_site(text, name, name).about}")


@site.command("show")
def show(name: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Check and print a site's file, such as an example to copy."""
    found = find_site(name)
    print(found.text or "kind: local\n", end="")


@site.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new site.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept what is detected; ask nothing.")] = False,
) -> None:
    """Write a site file: detect what can be detected, ask for the rest."""
    import re

    if not re.fullmatch(NAME, name) or name == "local":
        raise RequestError(f"{name!r} is no name for a site: letters, digits, dots and dashes, and not `local`")
    path = sites_folder() / f"{name}.yaml"
    if path.exists():
        raise RequestError(f"{path} is there already; change it, or remove it first")
    text = dump_site(encode(_ask_file(yes)))
    parse_site(text, str(path), name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror or error}") from error
    print(text, end="")
    print(f"written to {path}; `prony site check {name}` tries it out", file=sys.stderr)


Question = Callable[[str, str], str]  # a question and the default of its answer


@dataclass(frozen=True)
class SlurmPartition:
    """What Slurm says of a partition, in the words of a site file."""

    accelerators: int | None = optional()
    accelerator: str | None = optional()
    gres: str | None = optional()
    arch: str | None = optional()
    nodes: int | None = optional()
    max_time: str | None = optional()
    cores_per_device: int | None = optional()


@dataclass(frozen=True)
class Namespace:
    namespace: str


@dataclass(frozen=True)
class Image:
    image: str


@dataclass(frozen=True)
class SiteFile:
    """A new site file."""

    kind: str
    partition: str | None = optional()
    account: str | None = optional()
    partitions: Mapping[str, SlurmPartition | DetectedPartition] | None = optional()
    kubernetes: Namespace | None = optional()
    container: Image | None = optional()
    python: str | None = optional()
    runs: str | None = optional()


def _ask_file(yes: bool) -> SiteFile:
    """The answers, each with what was detected as its default."""

    def ask(question: str, default: str) -> str:
        if yes:
            return default
        try:
            return str(typer.prompt(question, default=default, err=True)).strip()
        except typer.Abort as error:
            if isinstance(error.__context__, EOFError):
                print(file=sys.stderr)  # after the question
                raise RequestError("no answer to a question came; --yes takes what is detected") from None
            raise

    kinds = [kind for kind, program in (("slurm", "sbatch"), ("kubernetes", "kubectl")) if shutil.which(program)]
    kind = ask("kind of site (local, slurm, kubernetes)", (kinds or ["local"])[0])
    made = SiteFile(kind)
    if kind == "slurm":
        made = _slurm_file(ask)
    if kind == "kubernetes":
        made = _kubernetes_file(ask)
    python = ask("the Python on the compute nodes that has torch", "python3")
    runs = ask("where run folders go, seen from here and from the nodes", str(Path.cwd() / "runs"))
    return replace(made, python=python, runs=runs or None)


def _slurm_file(ask: Question) -> SiteFile:
    from prony.sites.slurm import detect_cluster

    try:
        cluster = detect_cluster(warn)
    except NoAnswer as error:
        warn(f"{error}; nothing could be detected")
        return SiteFile("slurm", partition=ask("partition", ""))
    if not cluster.partitions:
        warn("sinfo lists no partition that is up")
        return SiteFile("slurm", partition=ask("partition", ""))
    print(f"partitions: {', '.join(cluster.partitions)}", file=sys.stderr)
    chosen = ask("partition", cluster.default)
    account = ask("account (empty: your default one)", cluster.account or "")
    partitions = {name: _stated(one) for name, one in cluster.partitions.items()}
    known = partitions if chosen in partitions else None
    return SiteFile("slurm", partition=chosen, account=account or None, partitions=known)


def _stated(found: Partition) -> SlurmPartition:
    return SlurmPartition(
        accelerators=found.accelerators,
        accelerator=found.accelerator or None,
        gres=found.gres if found.accelerators else None,
        arch=found.arch,
        nodes=found.nodes,
        max_time=_time(found.max_time_s) if found.max_time_s else None,
        cores_per_device=found.cores_per_device,
    )


def _time(seconds: float) -> str:
    for unit, unit_s in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds % unit_s == 0.0:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def _kubernetes_file(ask: Question) -> SiteFile:
    from prony.sites.kubernetes_api import Api, ApiProblem

    namespace = ask("namespace", "default")
    image = ask("image with Python, torch and bash", "")
    made = SiteFile("kubernetes", kubernetes=Namespace(namespace), container=Image(image) if image else None)
    try:
        partitions = detect_partitions(Api(None, namespace).nodes())
    except (ApiProblem, RequestError) as error:
        warn(f"{error}; partitions are for you to fill in (docs/how-to/kubernetes.md)")
        return made
    return replace(made, partitions=partitions or None)


@site.command("check")
def check(
    name: Annotated[str, typer.Argument(metavar="SITE")],
    partition: Annotated[str | None, typer.Option(help="Partition to use (default: the site's).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs (default: the site's).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the job; submit nothing.")] = False,
) -> None:
    """Submit a short job that compares the site with its file."""
    found = find_site(name)
    chosen = find_partition(found, partition)
    root = site_root(found, out)
    longest_s = min(CHECK_S, chosen.max_time_s or CHECK_S, found.limits.time_s or CHECK_S)
    job = new_job(found, chosen, root, ask=("doctor",), time_s=longest_s, folder_of_work=str(Path.cwd()))
    if dry_run:
        print_rendered([job])
        return
    place = Jobs(root, warn)
    place.add([job])
    ended = _wait(place, job)
    findings = [*judge(ended, read_log(ended)), *_limits(found, chosen)]
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{finding.level:<8} {finding.name:<{width}}  {finding.message}")
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def _limits(found: Site, chosen: Partition) -> list[Finding]:
    """What a scheduler says of the partition's own limits, where it says it."""
    if found.kind != "slurm":
        return []
    from prony.sites.slurm import detect_partition

    try:
        known = detect_partition(chosen.name, warn)
    except NoAnswer as error:
        return [Finding("limits", "unknown", str(error))]
    finding = judge_limits(chosen, known) if known is not None else None
    return [finding] if finding is not None else []


def _wait(place: Jobs, job: Job) -> Job:
    """The job once it has ended; a person who tires of waiting interrupts, and it is cancelled."""
    told = ""
    try:
        while True:
            place.update()
            now = load_own(job.folder)
            if now.state == ENDED_STATE:
                return now
            if now.note and now.note != told:
                told = now.note
                print(f"prony: {told}", file=sys.stderr)
            time.sleep(1.0)
    except KeyboardInterrupt:
        place.cancel([job])
        raise

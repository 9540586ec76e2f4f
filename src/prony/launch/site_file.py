"""Site files: reading one, and checking every name and value of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace

import yaml

from prony.launch.section import Section, read_section
from prony.launch.site import (
    ARCHITECTURES,
    ENGINES,
    KINDS,
    VENDORS,
    Container,
    Environment,
    Limits,
    Partition,
    Site,
)
from prony_node.contract.cache import expand
from prony_node.contract.cost import GRAMS, parse_rate
from prony_node.contract.errors import RequestError, unknown

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
# What may stand in a line of #SBATCH: nothing that ends a line, quotes, or starts a comment.
WORD = r"[A-Za-z0-9_.,:=+@/*&|()\[\]-]{1,200}"
OPTION = rf"--?[A-Za-z][A-Za-z0-9-]*(={WORD})?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
OURS = ("PRONY_JOB", "PRONY_RUN_LOG", "PRONY_NODE_RANK", "PRONY_RENDEZVOUS", "PRONY_CONTROLLER_PID")


def parse_site(text: str, where: str, name: str) -> Site:
    """The site of a file's text."""
    section = read_section(text, where, "site")
    site = replace(_parse(section, name), text=text, found_as=name)
    section.done()
    _check(site, section)
    return site


def _parse(section: Section, name: str) -> Site:
    kind = section.choice("kind", KINDS)
    if kind is None:
        raise RequestError(f"{section.where}: a site needs a kind: {', '.join(KINDS)}")
    runs = section.text("runs", r"\S.*", "a folder")
    partitions = {key: _partition(key, inner) for key, inner in section.sections("partitions").items()}
    chosen = section.text("partition", WORD, "the name of a partition")
    if not partitions and (chosen is not None or kind != "slurm"):
        partitions = {chosen or "": Partition(chosen or "")}
    before_s = section.seconds("signal_before")
    return Site(
        name=section.text("name", NAME, "a word") or name,
        kind=kind,
        partitions=partitions,
        partition=chosen if chosen is not None else next(iter(partitions), ""),
        about=section.text("about") or "",
        source=section.text("source") or "",
        account=section.text("account", WORD, "a word"),
        python=section.text("python", r"\S.*", "a program") or "python3",
        runs=expand(os.path.expandvars(runs)) if runs else None,
        limits=_limits(section.section("limits")),
        environment=_environment(section.section("environment")),
        container=_container(section),
        options=section.texts("options", OPTION, "an option of sbatch, such as --qos=short"),
        signal_before_s=60 if before_s is None else round(before_s),
        retry_node_failure=section.count("retry_node_failure") or 0,
        carbon=section.text("carbon_g_per_kwh"),
        price=section.text("price_per_kwh"),
        **_kubernetes(section),
    )


def _partition(name: str, section: Section) -> Partition:
    if not re.fullmatch(WORD, name):
        raise RequestError(f"{section.where}: {name!r} is no name of a partition")
    arch = section.choice("arch", ARCHITECTURES)
    partition = Partition(
        name=name,
        accelerators=section.count("accelerators"),
        accelerator=section.text("accelerator") or "",
        gres=section.text("gres", r"[A-Za-z0-9_.:-]{1,100}", "a name such as gpu or gpu:a100") or "gpu",
        vendor=section.choice("vendor", VENDORS) or "nvidia",
        arch=ARCHITECTURES[arch] if arch else None,
        nodes=section.count("nodes", 1),
        max_time_s=section.seconds("max_time"),
        cores_per_device=section.count("cores_per_device", 1),
        memory=section.text("memory", r"[0-9]+[KMGT]?", "an amount such as 64G, or 0 for all"),
        exclusive=section.flag("exclusive"),
        options=section.texts("options", OPTION, "an option of sbatch, such as --constraint=a100"),
        resource=section.text("resource", r"[A-Za-z0-9_./-]{1,100}", "a name such as nvidia.com/gpu")
        or "nvidia.com/gpu",
        selector=section.mapping("selector", r"[A-Za-z0-9_./-]{1,200}", "a label"),
        tolerations=section.items("tolerations", _toleration),
    )
    section.done()
    return partition


def _toleration(section: Section) -> dict[str, str]:
    found = {name: section.text(name) for name in ("key", "operator", "value", "effect")}
    section.done()
    return {name: value for name, value in found.items() if value is not None}


def _limits(section: Section | None) -> Limits:
    if section is None:
        return Limits()
    limits = Limits(section.count("jobs", 1) or Limits.jobs, section.count("nodes", 1), section.seconds("time"))
    section.done()
    return limits


def _environment(section: Section | None) -> Environment:
    if section is None:
        return Environment()
    variables = section.mapping("variables", VARIABLE, "the name of a variable")
    for name in OURS:
        if name in variables:
            raise section.wrong("variables", f"{name} is set by Prony for each job; leave it out")
    environment = Environment(
        modules=section.texts("modules", r"[^\s-]\S*", "the name of a module"),
        variables=variables,
        interface=section.text("interface", r"[A-Za-z0-9_.,=^:-]{1,100}", "a network interface such as ib0"),
        host_suffix=section.text("host_suffix", r"[A-Za-z0-9.-]{1,100}", "letters, digits, dots and dashes") or "",
    )
    section.done()
    return environment


def _container(parent: Section) -> Container:
    section = parent.section("container")
    if section is None:
        return Container()
    images: dict[str, str] = {}
    if section.is_text("image"):
        images[""] = section.text("image", r"[^\s-].*", "an image") or ""
    else:
        given = section.mapping("image", "|".join(ARCHITECTURES), f"an architecture: {', '.join(ARCHITECTURES)}")
        images = {ARCHITECTURES[arch]: image for arch, image in given.items()}
    container = Container(
        engine=section.choice("engine", ENGINES) or "none",
        images=images,
        binds=section.texts("binds", r"[^\s-].*", "a path, or OUTSIDE:INSIDE"),
        options=section.texts("options", r"-.*", "an option of the container engine"),
        pull_secret=section.text("pull_secret", NAME, "a word"),
    )
    if container.engine != "none" and not any(images.values()):
        raise section.wrong("image", f"engine {container.engine} needs an image")
    section.done()
    return container


def _kubernetes(parent: Section) -> dict[str, str]:
    """Where a site says what only Kubernetes has."""
    section = parent.section("kubernetes")
    if section is None:
        return {}
    label = r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
    found = {name: section.text(name, label, "a name as Kubernetes takes it") for name in ("namespace", "volume")}
    found["queue"] = section.text("queue", label, "a name as Kubernetes takes it")
    found["context"] = section.text("context")
    found["shared_memory"] = section.text("shared_memory", r"[0-9]+(Ki|Mi|Gi|Ti)?", "an amount such as 8Gi")
    section.done()
    return {name: value for name, value in found.items() if value is not None}


def _check(site: Site, section: Section) -> None:
    if site.kind == "slurm" and not site.partitions:
        raise RequestError(f"{section.where}: a Slurm site needs a partition; `sinfo -s` lists them")
    if site.partition not in site.partitions:
        raise section.wrong("partition", f"partition {site.partition!r} is none of {', '.join(site.partitions)}")
    if site.carbon is not None:
        parse_rate(site.carbon, f"{section.where}: carbon_g_per_kwh", GRAMS)
    if site.price is not None:
        parse_rate(site.price, f"{section.where}: price_per_kwh")
    if "\n" in site.python or "\0" in site.python:
        raise section.wrong("python", "python is one program")


def choose_partition(site: Site, name: str | None) -> Partition:
    """The partition that a person named, or the site's own."""
    wanted = site.partition if name is None else name
    if wanted not in site.partitions:
        raise unknown(f"partition of {site.name}", wanted, site.partitions)
    return site.partitions[wanted]


def dump_site(values: Mapping[str, object]) -> str:
    """A site file's text."""
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)

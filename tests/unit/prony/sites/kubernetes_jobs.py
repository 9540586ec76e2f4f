"""Jobs of a Kubernetes site whose names and times are fixed."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

from prony.sites.job import BlockRun, Job, new_job
from prony.sites.site import Site, choose_partition, read_site
from prony_node.contract import Plan, Trial

SITE = """\
kind: kubernetes
partition: a100
partitions:
  a100:
    accelerators: 8
    arch: x86_64
    cores_per_device: 8
    memory: 64G
    selector: {accelerator: a100}
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  gh200: {accelerators: 1, arch: aarch64, resource: nvidia.com/gh200}
  cpu: {accelerators: 0}
environment: {variables: {NCCL_DEBUG: WARN}}
container:
  pull_secret: registry
  image: {amd64: "registry.example.org/prony:cuda-amd64", arm64: "registry.example.org/prony:cuda-arm64"}
kubernetes: {namespace: lab, shared_memory: 16Gi}
"""
ANY = "kind: kubernetes\ncontainer: {image: image}\npartitions: {cpu: {accelerators: 0}}\n"

SITES = tempfile.TemporaryDirectory(prefix="prony-sites-")


def make_site(text: str = SITE, name: str = "cluster") -> Site:
    """A site whose file is there, as a job looks for it later."""
    folder = Path(SITES.name) / hashlib.sha256(text.encode()).hexdigest()[:12]
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return read_site(file)


def make_run(number: int = 0, workload: str = "gpt-tiny", **settings: int | str) -> BlockRun:
    return BlockRun(Plan(run_id=f"{workload}-20260101T000000-00000{number}", trial=Trial(workload, dict(settings))))


def make_job(
    site: Site, runs: list[BlockRun], root: Path = Path("/home/someone/runs"), partition: str | None = None,
    **fields: object,
) -> Job:  # fmt: skip
    made = new_job(site, choose_partition(site, partition), root, runs, time_s=600.0)
    named = {"id": "prony-20260101T000000-abcdef", "created": "2026-01-01T00:00:00+00:00", **fields}
    return replace(made, **named)  # type: ignore[arg-type]

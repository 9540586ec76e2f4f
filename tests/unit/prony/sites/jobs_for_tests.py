"""Jobs whose names and times are fixed, so that what is made of them can be compared to a file."""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from prony.sites.job import BlockRun, Job, new_job
from prony.sites.site import Site, choose_partition, read_site
from prony_node.contract import Plan, Trial

SLURM = """\
kind: slurm
partition: gpu
account: project1
partitions:
  gpu: {accelerators: 4, accelerator: H100, gres: "gpu:h100", cores_per_device: 16, arch: amd64, nodes: 8, max_time: 4h}
"""

SITES = tempfile.TemporaryDirectory(prefix="prony-sites-")


def make_site(text: str, name: str = "here") -> Site:
    """A site whose file is there, as a job looks for it later."""
    folder = Path(SITES.name) / hashlib.sha256(text.encode()).hexdigest()[:12]
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return read_site(file)


def make_run(number: int = 0, workload: str = "gpt-tiny", **settings: int | str) -> BlockRun:
    return BlockRun(Plan(run_id=f"{workload}-20260101T000000-00000{number}", trial=Trial(workload, dict(settings))))


def make_job(site: Site, runs: list[BlockRun], root: Path = Path("/scratch/runs"), **fields: object) -> Job:
    made = new_job(site, choose_partition(site, None), root, runs, time_s=600.0, folder_of_work="/home/someone")
    return replace(made, id="prony-20260101T000000-abcdef", created="2026-01-01T00:00:00+00:00", **fields)  # type: ignore[arg-type]


def without_hashes(text: str) -> str:
    """What was rendered, for a file to compare it to: the node program has another hash after every change."""
    return re.sub(r"\b[0-9a-f]{64}\b", "SHA256", text)

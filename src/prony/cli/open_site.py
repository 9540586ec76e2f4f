"""Finding the site that a verb names, and the roots where jobs were submitted from."""

from __future__ import annotations

import sys
from pathlib import Path

from prony.cli.execute import runs_root
from prony.launch.job import Job, find_job, job_places
from prony.launch.jobs import Jobs
from prony.launch.site import Partition, Site
from prony.launch.site_file import choose_partition
from prony.launch.site_find import read_site, user_sites
from prony_node.contract.errors import RequestError

SITE_HELP = "Where to run: a site of yours, `local`, or a site file; see `prony site list`."
ROOTS_HELP = "Where the run folders are (else $PRONY_RUNS, ./runs, and those of your sites)."


def warn(text: str) -> None:
    print(f"prony: {text}", file=sys.stderr)


def number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def find_partition(site: Site, name: str | None) -> Partition:
    """The partition, with what its file leaves out asked from the scheduler."""
    partition = choose_partition(site, name)
    if site.kind != "slurm":
        return partition
    from prony.launch.slurm_detect import fill_in

    return fill_in(partition, warn, arch=site.container.engine != "none")


def site_root(site: Site, out: Path | None) -> Path:
    """Where a site's run folders lie: --out, else what its file says, else as here."""
    return out if out is not None else (site.runs or runs_root(None))


def job_roots(where: Path | None) -> list[Path]:
    """Roots that have jobs: the one that was named, or ours and those of the user's sites."""
    if where is not None:
        return [where]
    found = [runs_root(None)]
    for path in user_sites().values():
        try:
            site = read_site(path)
        except RequestError as error:
            warn(f"{error}; its jobs are passed over")
            continue
        if site.runs is not None:
            found.append(site.runs)
    return [root for root in dict.fromkeys(root.absolute() for root in found) if job_places(root)]


def job_of(text: str, where: Path | None) -> tuple[Jobs, Job]:
    """The job that a person means, and the root it belongs to."""
    places = [Jobs(root, warn) for root in job_roots(where)]
    every = [(place, job) for place in places for job in place.all()]
    if not every:
        raise RequestError("no job was submitted from here; --runs DIR names another place")
    chosen = find_job([job for _, job in every], text)
    return next((place, job) for place, job in every if job.folder == chosen.folder)

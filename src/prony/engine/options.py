"""How a study is carried out: where its runs lie, what counts as finished, and how jobs of a site are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prony.sites.job import BLOCK
from prony.sites.site import Partition, Site
from prony_node.contract.typed import JsonObject


@dataclass(frozen=True)
class SiteOptions:
    """How the jobs of a site are made, and what is done with them."""

    partition: str | None = None  # another than the site's own
    time_s: float | None = None  # the limit of each job, and without a site of each run
    block: int | None = None  # runs that share an allocation; None: 20, of a scaling series whole repeats
    detach: bool = False  # submit, and do not wait
    dry_run: bool = False  # make the jobs, and do not submit

    @property
    def runs_per_job(self) -> int:
        return BLOCK if self.block is None else self.block


@dataclass(frozen=True)
class SiteSession:
    """A site as one command uses it."""

    site: Site
    partition: Partition
    root: Path
    block: int = BLOCK
    time_s: float | None = None
    nodes: tuple[str, ...] = ()  # each run is made once on each of these, as a job of its own


@dataclass(frozen=True)
class PlannedFile:
    """A user's own model file, as a plan carries it."""

    path: str
    sha256: str
    workload: JsonObject  # what it states: the node program writes and reads it


@dataclass(frozen=True)
class Options:
    """How a study is carried out."""

    root: Path
    retry_failed: bool = False
    share: bool = False
    energy: bool = True
    files: Mapping[str, PlannedFile] = field(default_factory=dict)  # by the name of their workload
    at_site: SiteOptions = field(default_factory=SiteOptions)
    leave_out: bool = True  # what this machine cannot do; else it is refused
    accept_other_code: bool = False  # take finished runs of other code or library versions too
    fresh: bool = False  # make every run, whatever was run before
    place: SiteSession | None = None  # where fresh runs are made as jobs; None: here, in processes of this command

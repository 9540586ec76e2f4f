"""Runs to jobs: ordered blocks, each with its time limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from prony.launch.estimate import job_time_s
from prony.launch.job import BlockRun, Job, new_job
from prony.launch.site import Partition, Site
from prony_node.contract.errors import RequestError

BLOCK = 20  # runs that share an allocation, unless someone says otherwise


def make_jobs(
    site: Site,
    partition: Partition,
    root: Path,
    runs: Sequence[BlockRun],
    *,
    block: int = BLOCK,
    estimates_s: Mapping[str, float] | None = None,
    time_s: float | None = None,
    folder_of_work: str = ".",
    node: str | None = None,
) -> tuple[list[Job], list[str]]:
    """The jobs that make these runs in their order, and what a person should know of their time limits.

    `estimates_s` is what a run of this id is thought to take; `time_s`, where given, is the limit of every job.
    """
    if block < 1:
        raise RequestError(f"a block of {block} runs is not possible: give a number of at least 1")
    jobs, doubts = [], []
    for part in into_blocks(runs, block):
        limit_s, doubt = (time_s, "") if time_s else job_time_s(part, estimates_s or {}, site, partition)
        if doubt:
            doubts.append(doubt)
        jobs.append(new_job(site, partition, root, part, time_s=limit_s, folder_of_work=folder_of_work, node=node))
    return jobs, list(dict.fromkeys(doubts))


def into_blocks(runs: Sequence[BlockRun], size: int) -> list[list[BlockRun]]:
    """Consecutive runs that need as many nodes, `size` at most: their order is kept, and no node idles for another."""
    blocks: list[list[BlockRun]] = []
    for run in runs:
        if blocks and len(blocks[-1]) < size and blocks[-1][0].nodes == run.nodes:
            blocks[-1].append(run)
        else:
            blocks.append([run])
    return blocks

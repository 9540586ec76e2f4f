"""What each batch size of a walk gave, joined by the supervisor once the walk has ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.assemble import assemble, read_parts
from prony_node.contract.plan import Plan
from prony_node.contract.trial import Trial
from prony_node.supervise.conditions import Watched
from prony_node.supervise.energy import energy_of_node, no_energy
from prony_node.supervise.other_nodes import conditions_of_run


def write_screenings(plan: Plan, folder: Path, watched: Watched, *, started: str, ended: str) -> None:
    """A screening of each size that left a result: the form of a record, the mark `screening`, and no record's name."""
    whole = read_parts(folder)
    for batch in plan.walk:
        own = folder / files.WALK / str(batch)
        if not (own / files.RESULT).exists():
            continue
        trial = Trial(plan.trial.workload, {**plan.trial.settings, "batch_size": batch})
        parts = replace(read_parts(own), facts=whole.facts, device=whole.device)
        energy = energy_of_node(own, parts, samples=folder) if plan.energy else no_energy("energy was not asked for")
        checks = conditions_of_run(plan, folder, parts, watched)
        of_size = replace(plan, trial=trial, walk=())
        document = assemble(of_size, parts, started=started, ended=ended, checks=checks, energy=energy)
        files.write_whole(own / files.SCREENING, {**document, "screening": True})

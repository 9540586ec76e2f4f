"""One run in one rank, from plan to result. Read this file first.

Every stage takes values and returns a value. Nothing is written to an object that another stage made. The journal
alone has state: a run that fails keeps what it holds.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from prony_node.contract import files
from prony_node.contract.run_folder import RankResult
from prony_node.contract.trial import Plan
from prony_node.parallel.place import RankPosition
from prony_node.run.collective import measure_collective
from prony_node.run.journal import Journal
from prony_node.run.judge import judge
from prony_node.run.measuring import WindowPlan, measure, warm_up
from prony_node.run.prepare import Built, Setup, build, open_data, prepare
from prony_node.run.quality import plan_epochs, plan_split
from prony_node.run.step_series import write_blocks


def run(plan: Plan, journal: Journal, place: RankPosition | None = None) -> RankResult:
    """Make the run that the plan asks for."""
    with ExitStack() as closing:
        with journal.phase("build"):
            setup = prepare(plan, place, journal, closing)
        if setup.workload.collective is not None:
            measure_collective(setup, journal)
        else:
            setup = open_data(setup, journal)
            with journal.phase("build"):
                setup, built = build(setup, journal, closing)
            with built.model.step.kernels():
                run_model(setup, built, journal)
        setup.ranks.end()
    return journal.result


def run_model(setup: Setup, built: Built, journal: Journal) -> None:
    """Cold start, warm-up, the measured window, and what it says."""
    setup.backend.reset_peak_memory()
    planned = plan_window(setup, built)
    if setup.learns:
        built.model.step.keep_start()
    cold_start(setup, built, journal)
    warm = warm_up(setup, built, journal)
    if setup.learns:
        built.model.step.restart()  # what is learned is learned in the epochs that are counted
    seen = measure(setup, built, planned, warm, journal)
    judged = judge(setup, built, seen, journal.result, journal.progress, journal.folder)
    journal.keep_result(judged.result)
    with journal.phase("teardown"):
        write_blocks(journal.folder / files.STEPS, seen.window.blocks)
    if judged.error is not None:  # what was measured outlasts it
        raise judged.error
    if built.fixed_steps is None and int(setup.settings.get("copies", 1)) == 1:
        setup.backend.keep_winners()  # a few steps are what is compiled beside others, to be measured later


def plan_window(setup: Setup, built: Built) -> WindowPlan:
    """What is measured: whole epochs, passes over a test split, or steps until the stop rule is satisfied."""
    if setup.learns:
        return plan_epochs(setup, built)
    return plan_split(setup, built) if built.passes_split else None


def cold_start(setup: Setup, built: Built, journal: Journal) -> None:
    """The first steps. They are steps like any other, and compile, tune and capture on the way."""
    step = built.model.step
    with journal.phase("cold_start", steps=step.first_steps):
        built.model.wait_until_idle()
        step.prepare(built.model.first)
        setup.backend.synchronise()
    cold = journal.result.phases["cold_start"]
    journal.add(phases={"cold_start": replace(cold, compile_cache=setup.backend.cache_state(setup.settings))})

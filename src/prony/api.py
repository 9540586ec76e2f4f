"""The Python API: what the command line calls, and what `import prony` offers. See docs/how-to/python.md.

Settings are given as words (`"batch_size=8"`), as keywords (`batch_size=8`), or both. `progress` is called with each
event of `prony.engine.progress`. A request that is not possible raises RequestError with one sentence. Nothing is
printed. Runs are made in processes of their own; start them from the main thread, whose Ctrl-C ends them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO

from prony.engine.execute import execute
from prony.engine.history import open_store, runs_root, stored_repeats, updated_store
from prony.engine.possible import find_machine, find_model_file
from prony.engine.progress import Report, Warned, noter, silent, warner
from prony.engine.runs import Options, PlannedFile, SiteOptions, SiteSession, StudyOutcome
from prony.sites.job import BLOCK
from prony.sites.site import Partition, find_site
from prony.study.request import check_target, make_stop, parse_seconds, parse_trial, split_words
from prony.study.study import (
    LOCAL,
    ORDERS,
    Study,
    Suite,
    SuiteTrial,
    load_suites,
    over_seeds,
    study_of_trials,
    study_of_words,
)
from prony_node.contract.errors import ParameterError, RequestError, unknown
from prony_node.contract.record import Record, using
from prony_node.contract.settings import Value
from prony_node.contract.trial import SUSTAINED_REPEATS, SUSTAINED_WINDOW_S, Stop, Trial
from prony_node.workloads import WORKLOADS, find_workload
from prony_node.workloads.config import Workload

if TYPE_CHECKING:
    from prony.analysis.compare import Comparison
    from prony.analysis.scaling import Scaling
    from prony.engine.forecast import StudyForecast, StudyStatus
    from prony.engine.published import ShownStudy
    from prony.engine.screening import ScreeningVerdict
    from prony.engine.search import TuningOutcome
    from prony.engine.transfer import AnchorsTaken, Arrival, Rebuilt
    from prony.sites.job import Job
    from prony.sites.site_check import Finding
    from prony.store.transfer import ImportResult
    from prony.study.study import ScalingTrials
    from prony_node.contract.run_folder import Verification

SettingValue = Value | float | Sequence[Value | float]  # of a keyword setting; several values where a grid is meant
AT_SITE = SiteOptions()
SCREENING = "gemm"  # the device's own ceiling: nothing but the node can make it slow
NODE_RANK, RENDEZVOUS = "PRONY_NODE_RANK", "PRONY_RENDEZVOUS"  # as the node reads them (prony_node/parallel/place.py)


def run(
    target: str,
    *words: str,
    repeats: int | None = None,
    seeds: int | None = None,
    tolerance: str | float | None = None,
    max_time: str | float | None = None,
    sustained: bool = False,
    energy: bool = True,
    out: Path | str | None = None,
    site: str | None = None,
    at: SiteOptions = AT_SITE,
    progress: Report = silent,
    **settings: SettingValue,
) -> StudyOutcome:
    """Measure a workload, a model file or every trial of a suite; whatever was run before, it is run again.

    `tolerance` is the half-width of the 95 % interval to reach (0.01 or "1%"), `max_time` in seconds or such as "2m".
    With `site` the runs are jobs there.
    """
    _check_site_options(site is not None, at)
    place = None if site is None else _session(site, at, out, progress)
    root = place.root if place else runs_root(_path(out))
    suites = load_suites()
    model = find_model_file(target, progress)
    if model is None:
        check_target(target, suites)
    suite = suites.get(target) if target not in WORKLOADS else None
    given = _words(words, settings)
    if suite is not None:
        wanted = _trials_of_suite(suite, given, _text(tolerance), _text(max_time), place, progress)
    else:
        workload = model.workload if model else find_workload(target)
        trial = parse_trial(workload, given)
        wanted = [(workload, SuiteTrial(trial, make_stop(_text(tolerance), _text(max_time))))]
    each = [(workload, replace(one, trial=trial)) for workload, one in wanted for trial in over_seeds(one.trial, seeds)]
    count = repeats if repeats is not None else SUSTAINED_REPEATS if sustained else 1
    if sustained:
        each = [(workload, replace(one, stop=_sustained(one.stop, max_time is not None))) for workload, one in each]
    study = replace(study_of_trials(target, each, count), site=site or LOCAL, is_suite=suite is not None)
    files = {model.workload.name: model.plan} if model else {}
    options = Options(root, energy=energy, files=files, at_site=at, fresh=True, place=place)
    return execute(study, options, progress)


def sweep(
    workload: str,
    *words: str,
    repeats: int = 1,
    order: str = "random",
    seed: int | None = None,
    tolerance: str | float | None = None,
    max_time: str | float | None = None,
    retry_failed: bool = False,
    accept_other_code: bool = False,
    share: bool = False,
    energy: bool = True,
    out: Path | str | None = None,
    site: str | None = None,
    at: SiteOptions = AT_SITE,
    progress: Report = silent,
    **settings: SettingValue,
) -> StudyOutcome:
    """Measure every combination of the given values (`batch_size=[8, 16]`); what is finished is not run again.

    `seed` is that of the random order of runs; a trial's own seed is given as the word "seed=...".
    """
    given = _words(words, settings)
    if not given:
        raise RequestError(
            "a sweep needs settings with values to try, such as batch_size=16,32,64 or batch_size=16..4096"
        )
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    where = site or LOCAL
    _check_site_options(where != LOCAL, at)
    root, stop = runs_root(_path(out)), make_stop(_text(tolerance), _text(max_time))
    model = find_model_file(workload, progress)
    found = model.workload if model else find_workload(workload)
    study = replace(study_of_words(found, given, stop, repeats, order, seed), site=where)
    files = {found.name: model.plan} if model else {}
    options = Options(
        _root_of(study, root), retry_failed, share, energy, files, at, accept_other_code=accept_other_code
    )
    return execute(study, options, progress)


@dataclass(frozen=True)
class ScaleOutcome:
    """The runs of a scaling series, and what they say: one analysis per kind, as far as it was run."""

    study: StudyOutcome
    series: list[Scaling]


def scale(
    workload: str,
    *words: str,
    kind: str = "weak",
    on_nodes: Sequence[int] = (),
    diagnose: bool = True,
    predict: Sequence[int] = (),
    repeats: int = 3,
    tolerance: str | float | None = None,
    max_time: str | float | None = None,
    retry_failed: bool = False,
    accept_other_code: bool = False,
    share: bool = False,
    energy: bool = True,
    out: Path | str | None = None,
    site: str | None = None,
    at: SiteOptions = AT_SITE,
    progress: Report = silent,
    **settings: SettingValue,
) -> ScaleOutcome:
    """Measure a workload at each count of `devices=[1, 2, 4]`: what is gained and lost. Finished runs are skipped.

    `kind` is "weak", "strong" or "both"; `on_nodes` are counts of nodes to continue with, the most devices on each.
    """
    from prony.study.study import STRONG, WEAK, make_series

    kinds = {"weak": [WEAK], "strong": [STRONG], "both": [WEAK, STRONG]}
    if kind not in kinds:
        raise unknown("kind of scaling", kind, kinds)
    where = site or LOCAL
    _check_site_options(where != LOCAL, at)
    root, stop = runs_root(_path(out)), make_stop(_text(tolerance), _text(max_time))
    model = find_model_file(workload, progress)
    trials = make_series(
        model.workload if model else workload,
        _words(words, settings),
        kinds[kind],
        lambda device: find_machine(device, progress, _partition(where, at.partition, progress)),
        on_nodes,
        diagnose,
    )
    if where == LOCAL:
        _refuse_lonely_nodes(trials)
    study = trials.study(stop, repeats, where)
    if at.block is None:  # each repeat of a series as a whole, and as many as a block takes
        at = replace(at, block=len(trials.trials) * max(1, BLOCK // len(trials.trials)))
    if trials.batch_taken:
        progress(Warned(trials.batch_taken))
    files = {trials.workload.name: model.plan} if model else {}
    options = Options(
        _root_of(study, root), retry_failed, share, energy, files, at,
        leave_out=False, accept_other_code=accept_other_code,
    )  # fmt: skip
    outcome = execute(study, options, progress)
    return ScaleOutcome(outcome, _analyse(outcome, trials, list(predict), progress))


@dataclass(frozen=True)
class OpenedStudy:
    """A study, and what plans carry of the model files that it names."""

    study: Study
    files: dict[str, PlannedFile]


def open_study(
    target: str,
    *words: str,
    size: str | None = None,
    parts: Sequence[str] = (),
    site: str | None = None,
    progress: Report = silent,
) -> OpenedStudy:
    """Read and check a study, by its name in the catalog or its file; model files are asked from a node process."""
    from prony.study.study_file import load_study

    files: dict[str, PlannedFile] = {}

    def find(name: str) -> Workload:
        model = find_model_file(name, progress)
        if model is None:
            return find_workload(name)
        files[model.workload.name] = model.plan
        return model.workload

    found = load_study(target, size, words, find, tuple(parts))
    return OpenedStudy(replace(found, site=site) if site is not None else found, files)


def run_study(
    target: str,
    *words: str,
    size: str | None = None,
    parts: Sequence[str] = (),
    retry_failed: bool = False,
    accept_other_code: bool = False,
    share: bool = False,
    energy: bool = True,
    out: Path | str | None = None,
    site: str | None = None,
    at: SiteOptions = AT_SITE,
    progress: Report = silent,
    **settings: SettingValue,
) -> StudyOutcome:
    """Make every run of a study that has no record yet. The same call resumes it."""
    root = runs_root(_path(out))
    opened = open_study(target, *_words(words, settings), size=size, parts=parts, site=site, progress=progress)
    _check_site_options(opened.study.site != LOCAL, at)
    options = Options(
        _root_of(opened.study, root), retry_failed, share, energy, opened.files, at,
        accept_other_code=accept_other_code,
    )  # fmt: skip
    return execute(opened.study, options, progress)


def plan_study(
    target: str | OpenedStudy,
    *words: str,
    size: str | None = None,
    parts: Sequence[str] = (),
    site: str | None = None,
    runs: Path | str | None = None,
    progress: Report = silent,
    **settings: SettingValue,
) -> StudyForecast:
    """What a study would run, what of it is finished under `runs`, and what the rest costs by earlier records."""
    from prony.engine.forecast import make_forecast

    root = runs_root(_path(runs))
    study = _opened(target, _words(words, settings), size, parts, site, progress).study
    return make_forecast(study, root, progress)


def study_status(
    target: str | OpenedStudy,
    *words: str,
    size: str | None = None,
    parts: Sequence[str] = (),
    site: str | None = None,
    runs: Path | str | None = None,
    progress: Report = silent,
    **settings: SettingValue,
) -> StudyStatus:
    """What of a study is done under `runs`, what failed and what is left."""
    from prony.engine.forecast import make_status

    root = runs_root(_path(runs))
    opened = _opened(target, _words(words, settings), size, parts, site, progress)
    return make_status(opened.study, root, progress, opened.files)


def show_study(
    target: str | OpenedStudy,
    *words: str,
    size: str | None = None,
    parts: Sequence[str] = (),
    site: str | None = None,
    runs: Path | str | None = None,
    progress: Report = silent,
    **settings: SettingValue,
) -> ShownStudy:
    """The tables, plots and claims of the publication that a study repeats, with the runs under `runs` in them."""
    from prony.engine.published import show_study as show

    root = runs_root(_path(runs))
    study = _opened(target, _words(words, settings), size, parts, site, progress).study
    return show(study, _root_of(study, root), progress)


def tune(
    workload: str,
    *words: str,
    goal: str = "throughput",
    within: Sequence[str] = (),
    budget: str | float = "15m",
    share: bool = False,
    out: Path | str | None = None,
    progress: Report = silent,
    **settings: SettingValue,
) -> TuningOutcome:
    """Find the best settings for a goal with short runs, and confirm them against the defaults.

    A setting with one value is fixed, one with several is searched. `within` holds bounds such as "memory<40GiB".
    """
    from prony.engine.search import TuningStudy, search_settings
    from prony.study.search_space import find_goal, parse_limits, split_searched

    root = runs_root(_path(out))
    wanted, limits, budget_s = find_goal(goal), tuple(parse_limits(within)), parse_seconds(str(budget), "budget")
    model = find_model_file(workload, progress)
    found = model.workload if model else find_workload(workload)
    fixed, lists = split_searched(found, _words(words, settings))
    study = TuningStudy(workload, found, found.parse(fixed), lists, wanted, limits, budget_s)
    files = {found.name: model.plan} if model else {}
    return search_settings(study, Options(root, share=share, files=files), progress)


def screen(
    site: str,
    partition: str,
    *words: str,
    nodes: Sequence[str] = (),
    max_time: str | float | None = "30s",
    out: Path | str | None = None,
    at: SiteOptions = AT_SITE,
    progress: Report = silent,
) -> StudyOutcome:
    """Measure one trial (gemm, where `words` name no other) on each node of a partition, as a job per node."""
    from prony.engine.site import find_partition, site_root
    from prony.sites.protocol import make_launcher

    found = find_site(site)
    chosen = find_partition(found, partition, progress)
    given = list(words)
    target = given.pop(0) if given and "=" not in given[0] else SCREENING
    trial = parse_trial(target, given)
    if int(trial.settings.get("nodes", 1)) != 1:
        raise RequestError(f"nodes={trial.settings['nodes']} cannot be screened with: each node is measured alone")
    if chosen.accelerators and not {"devices", "device"} & trial.settings.keys():
        trial = parse_trial(target, [*given, f"devices={chosen.accelerators}"])  # all of a node, not one by chance
    listed = list(nodes) or make_launcher(found.kind, warner(progress)).nodes(found, chosen)
    if not listed:
        raise RequestError(f"partition {partition} of {site} has no node that takes jobs")
    root = site_root(found, _path(out))
    one = SuiteTrial(trial, make_stop(None, _text(max_time)))
    asked = replace(study_of_trials(f"screening of {site}", [(find_workload(target), one)], 1), site=site)
    place = SiteSession(found, chosen, root, time_s=at.time_s, nodes=tuple(dict.fromkeys(listed)))
    return execute(asked, Options(root, at_site=at, fresh=True, place=place), progress)


def load(
    *names: str,
    runs: Path | str | None = None,
    workload: str | None = None,
    status: str | None = None,
    limit: int | None = None,
    progress: Report = silent,
) -> list[Record]:
    """Records from the run folders under `runs`: those named (as for `prony show`), else all, newest first.

    A record that does not agree with its files carries the failed check "unchanged".
    """
    store, _ = open_store(_path(runs), progress)
    found = [store.find(name) for name in names] if names else store.runs(limit, workload, status)
    records = []
    for one in found:
        record = one.read_record()
        if record is not None:
            records.append(record)
        elif names:
            raise RequestError(f"{one.folder} has no readable record.json")
    return records


def compare(
    a: Record | Sequence[Record],
    b: Record | Sequence[Record],
    *,
    paired: bool = False,
    runs: Path | str | None = None,
    progress: Report = silent,
) -> Comparison:
    """B against A: the ratio of their rates with its interval, and what differs. A side is a run or its repeats.

    The variation between runs of a single run is taken from the good runs of its workload under `runs`.
    """
    from prony.analysis.compare import compare as compare_records

    ours, theirs = ([side] if isinstance(side, Record) else list(side) for side in (a, b))
    if not ours or not theirs:
        raise RequestError("a side of the comparison has no run")
    both = sorted({record.id for record in ours} & {record.id for record in theirs})
    if both:
        raise RequestError(f"{', '.join(both)} is on both sides; compare a run with another one")
    if paired and len(ours) != len(theirs):
        raise ParameterError("paired", f"needs as many runs on both sides, got {len(ours)} and {len(theirs)}")
    root = runs_root(_path(runs))
    pool = stored_repeats(updated_store(root, progress), [*ours, *theirs]) if root.is_dir() else []
    with using(*(record.id for record in (*ours, *theirs))):
        return compare_records(ours, theirs, pool, paired or None)


def judge_screening(outcome: StudyOutcome) -> ScreeningVerdict:
    """Which nodes of a screening are unlike the others, and which have no rate."""
    from prony.engine.screening import judge_screening as judge

    return judge(outcome)


def verify(*targets: str, runs: Path | str | None = None, progress: Report = silent) -> Iterator[Verification]:
    """Hold records against their manifests and files: of runs, folders of runs, or tars of `prony store export`.

    The verdicts come one by one; a run that is named is marked in the index under `runs`.
    """
    from prony.engine.verify import verify_target

    for target in targets:
        yield from verify_target(target, _path(runs), progress)


def jobs(runs: Path | str | None = None, progress: Report = silent) -> list[Job]:
    """Every job that was submitted from here, brought up to date."""
    from prony.engine.site import list_jobs

    return list_jobs(_path(runs), progress)


def collect(wait: bool = False, runs: Path | str | None = None, progress: Report = silent) -> list[Job]:
    """Bring every job up to date and index what has come; the jobs that are still open. `wait` stays until none is."""
    from prony.engine.site import collect_jobs

    return collect_jobs(_path(runs), wait, progress)


def push_runs(
    *names: str, to: str | None = None, runs: Path | str | None = None, progress: Report = silent
) -> ImportResult:
    """Put run folders (those named, else all) into a team's store or another folder."""
    from prony.engine import transfer

    return transfer.push_runs(names, to, _path(runs), progress)


def pull_runs(
    *names: str, source: str | None = None, runs: Path | str | None = None, progress: Report = silent
) -> Arrival:
    """Fetch missing run folders (those named, else all) from a team's store or another folder, and verify them."""
    from prony.engine import transfer

    return transfer.pull_runs(names, source, _path(runs), progress)


def import_runs(*sources: Path | str | BinaryIO, runs: Path | str | None = None) -> Arrival:
    """Take in runs from files (tar, JSON lines, Parquet, CSV; an open stream is a tar), and verify them."""
    from prony.engine import transfer

    return transfer.import_runs([Path(one) if isinstance(one, str) else one for one in sources], _path(runs))


def import_anchors(
    *paths: Path | str,
    form: str,
    source: str,
    mapping: Mapping[str, str] = MappingProxyType({}),
    fixed: Mapping[str, str] = MappingProxyType({}),
    runs: Path | str | None = None,
) -> AnchorsTaken:
    """Take in figures of others; `mapping` says which column holds which field, `fixed` what holds for all."""
    from prony.engine import transfer

    return transfer.import_anchors([Path(one) for one in paths], form, source, mapping, fixed, _path(runs))


def export_runs(
    file: Path | str | BinaryIO,
    *names: str,
    where: str = "",
    form: str | None = None,
    runs: Path | str | None = None,
    progress: Report = silent,
) -> int:
    """Write run folders (tar) or records (JSON lines, Parquet, CSV): those named or found by `where`; how many."""
    from prony.engine import transfer

    place = Path(file) if isinstance(file, str) else file
    return transfer.export_runs(place, names, where, form, _path(runs), progress)


def rebuild_index(quick: bool = False, runs: Path | str | None = None) -> Rebuilt:
    """Make the index of a root anew, and mark runs that differ from their files; `quick` checks manifests alone."""
    from prony.engine import transfer

    return transfer.rebuild_index(quick, _path(runs))


def build_image(
    vendor: str = "cpu",
    *,
    engine: str = "podman",
    architectures: Sequence[str] = (),
    tag: str | None = None,
    base: str | None = None,
    torch: str | None = None,
    checkout: Path | str | None = None,
    dry_run: bool = False,
    progress: Report = silent,
) -> None:
    """Build an image from containers/ of a checkout; each command is a note to `progress`."""
    from prony.sites.image import Build, architecture
    from prony.sites.image import build_image as build

    wanted = tuple(architecture(one) for one in architectures)
    asked = Build(engine, vendor, wanted, tag or f"prony-{vendor}", base, torch)
    build(asked, _path(checkout) or Path(__file__).parents[2], noter(progress), dry_run)


def check_images(site: str, *, partition: str | None = None, progress: Report = silent) -> Iterator[Finding]:
    """Whether the images of a site fit its nodes, and start where they can run here."""
    from prony.engine.site import find_partition
    from prony.sites.image import check_images as check

    found = find_site(site)
    if found.container.engine == "none" and found.kind != "kubernetes":
        raise RequestError(f"{found.name} uses no container; `container: engine:` in its file names one")
    names = [partition] if partition is not None else list(found.partitions)
    for chosen in [find_partition(found, name, progress) for name in names]:
        yield from check(found, chosen)


def _opened(
    target: str | OpenedStudy,
    words: list[str],
    size: str | None,
    parts: Sequence[str],
    site: str | None,
    progress: Report,
) -> OpenedStudy:
    if isinstance(target, OpenedStudy):
        return target
    return open_study(target, *words, size=size, parts=parts, site=site, progress=progress)


def _path(place: Path | str | None) -> Path | None:
    return None if place is None else Path(place)


def _text(amount: str | float | None) -> str | None:
    """A share or a time as the command line takes it."""
    return None if amount is None else str(amount)


def _words(words: Iterable[str], settings: Mapping[str, SettingValue]) -> list[str]:
    """All settings as words: a list of values becomes a,b,c and a truth value on or off."""
    return [*words, *(f"{name}={_shown(value)}" for name, value in settings.items())]


def _shown(value: SettingValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value)
    return ",".join(_shown(one) for one in value)


def _check_site_options(has_jobs: bool, at: SiteOptions) -> None:
    """Refuse what is about jobs where there are none."""
    given = [name for name in ("partition", "detach", "dry_run") if getattr(at, name)]
    if given and not has_jobs:
        raise ParameterError(given[0], "is about jobs of a site, and no site is given")


def _session(name: str, at: SiteOptions, out: Path | str | None, progress: Report) -> SiteSession:
    from prony.engine.site import find_partition, site_root  # slow to import, and not needed for runs here

    found = find_site(name)
    partition = find_partition(found, at.partition, progress)
    return SiteSession(found, partition, site_root(found, _path(out)).absolute(), at.runs_per_job, at.time_s)


def _root_of(study: Study, root: Path) -> Path:
    """Where the runs of a study lie."""
    if study.site == LOCAL:
        return root
    from prony.engine.site import study_root

    return study_root(study, root)


def _sustained(stop: Stop, was_given: bool) -> Stop:
    if was_given and stop.max_time_s < SUSTAINED_WINDOW_S:
        raise ParameterError("sustained", f"measures for {SUSTAINED_WINDOW_S:g} s or more: the time given is less")
    return stop.sustained()


def _trials_of_suite(
    suite: Suite,
    words: list[str],
    tolerance: str | None,
    max_time: str | None,
    place: SiteSession | None,
    progress: Report,
) -> list[tuple[Workload, SuiteTrial]]:
    """The trials of a suite for the device that they will find, with these settings on top."""
    given = split_words(words)
    for entry in suite.trials:  # all of them, also those of another kind of device
        _changed(entry.trial, given)
    chosen = suite.trials_on(_device_kind(suite, given, place, progress))
    stops = [make_stop(tolerance, max_time, entry.stop) for entry in chosen]
    changed = [_changed(entry.trial, given) for entry in chosen]
    return [
        (find_workload(trial.workload), SuiteTrial(trial, stop)) for trial, stop in zip(changed, stops, strict=True)
    ]


def _changed(trial: Trial, given: dict[str, str]) -> Trial:
    """A suite's trial with settings of the command line on top."""
    return Trial(trial.workload, find_workload(trial.workload).parse({**trial.settings, **given}))


def _device_kind(suite: Suite, given: dict[str, str], place: SiteSession | None, progress: Report) -> str:
    """What a suite's choice of trials depends on."""
    device = given.get("device", "auto")
    if device != "auto":
        return device.partition(":")[0]
    if not suite.depends_on_device:
        return "cpu"
    there = place.partition if place is not None and place.site.kind != "local" else None
    return find_machine(device, progress, there).device


def _partition(where: str, name: str | None, progress: Report) -> Partition | None:
    """The partition whose nodes make the runs; None for this machine."""
    if where == LOCAL or (site := find_site(where)).kind == LOCAL:
        return None
    from prony.engine.site import find_partition

    return find_partition(site, name, progress)


def _refuse_lonely_nodes(series: ScalingTrials) -> None:
    """Runs are started on this machine alone, so the other nodes must know where to come."""
    if all(trial.settings.get("nodes", 1) == 1 for trial in series.trials):
        return
    if not os.environ.get(RENDEZVOUS) or os.environ.get(NODE_RANK) != "0":
        raise ParameterError(
            "nodes",
            f"needs {RENDEZVOUS}=HOST:PORT, an address of this node where all meet, and {NODE_RANK}=0; "
            "the other nodes are started by you, as docs/how-to/scale.md says; a site starts all of them",
        )


def _analyse(outcome: StudyOutcome, series: ScalingTrials, predict: list[int], progress: Report) -> list[Scaling]:
    """A series of each kind, as far as it was run."""
    from prony.analysis.scaling import NOT_RUN, scaling

    if not outcome.outcomes:
        return []
    collectives = _collectives(outcome.root, progress)
    found = []
    for kind in series.by_kind:
        hashes = series.hashes(kind)
        records = [record for record in outcome.records if record.trial.hash in hashes]
        if records:
            with using(*(record.id for record in (*records, *collectives))):
                found.append(scaling(records, kind, predict, series.no_free or NOT_RUN, collectives))
    return found


def _collectives(root: Path, progress: Report) -> list[Record]:
    """Good runs of collectives among the runs here: what links can do, to stand beside what the series sends."""
    from prony.analysis.scaling_series import OPERATIONS

    store = updated_store(root, progress)
    names = sorted(set(OPERATIONS.values()))
    records = [run.read_record() for name in names for run in store.runs(workload=name, status="ok")]
    return [record for record in records if record is not None]

"""Verbs about sites: what they show, and what they refuse before anything starts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prony.cli.jobs import state_of
from prony.cli.main import make_app
from prony.engine.screening import rates_of
from prony.engine.site import in_order
from prony.sites.image import last_words
from prony.sites.job import ENDED_STATE, SUBMITTED, BlockRun, JobOutcome, new_job
from prony.sites.site import Partition, parse_site, read_site
from prony.sites.site_check import judge, judge_limits, read_answer
from prony_node.contract import Plan, Trial, files
from prony_node.contract.record import Failure, new_record, parse_record

SITE = "kind: slurm\npartition: gpu\npartitions: {gpu: {accelerators: 4, arch: aarch64, cores_per_device: 2}}\n"


def prony(*words: str) -> Any:
    return CliRunner().invoke(make_app(words[0]), list(words))


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRONY_SITES", str(tmp_path / "sites"))
    monkeypatch.setenv("PRONY_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "mine.yaml").write_text(SITE)
    (tmp_path / "sites" / "short.yaml").write_text(SITE + "limits: {time: 2m}\n")
    return tmp_path


def test_sites_are_listed_and_shown(sites: Path) -> None:
    (sites / "sites" / "broken.yaml").write_text("kind: slrm\n")
    listed = prony("site", "list").output
    assert "mine  slurm, gpu" in listed
    assert "did you mean 'slurm'" in listed
    assert "jureca  an example" in listed
    assert prony("site", "show", "mine").output == SITE
    assert prony("site", "show", "local").output == "kind: local\n"


def test_a_site_is_added_once_with_what_could_be_detected(sites: Path) -> None:
    done = prony("site", "add", "here", "--yes")
    assert done.exit_code == 0, done.output
    assert (sites / "sites" / "here.yaml").read_text().startswith("kind: local\n")
    assert prony("site", "add", "here", "--yes").exit_code == 2
    assert "no name for a site" in prony("site", "add", "../x", "--yes").output


@pytest.mark.parametrize("answers", ["", "local\n"])
def test_a_site_is_not_added_without_all_answers(sites: Path, answers: str) -> None:
    done = CliRunner().invoke(make_app("site"), ["site", "add", "here"], input=answers)
    assert done.exit_code == 2
    assert "--yes takes what is detected" in done.output
    assert not (sites / "sites" / "here.yaml").exists()


def test_a_cluster_that_cannot_be_reached_is_added_for_a_person_to_complete(
    sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(sites / "none"))
    answers = "kubernetes\nlab\nhere/prony:1\npython3\n\n"
    done = CliRunner().invoke(make_app("site"), ["site", "add", "far"], input=answers)
    assert done.exit_code == 0, done.output
    assert "partitions are for you to fill in" in done.output
    found = read_site(sites / "sites" / "far.yaml")
    assert (found.kind, found.namespace, found.container.images) == ("kubernetes", "lab", {"": "here/prony:1"})


def test_all_that_slurm_says_of_its_partitions_is_in_the_file(sites: Path) -> None:
    """A person who added a site can name any of its partitions afterwards."""
    says = {
        "sbatch": "",
        "sinfo": "gpu*|up|8|128|2-00:00:00|gpu:a100:4|g[1-8]\ncpu|up|2|64|1:30:00|(null)|c[1-2]",
        "scontrol": "NodeName=g1 Arch=x86_64",
        "sacctmgr": "project1",
    }
    (sites / "nothing").mkdir()
    for name, said in says.items():
        path = sites / "nothing" / name
        path.write_text(f"#!/bin/bash\nprintf '%s\\n' '{said}'\n")
        path.chmod(0o755)
    done = prony("site", "add", "big", "--yes")
    assert done.exit_code == 0, done.output
    found = read_site(sites / "sites" / "big.yaml")
    gpu, cpu = found.partitions["gpu"], found.partitions["cpu"]
    assert (found.partition, found.account, gpu.accelerator, gpu.gres) == ("gpu", "project1", "A100", "gpu:a100")
    assert (gpu.max_time_s, cpu.max_time_s, cpu.accelerators) == (172800.0, 5400.0, 0)
    assert "max_time: 2d" in done.output


def test_a_dry_run_shows_the_script_and_does_nothing(sites: Path) -> None:
    done = prony("run", "gpt-tiny", "devices=4", "--site", "mine", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "# sbatch --parsable" in done.output
    assert "#SBATCH --gres=gpu:4" in done.output
    assert not (sites / "runs").exists()


def test_a_study_is_shown_as_the_jobs_of_any_site(sites: Path) -> None:
    study = sites / "study.yaml"
    study.write_text("workloads: gpt-tiny\nsettings: {batch_size: 1..4, steps: 5}\norder: given\n")
    done = prony("study", "run", str(study), "--site", "mine", "--time", "2h", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "#SBATCH --time=120" in done.output
    assert done.output.count("\nrun 0") == 3, "one block, in its order"
    assert "each is given 30 min" in prony("study", "run", str(study), "--site", "mine", "--dry-run").output
    here = prony("study", "run", str(study), "--dry-run")
    assert (here.exit_code, "--dry-run is about jobs of a site" in here.output) == (2, True)
    assert not (sites / "runs").exists()


def blocks_of(output: str) -> list[tuple[int, int]]:
    """Nodes, and runs, of each job that was shown."""
    scripts = output.split("#SBATCH --nodes=")[1:]
    return [(int(script.split()[0]), script.count("\nrun 0")) for script in scripts]


def test_a_sweep_is_shown_as_the_jobs_of_a_site(sites: Path) -> None:
    words = ("sweep", "gpt-tiny", "batch_size=1..4", "--order", "given", "--site", "mine", "--dry-run")
    assert blocks_of(prony(*words).output) == [(1, 3)]
    assert blocks_of(prony(*words, "--block", "2").output) == [(1, 2), (1, 1)]
    assert not (sites / "runs").exists()


def test_a_scaling_series_is_shown_as_jobs_of_whole_repeats(sites: Path) -> None:
    """Counts that are compared share an allocation; one more run than a block takes must not be alone in another."""
    words = ("scale", "gpt-tiny", "devices=1,2,3,4", "batch_size=12", "--site", "mine", "--dry-run")
    done = prony(*words)
    assert done.exit_code == 0, done.output
    assert blocks_of(done.output) == [(1, 14), (1, 7)], "of 21 runs"
    assert "#SBATCH --gres=gpu:4" in done.output
    assert blocks_of(prony(*words, "--block", "20").output) == [(1, 20), (1, 1)]
    assert not (sites / "runs").exists()


def test_several_nodes_of_a_site_need_no_rendezvous_and_their_runs_are_jobs_of_their_own(sites: Path) -> None:
    words = ("scale", "gpt-tiny", "devices=1,2", "--strong", "--nodes", "2", "--site", "mine", "--dry-run")
    done = prony(*words, "--repeats", "2")
    assert done.exit_code == 0, done.output
    assert blocks_of(done.output) == [(1, 3), (2, 4), (1, 3)], "there and back again"
    assert "strong scaling keeps 256 on all devices together, which one device (cuda, of unknown memory)" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "gpt-tiny", "seed=0,1", "--partition", "gpu"], "--partition is about jobs of a site"),
        (["scale", "gpt-tiny", "devices=1,2", "--detach"], "--detach is about jobs of a site"),
        (["scale", "gpt-tiny", "devices=1,8", "batch_size=8", "--site", "mine"], "devices=8 is not possible on mine"),
        (["scale", "gpt-tiny", "devices=1,2", "--nodes", "2", "batch_size=8"], "a site starts all of them"),
        (["run", "gpt-tiny", "--detach"], "--detach is about jobs of a site"),
        (["run", "gpt-tiny", "--site", "mien"], "did you mean 'mine'"),
        (["run", "gpt-tiny", "--site", "mine", "--partition", "gup"], "did you mean 'gpu'"),
        (["run", "gpt-tiny", "devices=8", "--site", "mine"], "devices=8 is not possible on mine, partition gpu"),
        (["run", "gpt-tiny", "steps=3", "--site", "mine"], "--time says how long"),
        (["run", "gpt-tiny", "--site", "short", "--time", "1h"], "a job of 60 min is not possible on short"),
        (["site", "check", "short"], "sbatch is not installed here"),
        (["run", "gpt-tiny", "--site", "mine"], "sbatch is not installed here"),
        (["cancel", "x"], "no job was submitted from here"),
        (["logs", "x"], "no job was submitted from here"),
        (["screen", "mine", "gpu"], "sinfo is not installed here"),
    ],
)
def test_what_cannot_be_is_refused_in_words(sites: Path, words: list[str], said: str) -> None:
    done = prony(*words)
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_without_jobs_there_is_nothing_to_list_or_collect(sites: Path) -> None:
    assert "no jobs were submitted" in prony("jobs").output
    assert prony("jobs", "--json").output == "[]\n"
    assert "no job is open" in prony("collect").output


def test_a_job_whose_end_was_asked_for_says_so_until_it_has_ended(sites: Path) -> None:
    job = new_job(parse_site(SITE, "x", "x"), Partition("gpu"), sites / "runs", [BlockRun(Plan("a", Trial("gemm")))])
    job = replace(job, note="running", state=SUBMITTED, cancelled=True)
    assert state_of(job) == "running, to be ended"
    assert state_of(replace(job, outcome=JobOutcome("CANCELLED"), state=ENDED_STATE)) == "cancelled"


ANSWER: dict[str, Any] = {
    "host": {"hostname": "n1", "architecture": "aarch64", "cpu": {"allowed": {"count": 8}}},
    "torch": {"installed": True, "version": "2.9"},
    "software": {"python": "3.12"},
    "devices": [{"kind": "cuda", "name": "NVIDIA GH200 120GB"}] * 4,
    "environment": {"NCCL_DEBUG": "WARN"},
    "container": {"runtimes": [{"name": "apptainer", "evidence": "/.singularity.d exists"}]},
    "power": {"sensors": [{"id": "a"}]},
}
SAYS = """
environment: {interface: ib0, host_suffix: i, modules: [CUDA], variables: {NCCL_DEBUG: WARN, MINE: x}}
container: {engine: apptainer, image: a.sif}
"""
AROUND = "interface lo\ninterface ib0\naddress 10.0.0.1   n1i\nmodules GCC/12:CUDA/12\n"


def levels(tmp_path: Path, answer: dict[str, Any] | None, log: str = "", around: str = AROUND) -> dict[str, str]:
    text = SITE.replace("arch:", "accelerator: GH200 (96 GB), arch:") + SAYS
    site = parse_site(text, "x", "x")
    job = new_job(site, site.partitions["gpu"], tmp_path, ask=("doctor",))
    job.folder.mkdir(parents=True)
    (job.folder / "surroundings").write_text(around)
    if answer is not None:
        (job.folder / "answer").write_text(f"a warning of torch\n{files.to_json(answer)}and another\n")
        assert read_answer(job.folder) is not None
    found = judge(replace(job, outcome=JobOutcome("FAILED", "", "127:0")), log)
    return {one.name: f"{one.level}: {one.message}" for one in found}


def test_a_site_is_judged_by_what_a_node_answers(tmp_path: Path) -> None:
    good = levels(tmp_path / "a", ANSWER)
    assert {text.split(":")[0] for text in good.values()} == {"pass"}
    assert set(good) == {
        "job", "architecture", "container", "torch", "accelerators", "accelerator", "cores", "modules", "variables",
        "interface", "host_suffix", "power",
    }  # fmt: skip
    host = {**ANSWER["host"], "architecture": "x86_64", "cpu": {"allowed": {"count": 7}}}
    bad = levels(tmp_path / "b", {**ANSWER, "host": host, "devices": [], "torch": {"installed": False}})
    assert bad["architecture"] == "fail: the nodes are amd64, and the site file says arm64"
    assert bad["accelerators"] == "fail: torch finds 0 (none); the site file says 4"
    assert "has no torch there" in bad["torch"]
    assert bad["cores"] == "fail: the job may use 7 cores, and 8 were asked for"
    other = {"devices": [{"kind": "cuda", "name": "NVIDIA H100"}] * 4, "environment": {"NCCL_DEBUG": "INFO"}}
    bad = levels(tmp_path / "d", {**ANSWER, **other, "container": {}, "power": {}}, around="modules GCC/12\n")
    assert bad["accelerator"] == "warn: the nodes have NVIDIA H100, and the site file says GH200 (96 GB)"
    assert bad["variables"] == "fail: on the node NCCL_DEBUG is 'INFO', not 'WARN'"
    assert "no trace of its container" in bad["container"]
    assert "no address is known" in bad["host_suffix"]
    assert "CUDA is not among what is loaded: GCC/12" in bad["modules"]
    assert "no ib0 on the node" in bad["interface"]
    assert "runs will have no energy" in bad["power"]
    silent = levels(tmp_path / "c", None, "job.sh: line 9: python3: command not found\n")
    assert "python3: command not found" in silent["job"]


def test_limits_beyond_those_of_the_partition_are_named() -> None:
    known = Partition("gpu", nodes=4, max_time_s=3600.0)
    assert judge_limits(Partition("gpu"), known) is None
    good = judge_limits(replace(known, max_time_s=60.0), known)
    assert good is not None
    assert good.level == "pass"
    bad = judge_limits(replace(known, nodes=8, max_time_s=86400.0), known)
    assert bad is not None
    assert "it has 4 nodes of this kind, and the site file says 8" in bad.message
    assert "a job may take 1 h, and the site file says 24 h" in bad.message


def test_rates_of_a_screening_are_those_of_good_runs() -> None:
    site = parse_site(SITE, "x", "x")
    jobs = {
        node: new_job(site, site.partitions["gpu"], Path("/r"), [BlockRun(Plan(node, Trial("gemm", {})))])
        for node in ("n0", "n1", "n2")
    }
    rate = {"value": 5.0, "unit": "x/s", "scope": "devices", "source": "clock"}
    document = new_record(Plan("n0", Trial("gemm", {})), status="ok", started="", ended="")
    good = parse_record(document | {"metrics": {"throughput": rate}})
    bad = replace(good, status="failed", failure=Failure("killed"))
    assert rates_of(jobs, {"n0": good, "n1": bad}) == {"n0": {"n0": 5.0}}
    ranks = [{"step_s": 0.1}, {"step_s": 0.4}]
    each = rates_of(jobs, {"n2": replace(good, parallel={"form": "independent", "ranks": ranks})})["n2"]
    assert each == {"n2 device 0": pytest.approx(4.0), "n2 device 1": pytest.approx(1.0)}, "one of them is slow"
    together = replace(good, parallel={"form": "ddp", "ranks": ranks})
    assert rates_of(jobs, {"n2": together}) == {"n2": {"n2": 5.0}}, "they wait for each other"


def test_devices_of_a_run_are_spread_over_its_nodes(sites: Path) -> None:
    """The headline of docs/how-to/sites.md: eight GH200 on two nodes of four."""
    done = prony("run", "gpt-800m", "devices=8", "nodes=2", "--site", "jedi", "--dry-run")
    assert done.exit_code == 0, done.output
    options = {line for line in done.output.splitlines() if line.startswith("#SBATCH")}
    assert {"#SBATCH --nodes=2", "#SBATCH --gres=gpu:4", f"#SBATCH --cpus-per-task={4 * 72}"} <= options
    assert "#SBATCH --ntasks-per-node=1" in options, "the node program, which starts four ranks by torch's launcher"
    assert re.search(r"\nrun 000 [0-9a-f]{64} 2 ", done.output)
    alone = prony("run", "gpt-800m", "nodes=2", "--site", "jedi", "--dry-run").output
    assert "#SBATCH --gres=gpu:1" in alone, "a device a node where nobody says how many"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("devices=8", "devices=8 is not possible on jedi, partition all: a node there has 4 (GH200 (96 GB)); "
         "devices=8 nodes=2 would do"),
        ("devices=6 nodes=4", "devices=6 nodes=4 is not possible: devices are those of all nodes together, spread "
         "evenly; devices=8 would do"),
    ],
)  # fmt: skip
def test_devices_that_do_not_fit_the_nodes_are_refused(sites: Path, words: str, said: str) -> None:
    refused = prony("run", "gpt-800m", *words.split(), "--site", "jedi", "--dry-run")
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())


def test_all_accelerators_of_a_node_are_screened(sites: Path) -> None:
    done = prony("screen", "mine", "gpu", "--nodes", "n0", "--dry-run")
    assert "#SBATCH --gres=gpu:4" in done.output, done.output
    assert "#SBATCH --gres=gpu:2" in prony("screen", "mine", "gpu", "devices=2", "--nodes", "n0", "--dry-run").output


def test_a_larger_batch_waits_for_the_fate_of_the_smaller_ones_before_it() -> None:
    sizes = (64, 16, 128, 32)
    plans = [Plan(f"run{size}", Trial("gpt-tiny", {"batch_size": size})) for size in sizes]
    other = Plan("other", Trial("gpt-tiny", {"batch_size": 256, "precision": "fp32"}))
    found = {run.plan.run_id: run.unless_too_large for run in in_order([*plans, other])}
    assert found == {"run64": (), "run16": (), "run128": ("run64", "run16"), "run32": ("run16",), "other": ()}


def test_the_last_words_of_an_engine_say_what_was_wrong() -> None:
    said = "INFO:    Converting\n\x1b[91mERROR  : Requesting capability set 0x1\n\x1b[0m: exit status 1\n\n"
    assert last_words(said) == "INFO:    Converting; ERROR  : Requesting capability set 0x1; : exit status 1"
    assert last_words("") == ""

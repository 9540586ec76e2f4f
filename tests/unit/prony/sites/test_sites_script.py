"""Scripts of jobs: as reviewed (golden files), and safe whatever a name or a value holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs_for_tests import SLURM, make_job, make_run, make_site, without_hashes

from prony.sites.job import BlockRun, Job
from prony.sites.local import LocalJobs
from prony.sites.node import node_zip
from prony.sites.protocol import check_fits
from prony.sites.script import start_text
from prony.sites.site import Container
from prony.sites.slurm import Slurm
from prony_node.contract import RequestError

GOLDEN = Path(__file__).parents[3] / "golden" / "jobs"
CONTAINER = "container: {engine: apptainer, image: {amd64: /images/a b.sif}, binds: [/data]}\n"
PODMAN = "container: {engine: podman, image: here/prony:1}\nenvironment: {variables: {FI_PROVIDER: cxi}}\n"
ENVIRONMENT = """\
environment:
  modules: [CUDA/12, "PyTorch/2.9"]
  interface: ib0
  host_suffix: i
  variables: {NCCL_DEBUG: WARN, MESSAGE: "it's $HOME; rm -rf \\"x\\""}
carbon_g_per_kwh: "380"
price_per_kwh: 0.31EUR
options: [--qos=short]
"""


def smaller_first() -> list[BlockRun]:
    first = make_run(0, batch_size=64)
    return [first, replace(make_run(1, batch_size=128), unless_too_large=(first.plan.run_id,))]


def forms() -> dict[str, Job]:
    slurm = make_site(SLURM)
    local = make_site("kind: local\npython: /opt/python\n")
    exclusive = SLURM.replace("max_time: 4h", "exclusive: true, memory: 0, options: [--constraint=a&b]")
    return {
        "slurm-one-run": make_job(slurm, [make_run(devices=4)]),
        "slurm-two-nodes": make_job(make_site(SLURM + ENVIRONMENT), [make_run(devices=8, nodes=2)]),
        "slurm-block": make_job(slurm, smaller_first()),
        "slurm-container": make_job(make_site(SLURM + CONTAINER), [make_run()]),
        "slurm-cpu-exclusive": make_job(make_site(exclusive), [make_run(device="cpu")]),
        "slurm-one-node": make_job(slurm, [make_run()], node="n17"),
        "slurm-podman": make_job(make_site(SLURM + PODMAN), [make_run(devices=8, nodes=2)]),
        "slurm-check": make_job(make_site(SLURM + ENVIRONMENT), [], ask=("doctor",)),
        "local-block": make_job(local, smaller_first()),
        "local-check": make_job(local, [], ask=("doctor",)),
    }


def render(job: Job) -> str:
    launcher = Slurm(print) if job.site.kind == "slurm" else LocalJobs(print)
    rendered = launcher.render(job)
    assert launcher.render(job) == rendered, "rendering is pure"
    (text,) = rendered.files.values()
    return f"# {' '.join(rendered.command)}\n{without_hashes(text)}"


@pytest.mark.parametrize("name", list(forms()))
def test_a_script_is_the_one_that_was_reviewed(name: str) -> None:
    """After a change that is meant: PRONY_GOLDEN=write, then read what changed."""
    text = render(forms()[name])
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("PRONY_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


# What a stand-in for srun and the node program see, when the script really runs

STAND_IN = """\
#!/bin/bash
# takes srun's options away, then becomes what follows
while [[ ${1:-} == --* ]]; do shift; done
SLURM_PROCID=0 exec "$@"
"""
NODE = """\
#!/bin/bash
printenv -0 >"$SEEN"
printf "%s\\0" "$@" >"$SEEN.words"
folder=${!#}
mkdir -p "$folder" && touch "$folder"/record.json
"""
APPTAINER = """\
#!/bin/bash
printf "%s\\0" "$@" >"$SEEN.box"
while [ "$1" != image.sif ]; do shift; done
shift
exec "$@"
"""


def run_script(job: Job, place: Path, number: int = 7) -> tuple[dict[str, str], list[str], int]:
    """The environment and the words of the node program, and how the script ended."""
    (place / "bin").mkdir(parents=True)
    for name, text in (("srun", STAND_IN), ("node", NODE), ("apptainer", APPTAINER)):
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    job.folder.mkdir(parents=True)
    script = Slurm(print).render(job).files["job.sh"]
    assert subprocess.run(["bash", "-n"], input=script.encode()).returncode == 0
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    environment = {"PATH": path, "SEEN": str(place / "seen"), "SLURM_JOB_ID": str(number)}
    done = subprocess.run(["bash", "-s"], input=script.encode(), env=environment, cwd=place, capture_output=True)
    seen = (place / "seen").read_bytes().decode("utf-8", errors="surrogateescape").split("\0")
    words = (place / "seen.words").read_bytes().decode("utf-8", errors="surrogateescape").split("\0")[:-1]
    return dict(line.split("=", 1) for line in seen if line), words, done.returncode


HOSTILE = st.text(
    st.one_of(
        st.sampled_from(list("'\"`$\\;&|<>(){}[]*?!#~ \t\n\r%=-")),
        st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"),
    ),
    max_size=30,
)


@settings(max_examples=25)
@given(value=HOSTILE, folder=HOSTILE, bind=HOSTILE)
def test_no_value_breaks_out_of_the_script(value: str, folder: str, bind: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        site = make_site(SLURM)
        environment = replace(site.environment, variables={"HOSTILE": value, "PYTHONPATH": value})
        container = Container("apptainer", {"": "image.sif"}, binds=(f"/data{bind}",))
        hostile = replace(site, environment=environment, python=str(place / "bin" / "node"), container=container)
        root = place / (folder.replace("/", "_").encode()[:80].decode(errors="ignore").strip(". \t\n\r") or "runs")
        job = make_job(hostile, [make_run()], root=root)
        seen, words, status = run_script(job, place)
        assert status == 0
        assert seen["HOSTILE"] == value
        assert seen.get("PYTHONPATH", "") == value
        assert seen["PRONY_JOB"] == job.id
        assert seen["PRONY_NODE_RANK"] == "0"
        plan = (str(job.plan_file(0)), sha256(job.runs[0].plan_text.encode()).hexdigest())
        program = (f"{job.folder}/node.zip", sha256(node_zip()).hexdigest())
        assert words == ["-c", start_text(), *program, *plan, "-", str(job.run_folder(job.runs[0]))]
        assert f"/data{bind}" in (place / "seen.box").read_bytes().decode().split("\0")
        assert {path.name for path in place.iterdir()} == {"bin", "seen", "seen.words", "seen.box", root.name}


@pytest.mark.parametrize(
    "value", ["$(touch broken)", "`touch broken`", "'; touch broken; '", 'x"; touch broken #', "a\nb"]
)
def test_a_command_in_a_value_is_not_run(tmp_path: Path, value: str) -> None:
    site = make_site(SLURM)
    hostile = replace(
        site, environment=replace(site.environment, variables={"X": value}), python=str(tmp_path / "bin" / "node")
    )
    seen, _, status = run_script(make_job(hostile, [make_run()], root=tmp_path / "runs"), tmp_path)
    assert (seen["X"], status) == (value, 0)
    assert not [path for path in tmp_path.rglob("*") if path.name == "broken"]


BREAKS = (
    "", "x$(touch pwned)", "x`touch pwned`", "x; touch pwned", "x\n#SBATCH --wrap=true\n", "x'\"\ntouch pwned\n",
    "x|touch${IFS}pwned",
)  # fmt: skip
KEYS = (
    "name", "account", "partition", "python", "runs", "options", "carbon_g_per_kwh", "price_per_kwh",
    "environment.modules", "environment.interface", "environment.host_suffix", "environment.variables",
    "container.image", "container.binds", "container.options", "partitions.gpu.gres", "partitions.gpu.memory",
    "partitions.gpu.options", "partitions.gpu.arch",
)  # fmt: skip
LISTS = ("options", "modules", "binds")


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=15)
@given(middle=HOSTILE, end=st.sampled_from(BREAKS), start=st.sampled_from(["", "--x=", "/"]))
def test_no_key_of_a_site_file_breaks_out(key: str, middle: str, end: str, start: str) -> None:
    """A value is refused, or it changes nothing but itself: no further line of #SBATCH, no command that is run."""
    *path, last = key.split(".")
    document: dict[str, Any] = yaml.safe_load(SLURM)
    inner = document
    for part in path:
        inner = inner.setdefault(part, {})
    value = start + middle + end
    inner[last] = [value] if last in LISTS else {"HOSTILE": value} if last == "variables" else value
    if "container" in document:
        document["container"] = {"engine": "apptainer", "image": "image.sif"} | document["container"]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        try:
            site = make_site(yaml.safe_dump(document, allow_unicode=True))
            job = make_job(site, [make_run(nodes=2)], root=place / "runs")
            script = Slurm(print).render(job).files["job.sh"]
        except RequestError:
            return
        head = script.partition("\nset -euo pipefail\n")[0]  # sbatch reads no further than the first command
        for line in head.rstrip("\n").split("\n")[1:]:
            assert re.fullmatch(r"#SBATCH --?[A-Za-z][A-Za-z0-9-]*(=[!-~]+)?", line), head
            assert not line.startswith("#SBATCH --wrap"), head
        (place / "bin").mkdir()
        for program in ("srun", "module"):
            (place / "bin" / program).write_text("#!/bin/bash\n")
            (place / "bin" / program).chmod(0o755)
        job.folder.mkdir(parents=True)
        job.run_folder(job.runs[0]).mkdir()
        (job.run_folder(job.runs[0]) / "record.json").write_text("{}")
        environment = {"PATH": f"{place / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
        done = subprocess.run(["bash", "-s"], input=script.encode(), env=environment, cwd=place, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        assert {found.name for found in place.iterdir()} == {"bin", "runs"}


def test_a_larger_run_is_left_out_after_a_smaller_one_ran_out_of_memory(tmp_path: Path) -> None:
    site = replace(make_site(SLURM), python=str(tmp_path / "bin" / "node"))
    job = make_job(site, smaller_first(), root=tmp_path / "runs")
    small = job.run_folder(job.runs[0])
    small.mkdir(parents=True)
    (small / "record.json").write_text('{\n "failure": {\n  "kind": "out-of-memory"\n }\n}\n')
    _, words, status = run_script(job, tmp_path)
    assert (words[-1], status) == (str(small), 0)
    assert (job.folder / "pruned").read_text().split() == [job.runs[1].plan.run_id]
    assert (job.folder / "ended").read_text() == "0\n"


EARLY = """\
#!/bin/bash
trap '' USR2
kill -USR2 $PPID  # the time limit is near, and srun has only begun
SLURM_PROCID=0 exec bash -c 'sleep 0.5; while [[ ${1:-} == --* ]]; do shift; done; exec "$@"' srun "$@"
"""
LISTENS = f"""\
#!{sys.executable} -S
import os, pathlib, signal, sys, time
pathlib.Path(sys.argv[-1]).mkdir(parents=True)
(pathlib.Path(sys.argv[-1]) / "record.json").touch()
signal.signal(signal.SIGUSR2, lambda *_: (pathlib.Path(os.environ["SEEN"] + ".heard").touch(), sys.exit(1)))
time.sleep(10)
"""


def test_the_signal_that_comes_while_a_step_begins_is_heard(tmp_path: Path) -> None:
    site = replace(make_site(SLURM), python="node")
    job = make_job(site, [make_run(0), make_run(1)], tmp_path / "runs")
    (tmp_path / "bin").mkdir()
    for name, text in (("srun", EARLY), ("node", LISTENS)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    job.folder.mkdir(parents=True)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    script = Slurm(print).render(job).files["job.sh"]
    done = subprocess.run(["bash", "-s"], input=script.encode(), env=environment, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "seen.heard").exists(), "the supervisor would have gone on until it was killed"
    assert b"run 001 does not begin: the time limit is near" in done.stdout


def test_a_run_that_could_not_begin_is_a_job_that_failed(tmp_path: Path) -> None:
    """No node program, no record: only the job can say so."""
    site = replace(make_site(SLURM), python=str(tmp_path / "no-such-python"))
    job = make_job(site, [make_run(0)], root=tmp_path / "runs")
    (tmp_path / "seen").touch()
    (tmp_path / "seen.words").touch()
    _, _, status = run_script(job, tmp_path)
    assert status == 1
    assert "no-such-python" in (job.folder / "run-000.log").read_text()


def test_jobs_that_share_a_node_do_not_meet_at_the_same_port(tmp_path: Path) -> None:
    site = replace(make_site(SLURM), python="node")
    alone, _, _ = run_script(make_job(site, [make_run(devices=2)], tmp_path / "0" / "runs"), tmp_path / "0")
    assert "PRONY_RENDEZVOUS" not in alone, "one node needs no port that others could have"
    block = [make_run(number, nodes=2) for number in range(20)]
    ports = set()
    for number, runs in ((7, block[:17]), (8, block[:1])):  # the 17th run of one, the first of its neighbour
        place = tmp_path / str(number)
        seen, _, _ = run_script(make_job(site, runs, place / "runs"), place, number)
        ports.add(seen["PRONY_RENDEZVOUS"].rpartition(":")[2])
    assert len(ports) == 2


def test_what_a_site_cannot_have_is_refused_before_anyone_is_asked() -> None:
    site = make_site(SLURM)
    for asked, instead in (
        ({"devices": 8}, "devices=8 nodes=2 would do"),
        ({"devices": 7}, "devices=8 nodes=2 would do"),
        ({"devices": 6}, "devices=6 nodes=2 would do"),
        ({"devices": 64}, "a job 8 nodes at most; devices=32 nodes=8 would do"),
    ):
        with pytest.raises(RequestError, match=rf"not possible on here, partition gpu: a node there has 4.*{instead}"):
            check_fits(make_job(site, [make_run(**asked)]))
    with pytest.raises(RequestError, match=r"devices=16 nodes=2 is not possible.*devices=16 nodes=4 would do"):
        check_fits(make_job(site, [make_run(devices=16, nodes=2)]))
    check_fits(make_job(site, [make_run(devices=8, nodes=2)]))
    with pytest.raises(RequestError, match="nodes=9 is not possible"):
        check_fits(make_job(site, [make_run(nodes=9)]))
    with pytest.raises(
        RequestError, match="a job of 300 min is not possible on here, partition gpu: one there has 240"
    ):
        check_fits(make_job(site, [make_run()], time_s=18000.0))
    with pytest.raises(RequestError, match="no name of a node"):
        Slurm(print).render(make_job(site, [make_run()], node="n1\n#SBATCH --uid=0"))
    with pytest.raises(RequestError, match="on this machine alone"):
        LocalJobs(print).render(make_job(make_site("kind: local"), [make_run(nodes=2)]))


def test_paths_with_a_percent_sign_are_not_expanded_by_slurm() -> None:
    job = make_job(make_site(SLURM), [make_run()], root=Path("/scratch/100% of it"))
    command = Slurm(print).render(job).command
    assert f"--output=/scratch/100%% of it/.jobs/{job.id}/job.log" in command

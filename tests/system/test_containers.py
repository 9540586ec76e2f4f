"""Images built with Podman from a local base: the tiny gpt runs in one, and one name stands for two architectures.

`make test-containers`: it takes minutes the first time. Python and torch are mounted read-only from here: an image
with torch in it would be gigabytes of the same files.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from container_bed import Podman, can_emulate, why_not

from prony.sites.job import BlockRun, new_job, save_job
from prony.sites.kubernetes import Receiver
from prony.sites.kubernetes_manifest import manifests
from prony.sites.node import write_node
from prony.sites.site import ARCHITECTURES, choose_partition, parse_site
from prony_node.contract import Plan, Trial
from prony_node.contract.record import read_record
from prony_node.contract.trial import Stop

CHECKOUT = Path(__file__).parents[2]
HERE = ARCHITECTURES[platform.machine()]
OTHER = {"amd64": "arm64", "arm64": "amd64"}[HERE]
WANTED = os.environ.get("PRONY_TEST_CONTAINERS")
REASON = why_not() if WANTED else "takes minutes; `make test-containers` runs it"
pytestmark = [pytest.mark.skipif(REASON is not None, reason=REASON or ""), pytest.mark.slow]


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    made = Podman(tmp_path_factory.mktemp("podman"))
    made.import_base(HERE, f"localhost/prony-base:{HERE}")
    return made


def prony(podman: Podman, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **podman.environment, "PRONY_RUNS": str(folder / "runs")}
    return subprocess.run(
        [sys.executable, "-m", "prony", *words], env=environment, cwd=folder, capture_output=True, text=True,
        check=False, timeout=500,
    )  # fmt: skip


def build(podman: Podman, tag: str, *archs: str, folder: Path, checkout: Path = CHECKOUT) -> None:
    named = [word for arch in archs for word in ("--arch", arch)]
    words = ("container", "build", "cpu", "--base", "localhost/prony-base:{arch}", "--torch", "none", "--tag", tag)
    done = prony(podman, *words, *named, "--checkout", str(checkout), folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]


def write_site(folder: Path, image: str) -> Path:
    """A site of this machine whose container sees the Python that runs these tests."""
    mounted = sorted({str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix)})
    binds = "".join(f"    - {place}:{place}:ro\n" for place in mounted)
    text = f"kind: local\npython: {sys.executable}\ncontainer:\n  engine: podman\n  image: {image}\n  binds:\n{binds}"
    path = folder / "boxed.yaml"
    path.write_text(text + "partitions: {here: {accelerators: 0}}\n", encoding="utf-8")
    return path


def test_the_tiny_gpt_runs_in_an_image_that_was_built_here(podman: Podman, tmp_path: Path) -> None:
    build(podman, "localhost/prony-test", HERE, folder=tmp_path)
    site = write_site(tmp_path, "localhost/prony-test")
    words = ("run", "gpt-tiny", "device=cpu", "batch_size=2", "--max-time", "5", "--no-energy", "--site", str(site))
    done = prony(podman, *words, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:] + "".join(
        path.read_text() for path in (tmp_path / "runs").rglob("*.log")
    )
    record = json.loads(done.stdout)
    assert record["status"] == "ok"
    assert record["facts"]["container"]["runtime"] == "podman", record["facts"]["container"]
    checked = prony(podman, "container", "check", str(site), folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "pass" in checked.stdout
    assert "with torch" in checked.stdout


def test_one_name_stands_for_two_architectures_where_the_other_can_be_emulated(podman: Podman, tmp_path: Path) -> None:
    if not can_emulate(OTHER):
        pytest.skip(f"this kernel does not run programs for {OTHER}: qemu-user-static with binfmt does it")
    podman.import_base(OTHER, f"localhost/prony-base:{OTHER}")
    build(podman, "localhost/prony-both", HERE, OTHER, folder=tmp_path)
    assert podman.architectures("localhost/prony-both") == ["amd64", "arm64"]


def test_an_image_that_is_built_again_is_the_new_one(podman: Podman, tmp_path: Path) -> None:
    """Podman would add it behind the old one, which everybody would go on with."""
    newer = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "containers", newer / "containers")
    (newer / "constraints.txt").write_text("# newer\n", encoding="utf-8")
    for checkout in (CHECKOUT, newer):
        build(podman, "localhost/prony-again", HERE, folder=tmp_path, checkout=checkout)
    assert podman.architectures("localhost/prony-again") == [HERE]


def test_an_image_for_the_other_architecture_is_caught_before_anything_starts(podman: Podman, tmp_path: Path) -> None:
    podman.call("import", "--arch", OTHER, _empty(tmp_path), "localhost/wrong")
    site = write_site(tmp_path, "localhost/wrong")
    done = prony(podman, "run", "gpt-tiny", "device=cpu", "--site", str(site), folder=tmp_path)
    assert done.returncode == 2
    assert f"is for {OTHER}, and the nodes of boxed, partition here, are {HERE}" in done.stderr


def test_the_pod_of_a_kubernetes_job_sends_its_run_back_through_its_log(podman: Podman, tmp_path: Path) -> None:
    """Podman in the place of a kubelet: the command, files and folders of the manifest, and the log that results."""
    build(podman, "localhost/prony-test", HERE, folder=tmp_path)
    text = f"kind: kubernetes\npython: {sys.executable}\npartitions: {{cpu: {{accelerators: 0}}}}\n"
    text += "container: {image: localhost/prony-test}\n"
    site = parse_site(text, "here.yaml", "here")
    trial = Trial("gpt-tiny", {"device": "cpu", "batch_size": 2})
    plan = Plan(run_id="gpt-tiny-1", trial=trial, stop=Stop(max_time_s=5.0), energy=False)
    job = save_job(new_job(site, choose_partition(site, None), tmp_path / "here", [BlockRun(plan)], time_s=400.0))
    first, inputs = manifests(job)
    for place in ("inputs", "runs"):
        (tmp_path / place).mkdir()
    for name, content in inputs["data"].items():
        (tmp_path / "inputs" / name).write_text(content, encoding="utf-8")
    write_node(tmp_path / "inputs" / "node.zip")
    container = first["spec"]["template"]["spec"]["containers"][0]
    words = ["run", "--rm", "--network=none", f"--volume={tmp_path / 'runs'}:/prony/runs"]
    words += [f"--volume={tmp_path / 'inputs'}:/prony/inputs:ro", f"--workdir={container['workingDir']}"]
    words += [f"--volume={place}:{place}:ro" for place in sorted({sys.prefix, sys.base_prefix})]
    words += [f"--env={one['name']}={one['value']}" for one in container["env"]]
    log = podman.call(*words, container["image"], *container["command"])
    receiver = Receiver(job)
    receiver.feed(log.encode())
    receiver.finish(whole=True)
    assert receiver.ended
    record = read_record(job.root / "gpt-tiny-1")
    assert record is not None
    assert record["status"] == "ok", record["failure"]
    assert (job.root / "gpt-tiny-1" / "steps.csv").stat().st_size > 0
    assert "run 000 ended with exit code 0" in (job.folder / "job.log").read_text(encoding="utf-8")


def _empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    subprocess.run(["tar", "-cf", str(folder / "empty.tar"), "-C", str(folder / "empty"), "."], check=True)
    return str(folder / "empty.tar")

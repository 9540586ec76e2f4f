"""The node needs torch and nothing else, and the oldest torch that is supported is one that runs here.

The oldest torch is installed with pip once and kept in $PRONY_TEST_CACHE (else ~/.cache/prony-tests). On x86_64 it is
gigabytes of CUDA, so that there it is asked for by PRONY_TEST_OLD_TORCH=1, and the torch of the tests is taken else.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from prony.sites.node import node_environment, supervisor_argv, write_node
from prony_node.contract import Plan, Stop, Trial, read_record

OLDEST = "2.6.0"

pytestmark = pytest.mark.slow


def is_oldest_wanted() -> bool:
    return platform.machine() in ("aarch64", "arm64") or os.environ.get("PRONY_TEST_OLD_TORCH") == "1"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has torch alone."""
    if not is_oldest_wanted():
        return link_environment(tmp_path_factory.mktemp("torch-alone"))
    cache = Path(os.environ.get("PRONY_TEST_CACHE") or Path.home() / ".cache" / "prony-tests")
    tag = f"torch-{OLDEST}-python{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"
    folder = cache / tag
    if not (folder / "complete").exists():
        install_environment(folder)
    return folder / "bin" / "python"


def link_environment(folder: Path) -> Path:
    """One that sees the torch of this environment with what torch itself requires, and nothing else that is here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in torch_and_its_requirements():
        if found.files is None:
            pytest.skip(f"{found.metadata['Name']} does not say which files are its own, so it cannot be had alone")
        for name in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (packages / name).exists():  # several packages share the folder `nvidia`
                (packages / name).symlink_to(found.locate_file(name))
    return folder / "bin" / "python"


def torch_and_its_requirements() -> list[Distribution]:
    found: dict[str, Distribution] = {}
    wanted = ["torch"]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # a vendor's torch does without some
            continue
        stated = map(Requirement, found[name].requires or [])
        wanted += [one.name for one in stated if one.marker is None or one.marker.evaluate({"extra": ""})]
    if "torch" not in found:
        pytest.skip("torch was not installed as a package here, so it cannot be had alone")
    return list(found.values())


def install_environment(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for argv in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"torch=={OLDEST}", "setuptools<81"],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=540)
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
            pytest.skip(f"pip cannot install torch {OLDEST} here: {last}")
    (folder / "complete").touch()


def make_run(python: Path, tmp_path: Path, trial: Trial) -> tuple[int, dict[str, Any]]:
    """The node, shipped as a zip, by hand: no controller and nothing installed."""
    shipped = write_node(tmp_path / "node.zip")
    plan = Plan(run_id="alone", trial=trial, stop=Stop(min_time_s=0.1, max_time_s=5.0), hung_after_s=120.0)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PRONY_"))}
    environment = node_environment(clean, shipped)
    argv = supervisor_argv(str(python), tmp_path / "plan.json", tmp_path / "out")
    done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    record = read_record(tmp_path / "out")
    assert record is not None, done.stderr
    return done.returncode, record


def test_the_environment_has_torch_alone(python: Path) -> None:
    code = (
        "import importlib.util as u, torch; names = ('numpy', 'torchvision', 'pynvml', 'prony', 'typer');"
        "print(torch.__version__, [name for name in names if u.find_spec(name)])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(python), "-W", "ignore", "-c", code], env=clean, capture_output=True, text=True)
    version, _, found = done.stdout.strip().partition(" ")
    assert version.startswith(OLDEST if is_oldest_wanted() else distribution("torch").version)
    assert found == "[]"


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_run_with_torch_alone_is_good(python: Path, tmp_path: Path, mode: str) -> None:
    trial = Trial("gpt-tiny", {"mode": mode, "steps": 3, "sequence": 8, "device": "cpu"})
    code, record = make_run(python, tmp_path, trial)
    assert (code, record["status"]) == (0, "ok"), record["failure"]
    assert record["metrics"]["throughput"]["value"] > 0
    assert record["facts"]["devices"]


def test_a_missing_model_library_is_a_record_that_names_it(python: Path, tmp_path: Path) -> None:
    code, record = make_run(python, tmp_path, Trial("resnet50", {"steps": 3, "device": "cpu"}))
    assert code == 1
    assert record["failure"]["kind"] == "missing-library"
    assert "torchvision" in record["failure"]["message"]

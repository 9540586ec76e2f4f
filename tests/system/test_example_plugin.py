"""The example of a plug-in, installed by pip into a folder of its own: each thing that it adds is used for real."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "prony-example-plugin"
PACKAGE = "prony-example-plugin"
POWER_W = 120.0
QUICK = ("device=cpu", "batch_size=8", "hidden=16", "--tolerance", "20%", "--max-time", "4s")

pytestmark = pytest.mark.slow


class Place:
    """A Python that has the package, and a folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.packages = folder, folder / "packages"
        self.source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
        install(self.source, self.packages, folder)
        (folder / "watts.csv").write_text("".join(f"{0.1 * number:.1f},{POWER_W}\n" for number in range(600)))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
        self.environment = {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(self.packages)]),
            "PRONY_RUNS": str(folder / "runs"),
            "PRONY_EXAMPLE_POWER": str(folder / "watts.csv"),
            "COLUMNS": "200",
        }

    def call(self, *words: str, module: str = "prony", **more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", module, *words]
        environment = self.environment | more
        return subprocess.run(argv, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=300)

    def prony(self, *words: str, **more: str) -> str:
        done = self.call(*words, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def install(source: Path, target: Path, folder: Path) -> None:
    """By pip, from the sources; by a wheel made here where setuptools is too old to make one without a package more."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    offline = ["--no-index", "--no-deps", "--target", str(target)]
    done = subprocess.run([*pip, *offline, "--no-build-isolation", str(source)], capture_output=True, text=True)
    if done.returncode and "bdist_wheel" in done.stdout + done.stderr:
        done = subprocess.run([*pip, *offline, str(make_wheel(source, folder))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def make_wheel(source: Path, folder: Path) -> Path:
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    about = f"{name}-{version}.dist-info"
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    )
    members = {f"{name}/{path.name}": path.read_text() for path in sorted((source / name).glob("*.py"))}
    members |= {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": points,
    }
    rows = [f"{member},{_record_hash(text)},{len(text.encode())}\n" for member, text in members.items()]
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, text in {**members, f"{about}/RECORD": "".join(rows) + f"{about}/RECORD,,\n"}.items():
            archive.writestr(member, text)
    return wheel


def _record_hash(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def record(place: Place) -> dict[str, Any]:
    """A run of the example's workload, with the example's power reader beside it."""
    found: dict[str, Any] = json.loads(place.prony("run", "example-perceptron", *QUICK, "--json"))
    return found


def test_every_thing_it_adds_is_named_with_its_package(place: Place) -> None:
    listed = json.loads(place.prony("list", "plugins", "--json"))
    assert {(one["adds"], one["name"]) for one in listed} == {
        ("workload", "example-perceptron"),
        ("power reader", "example_file"),
        ("launcher", "example-queue"),
        ("format", "example-tsv"),
    }
    assert {(one["package"], one["version"], one["refused"]) for one in listed} == {(PACKAGE, "1.0", None)}
    workloads = {one["name"]: one for one in json.loads(place.prony("list", "workloads", "--json"))}
    assert workloads["example-perceptron"]["package"] == f"{PACKAGE} 1.0"
    assert workloads["gpt-tiny"]["package"] is None


def test_its_workload_is_measured_and_its_code_is_part_of_the_record(place: Place, record: dict[str, Any]) -> None:
    assert record["status"] == "ok"
    assert record["metrics"]["throughput"]["value"] > 0
    (code,) = record["facts"]["software"]["plugins"]
    assert (code["package"], code["version"]) == (PACKAGE, "1.0")
    assert "workload example-perceptron" in code["adds"]
    assert record["fingerprint"]["parts"][f"plugin_{PACKAGE}"] == f"1.0 {code['sha256']}"


def test_its_power_reader_gives_the_energy_of_the_run(record: dict[str, Any]) -> None:
    power = record["metrics"]["node_power"]
    assert power["value"] == pytest.approx(POWER_W, rel=1e-6)
    assert record["energy"]["parts"][0]["sensor"].startswith("example_file.power")


def test_its_power_reader_measures_any_command(place: Place) -> None:
    place.prony("power", "--readers", "example_file", "--json", "energy.json", "--out", "kept", "--", "sleep", "3")
    document = json.loads((place.folder / "energy.json").read_text())
    assert document["node"]["power_w"] == pytest.approx(POWER_W, rel=1e-6)


def test_an_edited_file_is_other_software(place: Place) -> None:
    def software() -> str:
        done = place.call("fingerprint", "example-perceptron", module="prony_node")
        return str(json.loads(done.stdout)["workloads"]["example-perceptron"])

    module = place.packages / "prony_example_plugin" / "perceptron.py"
    before, text = software(), module.read_text()
    module.write_text(text + "# edited\n")
    try:
        assert software() != before
    finally:
        module.write_text(text)
    assert software() == before


def test_its_launcher_makes_runs_in_turn(place: Place) -> None:
    variables = {
        "PRONY_RANK_MODULE": "stand_in_rank",
        "PRONY_STAND_IN": "pace=0",
        "PYTHONPATH": f"{ROOT / 'tests' / 'stand_in'}{os.pathsep}{place.packages}",
    }
    site = {"kind": "example-queue", "python": sys.executable, "environment": {"variables": variables}}
    (place.folder / "queue.yaml").write_text(json.dumps(site))
    words = ("run", "gpt-tiny", "steps=2", "--repeats", "2", "--site", "queue.yaml", "--no-energy", "--json")
    records = json.loads(place.prony(*words, "--block", "1", "--time", "2m"))
    assert [one["status"] for one in records] == ["ok", "ok"]
    jobs = json.loads(place.prony("jobs", "--json"))
    assert {job["kind"] for job in jobs} == {"example-queue"}


def test_its_format_is_imported(place: Place) -> None:
    (place.folder / "rates.tsv").write_text("# theirs\nresnet50\tA100\t2500\nresnet50\tH100\t5000\n")
    words = ("store", "import", "rates.tsv", "--as", "example-tsv", "--source", "a test")
    assert "2 anchors imported" in place.prony(*words)
    (place.folder / "rates.tsv").write_text("resnet50 A100 2500\n")
    refused = place.call(*words)
    assert refused.returncode == 2
    assert "line 1 has 1 cells" in refused.stderr


def test_a_part_that_is_broken_stops_nothing_else(place: Place) -> None:
    module = place.packages / "prony_example_plugin" / "workload.py"
    text = module.read_text()
    module.write_text("import a_library_that_is_not_here\n")
    try:
        refused = place.call("run", "example-perceptron", *QUICK)
        assert refused.returncode == 2
        assert f"is of the package {PACKAGE} 1.0, which cannot be loaded" in refused.stderr
        assert "a_library_that_is_not_here" in refused.stderr
        assert "gpt-tiny" in place.prony("list", "workloads", "--json")
    finally:
        module.write_text(text)


def test_without_the_package_its_workload_is_unknown(place: Place) -> None:
    refused = place.call("run", "example-perceptron", PYTHONPATH=str(ROOT / "src"))
    assert refused.returncode == 2
    assert "unknown workload or suite 'example-perceptron'" in refused.stderr

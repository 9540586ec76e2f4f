"""What a plain `pip install .` brings, and what each extra adds.

If these fail, a login node downloads torch, a node lacks what its workloads import, or a user of the package gets no
types.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from prony_node import __version__
from prony_node.contract.plugins import EXTRAS, extra_of
from prony_node.workloads import LIBRARIES, WORKLOADS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = ("prony", "prony_node")
DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}  # by the name under which it is imported, where the two differ
OF_OTHERS = {"PIL", "tokenizers", "safetensors"}  # what torchvision, timm and transformers bring


def names_of(extra: str) -> set[str]:
    """The distributions of an extra; one that is made of others has theirs."""
    found: set[str] = set()
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if requirement.name == "prony":
            found = found.union(*map(names_of, requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


# The metadata, as pip builds it


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout, built from a copy, since a build writes beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for package in PACKAGES:
        shutil.copytree(ROOT / "src" / package, folder / "src" / package, ignore=shutil.ignore_patterns("__pycache__"))
    pip(folder, "wheel", "--no-deps", "--wheel-dir", "out", ".")
    (path,) = (folder / "out").glob("*.whl")
    return zipfile.ZipFile(path)


def pip(folder: Path, *words: str) -> None:
    argv = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode and re.search("No matching distribution|Could not find a version", done.stderr):
        pytest.skip("pip reaches no package index")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_a_plain_install_brings_no_torch_and_nothing_that_draws(metadata: Message) -> None:
    stated = map(Requirement, metadata.get_all("Requires-Dist", []))
    plain = {canonicalize_name(one.name) for one in stated if one.marker is None or one.marker.evaluate({"extra": ""})}
    assert plain == {"typer", "rich", "sqlalchemy", "alembic", "jinja2", "pyyaml"}


def test_every_extra_can_be_asked_for(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])


def test_all_that_lies_beside_the_code_is_installed_with_it(wheel: zipfile.ZipFile) -> None:
    """Types (py.typed), the catalog, the templates of the report."""
    beside = {
        path.relative_to(ROOT / "src").as_posix()
        for package in PACKAGES
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= beside
    assert beside <= set(wheel.namelist())


def test_an_index_takes_the_classifiers(metadata: Message, tmp_path: Path) -> None:
    """One that is unknown has the whole upload refused."""
    pip(tmp_path, "install", "--no-deps", "--target", str(tmp_path), "trove-classifiers")
    code = "import sys; from trove_classifiers import classifiers; print(sorted({*sys.argv[1:]} - classifiers))"
    stated = metadata.get_all("Classifier", [])
    done = subprocess.run([sys.executable, "-c", code, *stated], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    assert f"Programming Language :: Python :: {PROJECT['requires-python'].removeprefix('>=')}" in stated
    assert "Typing :: Typed" in stated


# The extras


def test_one_extra_is_enough_for_every_workload() -> None:
    assert names_of("workloads") == set().union(*map(names_of, EXTRAS))


def test_a_node_of_language_models_gets_nothing_for_images() -> None:
    assert names_of("node") | names_of("language") == {"torch", "nvidia-ml-py", "transformers"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_extra_that_a_missing_library_is_answered_with_has_it(extra: str) -> None:
    """A wrong one would have the user install it, and fail again."""
    stated = {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in EXTRAS[extra] if name not in OF_OTHERS}
    assert stated - {"timm"} == names_of(extra) - {"timm"}  # segmentation-models-pytorch brings timm too


def test_every_workload_has_an_extra_with_its_library() -> None:
    every = [*WORKLOADS.values(), *(make("NAME") for make in LIBRARIES.values())]
    found = {one.name: extra_of(one.library, one.module) for one in every if one.library}
    assert [name for name, extra in found.items() if extra is None] == []
    expected = {
        "resnet50": "vision", "fasterrcnn-r50-fpn": "vision", "timm/NAME": "vision", "bert-base-squad": "language",
        "hf/NAME": "language", "segformer-b4": "scenes", "deeplabv3plus-r101": "scenes", "dino-swin-l": "scenes",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_make_and_the_images_install_what_they_run() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    stated = re.findall(r"^\S+: EXTRAS = \[(.*)\]$", makefile, re.MULTILINE)
    assert stated == ["workloads,report", "workloads,report,dev", "report", "report,dev"]
    script = (ROOT / "containers" / "install.sh").read_text(encoding="utf-8")
    installed = set(" ".join(re.findall(r"libraries\+?=\((.*)\)", script)).split())
    assert installed == names_of("workloads")


def test_the_page_of_the_installation_says_what_each_extra_brings() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    for extra in (*EXTRAS, "report"):
        (brings,) = re.findall(rf"^\| `{extra}` \| ([^|]+) \|", page, re.MULTILINE)
        assert set(brings.strip().split(", ")) == names_of(extra), extra
    assert set(re.findall(r"pip install '\.\[(.*)\]'", page)) == {"node,vision"}


def test_what_is_cited_is_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert (cited["version"], cited["license"]) == (__version__, PROJECT["license"])
    assert PROJECT["version"] == __version__

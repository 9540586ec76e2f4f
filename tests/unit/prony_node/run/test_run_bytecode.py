"""Bytecode of what a rank imports has a place of Prony's where Python itself would keep none, and only there."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prony_node.run.processes import bytecode_environment, of_libraries


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Libraries without bytecode, on a machine that is told to write none."""
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ready = True\n")
    (tmp_path / "site" / "torch-2.11.0.dist-info").mkdir()
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: {"torch": spec}[name])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "site"


def test_a_process_finds_what_the_one_before_it_compiled(site: Path, tmp_path: Path) -> None:
    added = bytecode_environment()
    place = Path(added["PYTHONPYCACHEPREFIX"])
    assert place.parent == tmp_path / "cache" / "prony" / "bytecode"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(site), **added}
    subprocess.run([sys.executable, "-c", "import torch; assert torch.ready"], env=environment, check=True)
    assert [path.name for path in place.rglob("*.pyc") if "torch" in path.parts] == [
        Path(importlib.util.cache_from_source("__init__.py")).name
    ]
    assert not (site / "torch" / "__pycache__").exists()


def test_where_python_keeps_it_nothing_is_changed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "dont_write_bytecode", False)  # it will be written beside the source
        assert bytecode_environment() == {}
        patched.setattr(os, "access", lambda *_: False)
        assert bytecode_environment()  # but not by this user
    with monkeypatch.context() as patched:
        patched.setattr(sys, "pycache_prefix", "/somewhere")  # the user has a place of their own
        assert bytecode_environment() == {}
    compiled = Path(importlib.util.cache_from_source(str(site / "torch" / "__init__.py")))
    compiled.parent.mkdir()
    compiled.touch()
    assert bytecode_environment() == {}


@pytest.mark.parametrize("seconds", [0, 315_532_800, int(Path(os.__file__).stat().st_mtime)])
def test_in_an_image_whose_files_have_one_time_nothing_is_kept(site: Path, seconds: int) -> None:
    assert bytecode_environment()
    os.utime(site / "torch" / "__init__.py", (seconds, seconds))
    assert bytecode_environment() == {}


def test_without_torch_or_a_home_there_is_no_place(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("prony_node.contract.cache.cache_folder", lambda: None)
        assert bytecode_environment() == {}
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert bytecode_environment() == {}


def test_other_libraries_at_the_same_path_have_another_place(site: Path) -> None:
    before = of_libraries(site)
    (site / "torch-2.11.0.dist-info").rename(site / "torch-2.12.0.dist-info")
    assert of_libraries(site) != before

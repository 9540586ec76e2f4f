"""A rank keeps bytecode of its own where torch came without any and Python may not write it."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from prony_node.supervise import bytecode


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without bytecode, in torch's place."""
    source = tmp_path / "site" / "torch" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("import sys\nprint(__cached__ or '')\n")
    monkeypatch.setattr(bytecode.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(source)))
    return source


def test_images_that_forbid_it_get_a_place(torch: Path, tmp_path: Path) -> None:
    """And Python finds there on the second start what the first one wrote."""
    asked = {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path / "home")}
    given = os.environ | asked | bytecode.kept_bytecode(asked) | {"PYTHONPATH": str(torch.parents[1])}
    subprocess.run([sys.executable, "-c", "import torch"], env=given, check=True, capture_output=True)
    (written,) = (tmp_path / "home" / ".cache" / "prony" / "bytecode").rglob("torch/__init__*.pyc")
    assert not (torch.parent / "__pycache__").exists()
    again = subprocess.run(
        [sys.executable, "-v", "-c", "import torch"], env=given, check=True, capture_output=True, text=True
    )
    assert f"code object from {str(written)!r}" in again.stderr


def test_an_installation_that_cannot_be_written_to_gets_one(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode.os, "access", lambda path, mode: False)
    assert bytecode.kept_bytecode({"XDG_CACHE_HOME": "/cache"})["PYTHONPYCACHEPREFIX"] == "/cache/prony/bytecode"


def test_nothing_changes_where_bytecode_is_or_will_be(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden = {"PYTHONDONTWRITEBYTECODE": "1"}
    assert bytecode.kept_bytecode(forbidden)
    assert bytecode.kept_bytecode({}) == {}  # Python writes it itself
    assert bytecode.kept_bytecode({**forbidden, "PYTHONPYCACHEPREFIX": "/elsewhere"}) == {}
    py_compile.compile(str(torch))
    assert bytecode.kept_bytecode(forbidden) == {}
    monkeypatch.setattr(bytecode.importlib.util, "find_spec", lambda name: None)
    assert bytecode.kept_bytecode(forbidden) == {}


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode))
def test_bytecode_counts_where_python_would_take_it(torch: Path, mode: py_compile.PycInvalidationMode) -> None:
    """An image whose files have other dates than they were compiled with is one without bytecode."""
    forbidden = {"PYTHONDONTWRITEBYTECODE": "1"}
    there = Path(py_compile.compile(str(torch), invalidation_mode=mode) or "")
    os.utime(torch, (1, 1))
    by_date = mode is py_compile.PycInvalidationMode.TIMESTAMP
    assert bool(bytecode.kept_bytecode(forbidden)) == by_date
    there.write_bytes(there.read_bytes()[:15])
    assert bytecode.kept_bytecode(forbidden)
    there.write_bytes(b"\0" * 40)
    assert bytecode.kept_bytecode(forbidden)

"""Pieces of a machine that is not here: files of the kernel below a folder, and programs on the PATH."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def write_tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files by their absolute names, below `root`."""
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def forbid(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Reading files of this name is refused, as to a user: the tests may run as root, whom no mode bits stop."""
    read_text = Path.read_text

    def refuse(self: Path, *words: object, **named: object) -> str:
        if self.name.endswith(ending):
            raise PermissionError(13, "Permission denied", str(self))
        return read_text(self, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", refuse)


def put_program(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, body: str) -> None:
    """A program of this name, in Python, which the PATH finds and no other."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))

"""Synthetic records (tests/replay/records) for the controller's tests."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPLAY = Path(__file__).parents[2] / "replay" / "records"

GetRecord = Callable[[str], dict[str, Any]]


@pytest.fixture
def get_record() -> GetRecord:
    """A fresh copy of the synthetic record whose id ends like this."""

    def get(end: str) -> dict[str, Any]:
        (folder,) = REPLAY.glob(f"*{end}")
        record: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        return copy.deepcopy(record)

    return get


@pytest.fixture
def replay() -> Path:
    """The folder of all synthetic run folders, not to be written to."""
    return REPLAY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of all synthetic run folders."""
    return Path(shutil.copytree(REPLAY, tmp_path / "runs"))

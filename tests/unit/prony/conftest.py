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
LEARNING = Path(__file__).parents[2] / "replay" / "learning"

GetRecord = Callable[[str], dict[str, Any]]


@pytest.fixture
def get_record() -> GetRecord:
    """A fresh copy of the synthetic record whose id ends like this."""

    def get(end: str) -> dict[str, Any]:
        (folder,) = [*REPLAY.glob(f"*{end}"), *LEARNING.glob(f"*{end}")]
        record: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        return copy.deepcopy(record)

    return get


@pytest.fixture
def replay() -> Path:
    """The folder of all synthetic run folders, not to be written to."""
    return REPLAY


@pytest.fixture
def learning_root(tmp_path: Path) -> Path:
    """A copy of the synthetic run folders that learned from a data set."""
    return Path(shutil.copytree(LEARNING, tmp_path / "learning"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of all synthetic run folders."""
    return Path(shutil.copytree(REPLAY, tmp_path / "runs"))

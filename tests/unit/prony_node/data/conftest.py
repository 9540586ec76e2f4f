"""Real data by package name; a test is skipped, with the reason, where it cannot be had."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for small_sets
SCRIPT = Path(__file__).parents[4] / "scripts" / "fetch_test_data.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_test_data", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    script = load_script()

    def folder(name: str) -> Path:
        try:
            return Path(script.fetch(name))
        except script.NotFetched as error:
            pytest.skip(str(error))

    return folder

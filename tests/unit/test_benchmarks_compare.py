"""If this fails, nothing says how often `prony compare` is wrong."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_compare", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def test_every_design_is_in_the_table_and_a_miss_exits_with_1(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    status = benchmark.main(["--count", "20"])
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("| 1v", "| 2", "| 3", "| 4", "| 5"))
    ]
    assert len(lines) == len(benchmark.rows())
    assert {line.split(" | ")[0].strip("| ") for line in lines} >= {"1v1", "1v3", "2v2", "3v3", "5v5"}
    assert status == int(any(line.endswith("| miss |") for line in lines))


def test_the_gates_hold_roughly(benchmark: ModuleType) -> None:
    """With few comparisons per row; the benchmark itself has thousands."""
    count = 60
    for row in benchmark.rows():
        rng = random.Random(1)
        share = sum(row.try_once(rng) for _ in range(count)) / count
        assert row.most is None or share <= row.most + (0.1 if row.most else 0.0), row
        assert row.least is None or share >= row.least - 0.15, row

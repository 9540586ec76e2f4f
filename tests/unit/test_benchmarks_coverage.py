"""benchmarks/coverage.py passes its gates at small counts, and exits with 1 where one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CELLS = r"^(stall 12 s-fast-cv0.5|modes-fast-cv5|pareto-fast|jump-fast-cv0.5|tail|steady-(fast|slow)-cv0.5-ar0$)"


def run_benchmark(before: str = "pass", cells: str = CELLS, series: int = 24) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, 'benchmarks'); {before}; import coverage; sys.exit(coverage.main())"
    words = [sys.executable, "-c", code, "--series", str(series), "--jobs", "1", "--cells", cells]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_events_inside_the_window_are_covered_or_doubted_and_steady_series_are_not() -> None:
    found = run_benchmark()
    assert found.returncode == 0, found.stdout
    assert "8 cells: 8 pass, 0 miss" in found.stdout


def test_a_missed_gate_is_told_to_whoever_called() -> None:
    never = "import coverage_table; coverage_table.TOLD_GATE = 1.1"
    found = run_benchmark(never, cells="^pareto-fast", series=4)
    assert found.returncode == 1, found.stderr
    assert "**not told**" in found.stdout

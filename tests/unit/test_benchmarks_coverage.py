"""benchmarks/coverage.py passes its gates at small counts, and exits with 1 where one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_few_series_miss_a_gate_only_beyond_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """With raw shares 65 of 164 cells missed at 10 series, by chance."""
    pytest.importorskip("numpy")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from coverage_series import Cell
    from coverage_table import Row, Tally, at_most, chance_of_a_gate, how_it_is_judged

    def row(covered: int, series: int) -> Row:
        tally = Tally(series=series, covered=covered, width=series, width_squared=series, ideal_width=series)
        return Row(Cell("decay", "fast", 0.05, 0.0), tally, chance_of_a_gate(series, 164))

    assert at_most(1, 2, 0.5) == pytest.approx(0.75)
    assert at_most(1999, 2000, 0.999) == pytest.approx(1 - 0.999**2000)
    assert [row(covered, 20).misses() for covered in (16, 10)] == [[], ["coverage"]]
    assert [row(covered, 2000).misses() for covered in (1861, 1859)] == [[], ["coverage"]]
    wide = Tally(series=20, covered=20, width=40.0, width_squared=80.0, ideal_width=20.0)
    spread = Tally(series=20, covered=20, width=40.0, width_squared=400.0, ideal_width=20.0)
    chance = chance_of_a_gate(20, 164)
    cell = Cell("decay", "fast", 0.05, 0.0)
    assert [Row(cell, one, chance).misses() for one in (wide, spread)] == [["width"], []]
    assert how_it_is_judged(20, 164).startswith("20 series per cell, fewer than 2000: a miss is a share significantly")
    assert how_it_is_judged(2000, 164) == "2000 series per cell: a share beyond its gate is a miss."


def test_a_missed_gate_is_told_to_whoever_called() -> None:
    never = "import coverage_table; coverage_table.TOLD_GATE = 1.1"
    found = run_benchmark(never, cells="^pareto-fast", series=4)
    assert found.returncode == 1, found.stderr
    assert "**not told**" in found.stdout

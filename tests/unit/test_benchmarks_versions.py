"""If this fails, a change that makes the node slower passes its comparison with the version before."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS.parent / "benchmarks" / "versions.py"
RUN = TESTS / "replay" / "records" / "resnet50-20260302T090200-c00002"

# A checkout whose script leaves records with the rates that its file names, as scripts/device_results.py would.
STAND_IN = """
import json, sys
from pathlib import Path
trials, runs, repeats = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[sys.argv.index("--repeats") + 1])
here = Path(__file__).parents[1]
(here.parent / "order.txt").open("a").write(here.name + "\\n")
rates = json.loads((here / "rates.json").read_text())
for number in range(len(list(runs.glob("*"))), repeats):
    record = json.loads(Path({run!r}).read_text())
    record["id"] = f"made-up-{{number}}"
    record["started"] = record["ended"] = f"2026-11-19T10:00:0{{number}}+00:00"
    rate = rates[number]
    if rate is None:
        record |= {{"status": "failed", "failure": {{"kind": "hung", "message": ""}}}}
    else:
        record["metrics"]["throughput"] |= {{"value": rate, "low": rate, "high": rate}}
    folder = runs / record["id"]
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(record))
"""


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_versions", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def compare(benchmark: ModuleType, folder: Path, old: str, new: str, pairs: int = 3) -> int:
    for name, rates in (("old", old), ("new", new)):
        (folder / name / "scripts").mkdir(parents=True)
        script = STAND_IN.format(run=str(RUN / "record.json"))
        (folder / name / "scripts" / "device_results.py").write_text(script)
        (folder / name / "rates.json").write_text(rates)
    trials = folder / "trials.txt"
    trials.write_text("# what is compared\nresnet50 batch_size=8\n")
    words = [str(folder / "old"), str(folder / "new"), str(trials), str(folder / "runs"), "--pairs", str(pairs)]
    status: int = benchmark.main(words)
    return status


def test_equal_versions_pass_and_their_runs_alternate(
    benchmark: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert compare(benchmark, tmp_path, "[100, 110, 120]", "[100.1, 109.9, 120]") == 0
    assert (tmp_path / "order.txt").read_text().split() == ["old", "new", "new", "old", "old", "new"]
    assert "| resnet50 batch_size=8 | 3 | 1.0000 | 0.99" in capfd.readouterr().out, "what both share cancels"


def test_a_slower_version_fails(benchmark: ModuleType, tmp_path: Path) -> None:
    assert compare(benchmark, tmp_path, "[100, 110, 120]", "[98, 107.9, 117.5]") == 1


def test_too_few_good_pairs_conclude_nothing(
    benchmark: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run that failed leaves its pair out, and does not shift the others."""
    assert compare(benchmark, tmp_path, "[100, null, 120]", "[100, 110, 120]") == 3
    assert "| resnet50 batch_size=8 | 2 | - | too few pairs |" in capfd.readouterr().out


def test_a_folder_that_is_no_checkout_is_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        benchmark.main([str(tmp_path), str(tmp_path), "trials.txt", str(tmp_path / "runs")])

"""The energy of a whole run: first reading to last, whatever the steady window was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from documents import of_documents

from prony.report.series import run_energy_j
from prony_node.contract import files

run_energy_j = of_documents(run_energy_j)

SAMPLES = """before_s,after_s,sensor,value,note
1.0,1.0,0,1000.0,
1.0,1.0,1,100.0,
2.0,2.0,1,300.0,
4.0,4.0,1,300.0,
4.0,4.0,0,1700.5,
5.0,5.0,0"""  # the last line was cut by a kill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sensors = [{"id": "counter A"}, {"id": "samples B"}]
    (tmp_path / "power.json").write_text(json.dumps({"sensors": sensors}))
    (tmp_path / "power.csv").write_text(SAMPLES)
    return tmp_path


def test_counters_are_subtracted_and_power_is_integrated(folder: Path) -> None:
    counter = {"sensor": "counter A", "kind": "counter"}
    samples = {"sensor": "samples B", "kind": "instantaneous"}
    assert run_energy_j(folder, {"energy": {"parts": [counter]}}) == pytest.approx(700.5)
    assert run_energy_j(folder, {"energy": {"parts": [counter, samples]}}) == pytest.approx(700.5 + 200.0 + 600.0)


def test_each_node_has_its_own_samples_and_without_one_there_is_no_sum(folder: Path) -> None:
    """Sensors of two nodes have the same names: those of the first must not be read twice."""
    run = folder / "run"
    for node, counted_j in ((0, 100.0), (1, 30.0)):
        own = files.node_folder(run, node)
        own.mkdir()
        (own / "power.json").write_text((folder / "power.json").read_text())
        (own / "power.csv").write_text(f"before_s,after_s,sensor,value,note\n1,1,0,5.0,\n2,2,0,{5.0 + counted_j},\n")
    parts = [{"sensor": "counter A", "kind": "counter", "node": node} for node in (0, 1)]
    nodes: list[dict[str, Any]] = [{"node": 0, "energy_j": 90.0}, {"node": 1, "energy_j": 20.0}]
    assert run_energy_j(run, {"energy": {"parts": parts, "nodes": nodes}}) == pytest.approx(130.0)
    nodes[1]["energy_j"] = None
    assert run_energy_j(run, {"energy": {"parts": parts[:1], "nodes": nodes}}) is None


def test_what_was_not_sampled_is_unknown_and_never_zero(folder: Path, tmp_path: Path) -> None:
    assert run_energy_j(folder, {"energy": None}) is None
    assert run_energy_j(folder, {"energy": {"parts": [{"sensor": "another", "kind": "counter"}]}}) is None
    assert (
        run_energy_j(tmp_path / "nothing", {"energy": {"parts": [{"sensor": "counter A", "kind": "counter"}]}}) is None
    )

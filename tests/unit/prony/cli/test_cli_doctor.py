"""If these fail, `prony doctor` breaks where a user needs it most: on a machine with something missing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from prony.cli.doctor import DoctorDocument, show
from prony_node.contract.typed import decode

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "
ASK = "import json; from prony_node.run.questions import doctor; print(json.dumps(doctor()))"


def ask(code: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return ask(ASK)


def shown(document: dict[str, Any], width: int = 100) -> str:
    out = io.StringIO()
    show(decode(DoctorDocument, document), Console(file=out, width=width))
    return out.getvalue()


def test_the_document_has_every_part(document: dict[str, Any]) -> None:
    assert document["schema"] == "prony.doctor/1"
    assert document["devices"][-1]["device"] == "cpu"
    can = document["devices"][-1]["abilities"]
    assert can["bf16"]["can"] is True
    assert can["attention"]["math"]["can"] is True
    assert can["graphs"] == {"can": False, "reason": "a CPU has no graphs"}
    assert all(set(entry) == {"what", "needed_for", "how"} for entry in document["missing"])


def test_a_person_sees_it_within_100_columns(document: dict[str, Any]) -> None:
    text = shown(document)
    assert document["torch"]["version"] in text
    assert max(map(len, text.splitlines())) <= 100


def test_it_works_and_says_so_without_torch() -> None:
    document = ask(WITHOUT_TORCH + ASK)
    assert document["torch"]["installed"] is False
    assert document["devices"] == []
    assert any(entry["what"] == "torch" for entry in document["missing"])
    assert "none: torch" in shown(document)


def test_a_missing_library_names_its_workload() -> None:
    document = ask("import sys; sys.modules['torchvision'] = None; " + ASK)
    (entry,) = (entry for entry in document["missing"] if entry["what"] == "torchvision")
    assert "resnet50" in entry["needed_for"]
    assert entry["how"].startswith("pip install 'prony[vision]'")


def test_a_full_machine_fits_and_brackets_are_not_markup(document: dict[str, Any]) -> None:
    device = {
        "device": "cuda:0", "kind": "cuda", "name": "NVIDIA H200", "counts_as": "one GPU", "ecc": "on",
        "uuid": "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "memory_total_bytes": 150754820096,
        "driver": "580.65.06", "architecture": "sm_90", "multiprocessors": 132, "pci": None,
        "clocks": {"sm_now_mhz": 1980}, "power_limit": {"set_w": 700.0},
        "abilities": {"graphs": {"can": True, "reason": None}},
    }  # fmt: skip
    links = {"devices": [{"uuid": "a", "nvlinks_active": 18}, {"uuid": "b", "nvlinks_active": None}],
             "pairs": [{"between": ["a", "b"], "nvlink": False, "pcie": "one NUMA node"}]}  # fmt: skip
    near = [{"device": "cuda:0", "address": None, "numa_node": 0, "cpus": "0-15"}]
    full = document | {
        "devices": [device],
        "topology": {"near": near, "links": links, "missing": []},
        "environment": {"NCCL_SOCKET_IFNAME": "[red]eth0[/red]"},
        "power": {
            "sensors": [
                {
                    "id": "nvidia.energy GPU-aaaaaaaa",
                    "label": "NVIDIA H200, energy counter",
                    "kind": "counter",
                    "scope": "gpu",
                    "unit": "J",
                    "period_s": 0.1,
                    "probed_period_s": 0.0999,
                    "window_s": None,
                    "uncertainty": 0.05,
                    "contains": [],
                    "privileged": False,
                    "evidence": "hardware",
                    "value_now": 2791.768,
                    "note": None,
                }
            ],
            "reasons": {"rapl": "no permission to read it"},
            "notes": [],
        },
    }
    text = shown(full)
    assert "NVIDIA H200" in text
    assert "[red]eth0[/red]" in text
    assert "18 NVLinks active" in text
    assert "no permission" in text
    assert "changes every 100 ms" in text
    assert "evidence: hardware" in text
    assert max(map(len, text.splitlines())) <= 100
    assert shown(full, width=60)

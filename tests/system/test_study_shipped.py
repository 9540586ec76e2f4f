"""Each shipped study for real, its quick size in tiny models on a CPU: it ends, and its tables show what was run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TINY = ["size=tiny", "device=cpu", "devices=1", "cores=1", "steps=2"]

pytestmark = pytest.mark.slow


def prony(root: Path, *words: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_RUNS")}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PRONY_RUNS": str(root)}
    argv = [sys.executable, "-m", "prony", *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SMALLER = {  # batches and precisions that a CPU is quick with, so that a table gets a few of its rows
    "hurt-nrp": ["batch_size=2", "classify-vit-h-cifar100.image_size=", "classify-vit-h-food101.image_size="],
    "nasari-pearc22": [
        "precision=fp32", "epochs.batch_size=4", "epochs.compile_cache=", "models.batch_size=4", "bert.batch_size=2",
        "batches.grad_accumulation=", "batches.batch_size=2,20", "figure-2.batch_size=20", "figure-2.precision=fp16",
        "autoencoder.batch_size=10",
    ],
    # A core without bf16 instructions takes seconds for a step of 32 images: parts share trials where they can.
    "olivia-gh200": [
        "batch_size=32", "node.precision=bf16", "node.workers=32", "node.prefetch=4", "workers.workers=32",
        "workers.prefetch=4",
        "precisions.batch_size=256", "precisions.precision=default",
    ],
    "caraml": ["precision=fp32", "gpt.global_batch=16,32,64", "resnet.global_batch=16,64"],
}  # fmt: skip


def asked_words(name: str, parts: str) -> list[str]:
    """The study with its settings as words of a command; some of its parts alone, so that no test takes minutes."""
    changes = [
        word for word in SMALLER[name] if not parts or word.partition(".")[0] in parts.split() or "." not in word
    ]
    chosen = [word for part in parts.split() for word in ("--part", part)]
    return [name, *TINY, *changes, "--size", "quick", *chosen]


@pytest.mark.parametrize(
    ("name", "parts", "runs", "filled", "drawn"),
    [
        ("hurt-nrp", "classify-cifar100 classify-food101", 5, 20, 0),
        ("hurt-nrp", "classify-vit-h-cifar100 classify-vit-h-food101", 1, 4, 0),
        ("hurt-nrp", "detect-fasterrcnn detect-dino", 2, 4, 0),
        ("hurt-nrp", "segment", 2, 4, 0),
        ("hurt-nrp", "infer-resnet50 infer-swin-t", 2, 0, 4),  # the published figure is a gap between two systems
        ("nasari-pearc22", "epochs models bert", 6, 7, 0),
        ("nasari-pearc22", "batches autoencoder", 3, 18, 0),
        ("nasari-pearc22", "figure-2", 1, 0, 2),
        ("olivia-gh200", "baseline precisions", 2, 2, 3),
        ("olivia-gh200", "optimised node workers aggressive allocation", 1, 2, 0),
        ("olivia-gh200", "numa independent", 1, 2, 0),
        ("caraml", "resnet", 2, 15, 5),
        ("caraml", "gpt gpt-117m", 4, 2, 5),
    ],
)
def test_a_shipped_study_runs_to_its_end_and_fills_its_tables(
    tmp_path: Path, name: str, parts: str, runs: int, filled: int, drawn: int
) -> None:
    asked = asked_words(name, parts)
    printed = prony(tmp_path, "study", "run", *asked, "--no-energy")
    records = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*/record.json")]
    assert [record["status"] for record in records] == ["ok"] * runs
    standing = json.loads(prony(tmp_path, "study", "status", *asked, "--json"))
    assert (standing["done"], standing["left"], standing["pruned"], standing["impossible_here"]) == (runs, 0, 0, {})
    document = json.loads(prony(tmp_path, "study", "show", *asked, "--json"))
    cells = [cell for table in document["tables"] for cell in table["cells"]]
    ours = [cell for cell in cells if cell["ours"] is not None]
    assert len(ours) >= filled
    assert {claim["verdict"] for claim in document["claims"]} <= {"cannot be tested here"}, "a tiny model tests nothing"
    assert document["claims"] or not drawn, "each study is asked for its claims once"
    # A tiny model beside a whole one: never a ratio, always a reason, and what differs by name.
    assert all(cell["ratio"] is None and cell["reason"] for cell in cells)
    assert all({"device", "model"} <= set(cell["differs"]) for cell in ours)
    for table in document["tables"]:
        assert table["title"] in printed
    assert "What this study cannot repeat:" in printed
    assert "Not stated by the publication, and assumed:" in printed
    if not drawn:
        return
    out = tmp_path / "figures"
    said = prony(tmp_path, "figures", *asked, "--out", str(out), "--format", "json")
    captions = [path.read_text(encoding="utf-8") for path in out.glob("*.txt")]
    assert len(captions) == said.count(".json\n") == drawn
    assert any("In colour: ours" in caption for caption in captions)
    if (name, parts) != ("caraml", "resnet"):  # one page is like the other
        return
    assert any("In colour: ours" in caption and "a tiny one of its kind" in caption for caption in captions)
    page = Path(prony(tmp_path, "report").removeprefix("report: ").strip()).read_text(encoding="utf-8")
    shown = [table["title"] for table in document["tables"] if any(cell["ours"] for cell in table["cells"])]
    assert shown
    assert all(title in page.split('id="published"')[1] for title in shown)

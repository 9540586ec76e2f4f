"""Each shipped study for real, its quick size in tiny models on a CPU: it ends, and its tables show what was run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TINY = ["size=tiny", "device=cpu", "devices=1", "cores=1", "steps=2"]

pytestmark = pytest.mark.slow

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


PARTS = {  # each in two or three commands, so that no test takes minutes; how many runs each makes
    "hurt-nrp": {
        "classify-cifar100 classify-food101 classify-vit-h-cifar100 classify-vit-h-food101": 6,
        "detect-fasterrcnn detect-dino": 2,
        "segment infer-resnet50 infer-swin-t": 4,
    },
    "nasari-pearc22": {"epochs models": 5, "bert batches autoencoder figure-2": 5},
    "olivia-gh200": {"baseline precisions optimised node workers aggressive allocation numa independent": 4},
    "caraml": {"resnet": 2, "gpt gpt-117m": 4},
}
ONE_OF_EACH = [(study, parts) for study, groups in PARTS.items() for parts in groups]


def asked_words(name: str, parts: str) -> list[str]:
    """The study with its settings as words of a command; these parts of it alone."""
    changes = [
        word for word in SMALLER[name] if not parts or word.partition(".")[0] in parts.split() or "." not in word
    ]
    chosen = [word for part in parts.split() for word in ("--part", part)]
    return [name, *TINY, *changes, "--size", "quick", *chosen]


@dataclass
class Place:
    """A folder of runs for each study, and what was printed when its parts were run there."""

    folder: Path
    variables: dict[str, str]
    printed: dict[tuple[str, str], str] = field(default_factory=dict)
    made: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # how its runs ended

    def prony(self, name: str, *words: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_RUNS")}
        environment = {**kept, **self.variables, "PRONY_RUNS": str(self.folder / name)}
        argv = [sys.executable, "-m", "prony", *words]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=540)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, name: str, parts: str) -> None:
        """Run these parts, unless another test has."""
        if (name, parts) in self.made:
            return
        before = set((self.folder / name).glob("*/record.json"))
        self.printed[name, parts] = self.prony(name, "study", "run", *asked_words(name, parts), "--no-energy")
        new = set((self.folder / name).glob("*/record.json")) - before
        self.made[name, parts] = [json.loads(path.read_text(encoding="utf-8"))["status"] for path in new]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, quick_ranks: dict[str, str]) -> Place:
    return Place(tmp_path_factory.mktemp("studies"), quick_ranks)


@pytest.mark.parametrize(("name", "parts"), ONE_OF_EACH)
def test_the_parts_of_a_shipped_study_run_to_their_end(place: Place, name: str, parts: str) -> None:
    place.run(name, parts)
    assert place.made[name, parts] == ["ok"] * PARTS[name][parts]


@pytest.mark.parametrize(
    ("name", "filled", "drawn"),
    [
        ("hurt-nrp", 32, 4),  # of the published figure, a gap between two systems, no cell is ours
        ("nasari-pearc22", 25, 2),
        ("olivia-gh200", 6, 3),
        ("caraml", 15, 5),
    ],
)
def test_the_tables_of_a_shipped_study_are_filled(
    place: Place, tmp_path: Path, name: str, filled: int, drawn: int
) -> None:
    for parts in PARTS[name]:
        place.run(name, parts)
    printed = "".join(place.printed[name, parts] for parts in PARTS[name])
    asked = asked_words(name, " ".join(PARTS[name]))
    runs = sum(PARTS[name].values())
    standing = json.loads(place.prony(name, "study", "status", *asked, "--json"))
    assert (standing["done"], standing["left"], standing["pruned"], standing["impossible_here"]) == (runs, 0, 0, {})
    document = json.loads(place.prony(name, "study", "show", *asked, "--json"))
    cells = [cell for table in document["tables"] for cell in table["cells"]]
    ours = [cell for cell in cells if cell["ours"] is not None]
    assert len(ours) >= filled
    assert {claim["verdict"] for claim in document["claims"]} == {"cannot be tested here"}, "a tiny model tests nothing"
    # A tiny model beside a whole one: never a ratio, always a reason, and what differs by name.
    assert all(cell["ratio"] is None and cell["reason"] for cell in cells)
    assert all({"device", "model"} <= set(cell["differs"]) for cell in ours)
    for table in document["tables"]:
        assert table["title"] in printed
    assert "What this study cannot repeat:" in printed
    assert "Not stated by the publication, and assumed:" in printed
    out = tmp_path / "figures"
    said = place.prony(name, "figures", *asked, "--out", str(out), "--format", "json")
    captions = [path.read_text(encoding="utf-8") for path in out.glob("*.txt")]
    assert len(captions) == said.count(".json\n") == drawn
    assert any("In colour: ours" in caption for caption in captions)
    if name != "caraml":  # one page is like the other
        return
    assert any("In colour: ours" in caption and "a tiny one of its kind" in caption for caption in captions)
    page = Path(place.prony(name, "report").removeprefix("report: ").strip()).read_text(encoding="utf-8")
    shown = [table["title"] for table in document["tables"] if any(cell["ours"] for cell in table["cells"])]
    assert shown
    assert all(title in page.split('id="published"')[1] for title in shown)

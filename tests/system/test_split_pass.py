"""An inference over a test split: every image once, its accuracy and its time, on one device and on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "prony_node" / "data"))
import small_sets  # noqa: E402

from prony_node.data.batches import as_input  # noqa: E402
from prony_node.data.loader import file_loader  # noqa: E402
from prony_node.data.source import open_dataset  # noqa: E402
from prony_node.run.verify import verify_folder  # noqa: E402
from prony_node.workloads.image import tiny_model  # noqa: E402

CLASSES, SIDE = 11, 32  # 22 images to test with: batches of 4 leave two over

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in ImageNet's layout, and weights that somebody saved."""
    place = tmp_path_factory.mktemp("split")
    small_sets.imagenet(place / "set", classes=CLASSES, each=3)
    torch.manual_seed(3)
    model = tiny_model("resnet50", SIDE, 0, CLASSES)
    with torch.no_grad():
        for module in model.modules():  # as after a training: else a network that forgets them would pass
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.uniform_(-0.2, 0.2)  # type: ignore[union-attr]
    torch.save(model.state_dict(), place / "weights.pt")
    return place


def by_hand(place: Path) -> float:
    """The accuracy of these weights, image by image."""
    model = tiny_model("resnet50", SIDE, 0, CLASSES).eval()
    model.load_state_dict(torch.load(place / "weights.pt", weights_only=True))
    test = open_dataset(place / "set", split="test")
    right = 0
    for batch in file_loader(test, 1, workers=0, augment=False, image_size=SIDE, endless=False):
        images, labels = as_input("images", test.kind, batch, SIDE, torch.float32)
        with torch.no_grad():
            right += int((model(images).argmax(dim=-1) == labels).sum())
    assert 0 < right < len(test) == 2 * CLASSES
    return right / len(test)


def infer(place: Path, ranks: dict[str, str], *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    own = {**ranks, "PRONY_RUNS": str(place / "runs")}
    argv = [sys.executable, "-m", "prony", "run", "resnet50", "size=tiny", "mode=infer", f"data={place / 'set'}"]
    argv += ["epochs=1", "device=cpu", "cores=1", "workers=0", *words, "--no-energy", "--json"]
    done = subprocess.run(argv, env=kept | own, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("words", [("preset=plain", "batch_size=4"), ("devices=2", "batch_size=4")])
def test_accuracy_and_time_are_of_every_image_of_the_split(
    place: Path, quick_ranks: dict[str, str], words: tuple[str, ...]
) -> None:
    made: dict[str, Any] = json.loads(infer(place, quick_ranks, f"weights={place / 'weights.pt'}", *words).stdout)
    metrics = made["metrics"]
    assert metrics["quality"]["value"] == pytest.approx(by_hand(place))
    assert metrics["quality"]["unit"] == "accuracy"
    assert metrics["quality"]["low"] < metrics["quality"]["value"] < metrics["quality"]["high"]
    assert "22 samples" in metrics["quality"]["source"]
    assert metrics["split_time"]["value"] * metrics["split_throughput"]["value"] == pytest.approx(2 * CLASSES)
    assert made["phases"]["rest_of_split"]["steps"] == 1  # of two images on one device, of three on each of two
    assert not [check for check in made["checks"] if check["level"] == "fail"]
    found = verify_folder(place / "runs" / made["id"])
    assert (found.outcome, found.problems) == ("verified", ())


def test_a_batch_that_the_split_does_not_fill_is_refused(place: Path, quick_ranks: dict[str, str]) -> None:
    done = infer(place, quick_ranks, "batch_size=23", code=2)
    assert "23 samples is more than the 22 of the test split" in done.stdout + done.stderr

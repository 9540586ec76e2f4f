"""DINO with Swin-L, whole, from random weights: shown eight generated images, it finds again what is in them.

A real run, from the command line to the record, on files in COCO's layout whose test split is what it was trained on:
that it can learn at all is asked, not what it makes of other images. It takes some minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from prony_node.data.generated import generate

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
IMAGES, TIMES = 8, 8  # each is listed eight times to train, so that an epoch is worth an evaluation
# On a CPU a small model of the same kind was past 0.5 after 320 steps of two images, shrunk to 224 pixels, with this
# rate; there are 65 boxes in them, 32 of these in one image.
WORDS = ("until=map>=0.5", "epochs=45", "batch_size=2", "learning_rate=2e-4", "augment=off", "workers=0")


def eight_images(folder: Path) -> Path:
    """Eight images in `val2017`, and the same ones again and again in `train2017`."""
    made, goal = folder / "made", folder / "eight"
    generate("coco", made, IMAGES)
    document = json.loads((made / "annotations" / "instances_train2017.json").read_text())
    (goal / "annotations").mkdir(parents=True)
    for split, times in (("train", TIMES), ("val", 1)):
        (goal / f"{split}2017").mkdir()
        repeated: dict[str, Any] = {"categories": document["categories"], "images": [], "annotations": []}
        for time in range(times):
            for image in document["images"]:
                number = image["id"] + 1000 * time
                name = f"{number:012d}.jpg"
                shutil.copy(made / "train2017" / image["file_name"], goal / f"{split}2017" / name)
                repeated["images"].append({**image, "id": number, "file_name": name})
            for box in document["annotations"]:
                own = {"id": box["id"] + 10_000 * time, "image_id": box["image_id"] + 1000 * time}
                repeated["annotations"].append({**box, **own})
        (goal / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(repeated))
    return goal


def learned(folder: Path, *words: str) -> dict[str, Any]:
    """The record of a run on those images."""
    argv = [sys.executable, "-m", "prony", "run", "dino-swin-l", f"data={eight_images(folder)}", *WORDS, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [*argv, "--json", "--out", str(folder / "runs")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.mark.timeout(900)
def test_it_overfits_eight_generated_images_at_its_full_size(device: torch.device, tmp_path: Path) -> None:
    record = learned(tmp_path)
    print([(point["steps"], round(point["map"], 3)) for point in record["learning"]["curve"]])
    assert record["trial"]["effective"]["size"] == "full"
    assert (record["data"]["samples"], record["data"]["test_samples"]) == (IMAGES * TIMES, IMAGES)
    assert record["learning"]["reached"], record["learning"]["curve"]
    assert record["metrics"]["quality"]["value"] > 0.5

"""From real data to a quality, and from generated files to a rate: real runs, on a CPU and on tiny models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "prony_node" / "data"))
import small_sets  # noqa: E402

from prony_node.run.verify import verify_folder  # noqa: E402

ONE_CORE = ("cores=1", "device=cpu")  # two threads on a busy machine wait for each other

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Place:
    """A folder of runs and data sets; the ranks are of a process that has imported torch already."""

    folder: Path
    ranks: dict[str, str]

    def prony(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
        own = {**self.ranks, "PRONY_RUNS": str(self.folder / "runs"), "PRONY_DATA": str(self.folder / "data")}
        argv = [sys.executable, "-m", "prony", *words]
        done = subprocess.run(argv, env=kept | own, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def record(self, *words: str, code: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.prony("run", *words, "--json", code=code).stdout)
        return document


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, quick_ranks: dict[str, str]) -> Place:
    return Place(tmp_path_factory.mktemp("learning"), quick_ranks)


def level(made: dict[str, Any], name: str) -> str:
    return next(str(check["level"]) for check in made["checks"] if check["name"] == name)


def test_a_small_classifier_learns_mnist(place: Place, real_data: Callable[[str], Path]) -> None:
    data = f"data={real_data('mnist')}"
    words = ("size=tiny", "until=accuracy>=0.9", "epochs=2", "data_samples=3000", "batch_size=16", "augment=off")
    words += ("test_samples=2000", "report_at_epochs=1")
    made = place.record("wideresnet", data, *words, "learning_rate=0.05", *ONE_CORE)
    quality = made["metrics"]["quality"]
    assert quality["value"] >= 0.9
    assert quality["low"] < quality["value"] < quality["high"]
    assert quality["unit"] == "accuracy"
    learning = made["learning"]
    assert learning["reached"]["epoch"] == len(learning["curve"]) <= 2  # it stopped when it had learned enough
    assert made["metrics"]["quality_at_epochs"]["value"] == learning["curve"][0]["accuracy"]
    last = learning["curve"][-1]
    assert last["accuracy"] == quality["value"]
    assert last["samples"] == 16 * last["steps"] == 16 * 187 * last["epoch"]
    spent = made["metrics"]["time_to_quality"]
    assert spent["value"] == pytest.approx(last["training_s"])
    assert made["phases"]["evaluation"]["seconds"] == pytest.approx(last["evaluation_s"], abs=1e-3)
    assert made["metrics"]["energy_to_quality"]["value"] is None or made["metrics"]["energy_to_quality"]["value"] > 0
    assert (made["data"]["kind"], made["data"]["samples"], made["data"]["test_samples"]) == ("mnist", 3000, 2000)
    assert made["trial"]["effective"]["classes"] == 10
    assert level(made, "quality") == level(made, "clock") == "pass"
    assert made["metrics"]["throughput"]["value"] > 0
    found = verify_folder(place.folder / "runs" / made["id"])
    assert (found.outcome, found.problems) == ("verified", ())
    assert "throughput" in found.recomputed
    assert "quality" in found.not_recomputed


def test_the_autoencoder_learns_mnist(place: Place, real_data: Callable[[str], Path]) -> None:
    data = f"data={real_data('mnist')}"
    words = ("size=tiny", "until=loss<=0.04", "epochs=2", "data_samples=4000", "batch_size=16", "learning_rate=4e-3")
    words += ("test_samples=1000",)
    made = place.record("compression-autoencoder", data, *words, *ONE_CORE)
    # The mean of all digits, which knows nothing of a digit, is off by 0.067.
    assert made["metrics"]["quality"]["value"] <= 0.04
    assert made["metrics"]["quality"]["unit"] == "loss"
    assert level(made, "quality") == "pass"


def test_a_language_model_learns_from_speeches(place: Place, real_data: Callable[[str], Path]) -> None:
    data = f"data={real_data('sotu')}"
    words = ("size=tiny", "epochs=2", "data_samples=2000", "sequence=64", "batch_size=16", "learning_rate=1e-2")
    words += ("test_samples=200", "workers=0")
    made = place.record("gpt-tiny", data, *words, *ONE_CORE)
    first, last = made["learning"]["curve"][0]["loss"], made["learning"]["curve"][-1]["loss"]
    assert last < first
    assert last < 3.2  # letters by their frequency alone take 3.0 to 3.3 nats, 256 equal bytes 5.5
    assert made["metrics"]["time_to_quality"]["value"] is None
    assert "no quality was requested" in made["metrics"]["time_to_quality"]["reason"]
    assert "quality" not in {check["name"] for check in made["checks"]}


def test_a_quality_that_is_not_reached_is_said(place: Place, real_data: Callable[[str], Path]) -> None:
    data = f"data={real_data('mnist')}"
    words = ("size=tiny", "until=accuracy>=0.9999", "epochs=1", "data_samples=320", "batch_size=32", *ONE_CORE)
    words += ("test_samples=100",)
    made = place.record("wideresnet", data, *words, code=1)  # a failed check, of a run that went well
    assert made["status"] == "ok"
    assert made["learning"]["reached"] is None
    assert level(made, "quality") == "fail"
    assert "accuracy>=0.9999 was not reached: at best" in made["metrics"]["time_to_quality"]["reason"]
    assert made["metrics"]["energy_to_quality"]["value"] is None


@pytest.mark.parametrize(
    "words",
    [
        ("data_format=files", "workers=2"),
        ("data_format=shards", "workers=0", "cache=memory", "decode=device"),
    ],
)
def test_generated_images_are_made_read_and_decoded(place: Place, words: tuple[str, ...]) -> None:
    common = ("size=tiny", "data=generated", "data_samples=48", "batch_size=8", "device=cpu", "steps=6")
    made = place.record("resnet50", *words, *common)
    assert made["data"]["kind"] == ("imagenet" if "data_format=files" in words else "shards")
    assert made["data"]["generated"]["samples"] == 48
    assert made["phases"]["generate"]["seconds"] > 0
    share = made["metrics"]["data_wait_share"]
    assert 0 <= share["value"] <= 1
    assert level(made, "loader") in ("pass", "warn")
    assert Path(made["data"]["folder"]).is_relative_to(place.folder / "data")


def test_a_tiny_detector_finds_again_what_it_was_shown(place: Place) -> None:
    scenes = small_sets.tiny_coco(place.folder / "scenes", scenes=6, each=12)
    words = ("size=tiny", f"data={scenes}", "until=map>=0.5", "epochs=6", "batch_size=4", "augment=off", "workers=0")
    made = place.record("fasterrcnn-r50-fpn", *words, "optimizer=adam", "learning_rate=3e-3", *ONE_CORE)
    assert made["metrics"]["quality"]["value"] >= 0.5
    assert made["metrics"]["quality"]["unit"] == "map"
    assert made["metrics"]["quality"]["low"] is None  # it is no share of images, so their number gives no interval
    assert level(made, "quality") == level(made, "loss") == level(made, "parameters") == "pass"
    assert (made["data"]["kind"], made["data"]["classes"], made["trial"]["effective"]["classes"]) == ("coco", 3, 4)
    shapes = made["work"]["shapes"]
    assert shapes["images"] >= 4 * made["learning"]["curve"][-1]["steps"]
    assert 64 <= shapes["height"]["least"] <= shapes["height"]["p50"] <= shapes["height"]["most"] <= 96
    assert 0 < shapes["boxes"]["mean"] < 8
    assert 0 < shapes["padding_share"] < 0.5
    assert made["metrics"]["flops_per_sample"]["value"] is None
    assert "differ from step to step" in made["metrics"]["mfu"]["reason"]


def test_generated_scenes_are_made_and_searched(place: Place) -> None:
    common = ("size=tiny", "data=generated", "data_samples=6", "batch_size=2", "workers=1", "device=cpu", "steps=3")
    made = place.record("fasterrcnn-r50-fpn", *common)
    assert (made["data"]["kind"], made["data"]["generated"]["samples"]) == ("coco", 6)
    assert made["work"]["shapes"]["width"]["most"] <= 640
    assert level(made, "finite") == "pass"
    assert made["metrics"]["data_wait_share"]["value"] is not None


def test_a_small_segmenter_learns_street_scenes(place: Place) -> None:
    """Road everywhere, the best answer of a model that has learned nothing of the image, has a miou of 0.02."""
    streets = small_sets.cityscapes(place.folder / "streets", train=64, val=6, height=64, width=128)
    words = ("size=tiny", f"data={streets}", "until=miou>=0.15", "epochs=5", "batch_size=8", "workers=0")
    made = place.record("segformer-b4", *words, *ONE_CORE)
    quality = made["metrics"]["quality"]
    assert quality["value"] >= 0.15
    assert (quality["unit"], quality["low"], quality["high"]) == ("miou", None, None)  # no share of samples
    assert made["learning"]["curve"][-1]["loss"] < made["learning"]["curve"][0]["loss"]
    assert made["metrics"]["throughput"]["unit"] == "images/s"
    assert (made["data"]["kind"], made["data"]["samples"], made["data"]["test_samples"]) == ("cityscapes", 64, 6)
    assert level(made, "quality") == level(made, "finite") == "pass"


def test_generated_street_scenes_are_made_and_read(place: Place) -> None:
    words = ("size=tiny", "data=generated", "data_samples=3", "batch_size=2", "workers=1", "steps=3")
    made = place.record("deeplabv3plus-r101", *words, *ONE_CORE)
    assert (made["data"]["kind"], made["data"]["generated"]["samples"]) == ("cityscapes", 3)
    assert made["trial"]["effective"]["crop_height"] == 64
    assert 0 <= made["metrics"]["data_wait_share"]["value"] <= 1
    assert level(made, "parameters") == level(made, "finite") == "pass"


def test_a_set_is_staged_apart_and_inference_reads_it_too(place: Place) -> None:
    source, local = small_sets.imagenet(place.folder / "set", classes=3, each=8), place.folder / "local"
    common = ("size=tiny", f"data={source}", f"stage={local}", "mode=infer", "batch_size=4", "workers=0")
    made = place.record("resnet50", *common, "device=cpu", "steps=4", "precision=bf16")
    assert level(made, "outputs") == "pass"  # of the images of the set, against fp32
    assert made["phases"]["stage"]["seconds"] > 0
    assert made["data"]["staged"]["copied_bytes"] > 0
    assert made["data"]["folder"] == str(local)


def test_questions_are_answered_from_a_padded_text(place: Place) -> None:
    squad = place.folder / "squad"
    squad.mkdir()
    for name, count in (("train-v1.1.json", 64), ("dev-v1.1.json", 16)):
        (squad / name).write_text(json.dumps(questions(count)), encoding="utf-8")
    words = ("size=tiny", f"data={squad}", "epochs=2", "sequence=64", "batch_size=8", "workers=0")
    made = place.record("bert-base-squad", *words, *ONE_CORE)
    assert made["learning"]["score"] == "exact_match"
    assert 0 <= made["metrics"]["quality"]["value"] <= 1
    assert made["learning"]["curve"][-1]["loss"] < made["learning"]["curve"][0]["loss"]


def questions(count: int) -> dict[str, Any]:
    """A year in a sentence, at another place in each: SQuAD's own layout."""
    paragraphs = []
    for number in range(count):
        lead, year = "so it was said " * (number % 5), str(1700 + number)
        context = f"{lead}in {year} a brake was built, and it measured what an engine gives."
        answer = {"answer_start": context.index(year), "text": year}
        asked = {"id": str(number), "question": "When was it built?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "1.1", "data": [{"title": "brakes", "paragraphs": paragraphs}]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data=./no-such-folder",), "data=./no-such-folder is not possible: there is no such file or folder"),
        (("data=.", "until=acuracy>=0.9"), "did you mean 'accuracy'"),
    ],
)
def test_a_wrong_request_starts_nothing(place: Place, words: tuple[str, ...], said: str) -> None:
    done = place.prony("run", "wideresnet", *words, "--out", str(place.folder / "none"), code=2)
    assert said in done.stderr
    assert not (place.folder / "none").exists()

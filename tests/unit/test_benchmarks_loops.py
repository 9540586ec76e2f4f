"""benchmarks/plain.py and benchmarks/loss_curves.py: a wrong word is refused first, and what was measured is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torchvision")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "path", list(sys.path))  # the scripts put the package's folder there
    import plain

    monkeypatch.setattr(plain, "FIRST_STEPS", 1)
    monkeypatch.setattr(plain, "LEAST_STEPS", 1)
    monkeypatch.setattr(plain, "POOL_VARYING", 2)
    return plain


@pytest.fixture
def curves(plain: ModuleType) -> ModuleType:
    import loss_curves

    return loss_curves


def test_plain_loops_run_in_tiny_sizes_and_one_that_fails_does_not_end_the_others(
    plain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = (("fasterrcnn-r50-fpn", 2, "infer"), ("dino-swin-l", 2, "train"), ("wideresnet", 32, "train"),
            ("gpt-800m", 16, "train"))  # fmt: skip
    taken = plain.plain_rate

    def has_no_room_for_one(name: str, *more: object, **given: object) -> object:
        if name == "dino-swin-l":
            raise RuntimeError("no room\nand a long story")
        return taken(name, *more, **given)

    monkeypatch.setattr(plain, "WORK", work)
    monkeypatch.setattr(plain, "plain_rate", has_no_room_for_one)
    file = tmp_path / "new" / "plain.json"
    assert plain.main(["--tiny", "--seconds", "0.001", "--json", str(file)]) == 1
    loops = json.loads(file.read_text())["loops"]
    assert [(loop["workload"], loop["unit"]) for loop in loops] == [
        ("fasterrcnn-r50-fpn", "images/s"), ("wideresnet", "images/s"), ("gpt-800m", "tokens/s"),
    ]  # fmt: skip
    assert "dino-swin-l train batch 2: failed, RuntimeError: no room\n" in capsys.readouterr().out


def test_a_word_that_no_loop_has_is_refused(plain: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert plain.main(["--tiny", "--only", "resnet51"]) == 2
    said = capsys.readouterr().err
    assert "no loop has resnet51 in its name" in said
    assert "wideresnet train" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt-tinny"], "did you mean 'gpt-tiny'"),
        (["gpt-tiny", "size"], "size is no setting=value"),
        (["gpt-tiny", "size=tiny", "device=mps"], "device=mps is not here"),
        (["resnet50", "size=tiny"], "precision=fp8 is offered for the gpt models alone"),
        (["gpt-tiny", "batch_size=1", "sequence=9"], "to be a multiple of 16"),
    ],
)
def test_losses_that_cannot_be_had_are_refused_before_the_first_is_trained(
    curves: ModuleType, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert curves.main(words) == 2
    assert said in capsys.readouterr().err


def test_losses_are_kept_after_each_precision(
    curves: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = curves.losses

    def fails_in_fp8(name: str, given: dict[str, str], *more: object) -> list[float]:
        if given["precision"] == "fp8":
            raise RuntimeError("the job's time is over")
        return taken(name, given, *more)  # type: ignore[no-any-return]

    monkeypatch.setattr(curves, "losses", fails_in_fp8)
    file = tmp_path / "new" / "curves.json"
    with pytest.raises(RuntimeError, match="time is over"):
        curves.main(["gpt-tiny", "size=tiny", "--steps", "3", "--json", str(file)])
    kept = json.loads(file.read_text())
    assert [(label, len(curve)) for label, curve in kept["losses"].items()] == [
        ("bf16, one rounding away", 3), ("bf16", 3),
    ]  # fmt: skip
    assert list(kept["second_half_against_first"]) == ["bf16, one rounding away"]

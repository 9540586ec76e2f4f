"""Words of a command line become a trial, or one sentence with the nearest right thing."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from prony.study.request import (
    check_target,
    make_plan,
    make_stop,
    new_run_id,
    parse_seconds,
    parse_tolerance,
    parse_trial,
)
from prony.study.space import split_values
from prony_node.contract import Plan, RequestError, Stop, Trial
from prony_node.contract.settings import SETTINGS


def test_words_become_typed_settings() -> None:
    trial = parse_trial("gpt-tiny", ["batch_size=16", "recompute=on", "precision=bf16", "sequence=64"])
    assert trial.settings == {"batch_size": 16, "recompute": True, "precision": "bf16", "sequence": 64}


def test_the_order_of_words_does_not_change_the_trial() -> None:
    one = parse_trial("gpt-tiny", ["batch_size=16", "precision=bf16"])
    other = parse_trial("gpt-tiny", ["precision=bf16", "batch_size=16"])
    assert one.hash == other.hash


@pytest.mark.parametrize(
    ("workload", "words", "says"),
    [
        ("gpt-tinny", [], "did you mean 'gpt-tiny'"),
        ("gpt-tiny", ["batchsize=4"], "did you mean 'batch_size'"),
        ("gpt-tiny", ["precision=bf61"], "did you mean precision=bf16"),
        ("gpt-tiny", ["device=gpu"], "did you mean device=cuda"),
        ("gpt-tiny", ["device=GPU"], "did you mean device=cuda"),
        ("gpt-tiny", ["infer"], "did you mean mode=infer"),
        ("gpt-tiny", ["batch_size"], "did you mean batch_size=..."),
        ("gpt-tiny", ["batch_size=4", "batch_size=8"], "given twice"),
        ("gpt-tiny", ["mode=infer", "optimizer=sgd"], "no meaning with mode=infer"),
        ("gpt-tiny", ["batch_size=0"], "at least 1"),
        ("segformer-b4", ["classes=5"], "unknown setting 'classes' here; it is one of resnet50, resnet152, vit-l and "),
        ("gemm", ["sequence=8"], "'sequence' here; it is one of gpt-tiny, gpt-117m, gpt-800m and"),
        ("resnet50", ["norms=compiled"], "norms=compiled is now kernels=compiled-norms"),
        ("resnet50", ["stem=library"], "stem=library is now kernels=library, or a list of kernels without folded-stem"),
        (
            "gpt-tiny",
            ["attention=fast"],
            "attention is now a part of kernels: kernels=cudnn-attention or kernels=flash",
        ),
        ("resnet50", ["kernels=folded-sten"], "did you mean folded-stem? resnet50 has compiled-norms, folded-stem"),
        ("gemm", ["kernels=folded-stem"], "gemm has its library's alone"),
        ("segformer-b4", ["data=./set", "until=mIoU>=0.5"], "unknown score 'mIoU'; did you mean 'miou'"),
    ],
)
def test_mistakes_are_answered_with_what_was_meant(workload: str, words: list[str], says: str) -> None:
    with pytest.raises(RequestError, match=re.escape(says)):
        parse_trial(workload, words)


def test_a_target_is_a_workload_or_a_suite() -> None:
    check_target("gpt-tiny", ["quick"])
    check_target("quick", ["quick"])
    with pytest.raises(RequestError, match="did you mean 'quick'"):
        check_target("quik", ["quick"])


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("0.5 %", 0.005), ("0.02", 0.02), (".5%", 0.005)])
def test_tolerances(text: str, value: float) -> None:
    assert parse_tolerance(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "1", "-1%", "60%", "one", "", "1%%", "nan"])
def test_impossible_tolerances_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="tolerance"):
        parse_tolerance(text)


@pytest.mark.parametrize(("text", "value"), [("120s", 120), ("2m", 120), ("1.5min", 90), ("1h", 3600), ("7", 7)])
def test_times(text: str, value: float) -> None:
    assert parse_seconds(text) == value


@pytest.mark.parametrize("text", ["0", "-5s", "5 days", "fast", "", "1e3", "s"])
def test_impossible_times_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="max_time"):
        parse_seconds(text)


def test_a_short_run_does_not_wait_for_the_usual_least_time() -> None:
    assert make_stop(None, "2s") == Stop(tolerance=0.01, min_time_s=2.0, max_time_s=2.0)
    assert make_stop("3%", None, Stop(max_time_s=20.0)).max_time_s == 20.0


def test_run_ids_differ_within_a_second() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    ids = {new_run_id("gpt-tiny", now) for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(r"gpt-tiny-20260102T030405-[0-9a-f]{6}", run_id) for run_id in ids)


def test_a_plan_survives_its_file() -> None:
    plan = make_plan(Trial("gpt-tiny", {"steps": 3}), Stop(), (), repeat=2)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_run_id_names_a_folder_whatever_the_workload_is_called() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert new_run_id("timm/vit_tiny_patch16_224.augreg", now).startswith("timm-vit_tiny_patch16_224.augreg-20260102T")
    for name in ("../../x", "timm/a b", "x" * 300):
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,110}", new_run_id(name, now)), name


def test_a_library_s_name_is_a_target_and_part_of_the_trial_s_identity() -> None:
    check_target("timm/resnet18", ["quick"])
    with pytest.raises(RequestError, match="did you mean 'timm/resnet18'"):
        check_target("tim/resnet18", ["quick"])
    trials = [
        parse_trial(name, ["image_size=64"]) for name in ("timm/resnet18", "timm/resnet34", "torchvision/resnet18")
    ]
    assert trials[0].workload == "timm/resnet18"
    assert len({trial.hash for trial in trials}) == 3


def test_lists_of_kernels_are_separated_by_semicolons() -> None:
    kernels = SETTINGS["kernels"]
    assert split_values(kernels, "library;compiled-norms,folded-stem") == ["library", "compiled-norms,folded-stem"]
    assert split_values(kernels, "compiled-norms,folded-stem") == ["compiled-norms,folded-stem"]

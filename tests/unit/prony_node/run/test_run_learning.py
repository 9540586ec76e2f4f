"""What a run says of a quality that it has not: why there is none, and how to ask for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prony_node.run.quality import QualityTraining


def learned(scores: tuple[str, ...], **point: float | None) -> QualityTraining:
    """A run of one epoch, without a target, that ended with this point of its curve."""
    run: Any = SimpleNamespace(
        inputs=SimpleNamespace(opened=SimpleNamespace(train=range(8), test=range(4))),
        settings={"epochs": 1},
        samples_per_step=4,
        plan=SimpleNamespace(cut_short=False),
        workload=SimpleNamespace(scores=scores),
        found={"data": {"kind": "coco"}},
    )
    learning = QualityTraining(run)
    learning.curve = [{"epoch": 1, **point}]
    return learning


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        (("map",), "there is no map: the test split has nothing to be found"),
        (("miou", "loss"), "there is no miou: the test split has nothing to be found"),
        (("loss",), "the loss was not finite after epoch 1"),
    ],
)
def test_a_score_without_a_value_has_its_reason(scores: tuple[str, ...], reason: str) -> None:
    """A test split without boxes, or masks of nothing but 255, is not a model that went over all bounds."""
    assert learned(scores, **dict.fromkeys(scores))._quality(1)["reason"] == reason


def test_the_score_after_an_earlier_epoch_is_a_metric_of_its_own() -> None:
    learning = learned(("loss",), loss=0.5)
    learning.curve = [{"epoch": epoch, "loss": 1 / epoch} for epoch in range(1, 5)]
    assert [learning._quality(epoch)["value"] for epoch in (2, 4)] == [0.5, 0.25]
    assert learning._quality(2)["source"].endswith("after epoch 2")
    assert learning._quality(10)["reason"] == "there is no epoch 10: the run ended after 4"


@pytest.mark.parametrize(("scores", "asks"), [(("map",), "until='map>=...'"), (("loss",), "until='loss<=...'")])
def test_how_to_ask_for_a_quality_is_said_in_the_workload_s_own_score(scores: tuple[str, ...], asks: str) -> None:
    assert asks in learned(scores, **{scores[0]: 0.1})._time_to_quality("host clock")["reason"]

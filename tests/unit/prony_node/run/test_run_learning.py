"""What a run says of a quality that it has not: why there is none, and how to ask for one."""

from __future__ import annotations

import pytest

from prony_node.contract.record import LearnedEpoch
from prony_node.contract.typed import decode
from prony_node.measure.loop import Window
from prony_node.run.quality import EpochPlan, Training, quality_after, time_to_quality


def learned(scores: tuple[str, ...], *points: dict[str, float | None]) -> Training:
    """A run without a target, that has these points of its curve."""
    plan = EpochPlan(len(points), 2, 1, test_samples=4, score=scores[0], target=None)
    curve = tuple(decode(LearnedEpoch, {"epoch": number, **point}) for number, point in enumerate(points, 1))
    return Training(plan, curve, window=Window("host clock"))


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
    assert quality_after(learned(scores, dict.fromkeys(scores)), 1, "coco").reason == reason


def test_the_score_after_an_earlier_epoch_is_a_metric_of_its_own() -> None:
    learning = learned(("loss",), *({"loss": 1 / epoch} for epoch in range(1, 5)))
    assert [quality_after(learning, epoch, "coco").value for epoch in (2, 4)] == [0.5, 0.25]
    assert str(quality_after(learning, 2, "coco").source).endswith("after epoch 2")
    assert quality_after(learning, 10, "coco").reason == "there is no epoch 10: the run ended after 4"


@pytest.mark.parametrize(("scores", "asks"), [(("map",), "until='map>=...'"), (("loss",), "until='loss<=...'")])
def test_how_to_ask_for_a_quality_is_said_in_the_workload_s_own_score(scores: tuple[str, ...], asks: str) -> None:
    assert asks in str(time_to_quality(learned(scores, {scores[0]: 0.1})).reason)

"""A target is understood, or answered with what was probably meant."""

from __future__ import annotations

import pytest

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import SETTINGS, parse_target
from prony_node.contract.trial import learns_to_quality
from prony_node.workloads import find_workload


def test_a_target_knows_which_way_is_better() -> None:
    accuracy = parse_target("accuracy>=0.93", ("accuracy", "loss"))
    assert (accuracy.reached(0.93), accuracy.reached(0.9299)) == (True, False)
    loss = parse_target("loss <= 2.5", ("loss",))
    assert (loss.reached(2.5), loss.reached(2.6)) == (True, False)
    assert (str(accuracy), str(loss)) == ("accuracy>=0.93", "loss<=2.5")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acuracy>=0.9", "did you mean 'accuracy'"),
        ("accuracy<=0.9", "did you mean accuracy>=0.9"),
        ("loss>=2", "did you mean loss<=2"),
        ("accuracy>=93", "did you mean accuracy>=0.93"),
        ("accuracy>=0", "accuracy goes from 0 to 1"),
    ],
)
def test_a_wrong_target_is_refused_with_the_right_one(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse_target(text, ("accuracy", "loss"))


@pytest.mark.parametrize("text", ["accuracy", "accuracy>0.9", "accuracy>=", ">=0.9", "accuracy>=1e3", "accuracy==1"])
def test_what_is_no_target_is_refused_by_the_setting(text: str) -> None:
    with pytest.raises(RequestError, match=r"such as accuracy>=0\.93"):
        SETTINGS["until"].parse(text)


@pytest.mark.parametrize("text", ["0.1", "3e-4", ".5", "10", "1e-05"])
def test_a_learning_rate_is_a_number(text: str) -> None:
    assert float(str(SETTINGS["learning_rate"].parse(text))) > 0


@pytest.mark.parametrize("text", ["", ".", "e5", "-1", "nan", "1,5"])
def test_what_is_no_number_is_no_learning_rate(text: str) -> None:
    with pytest.raises(RequestError, match="learning_rate"):
        SETTINGS["learning_rate"].parse(text)


@pytest.mark.parametrize("text", ["device", "host", "generated", "./set", "../set", "/data/set", "~/set", "a/b"])
def test_data_is_a_word_or_a_path(text: str) -> None:
    assert SETTINGS["data"].parse(text) == text


def test_a_bare_name_is_no_path_but_a_word_that_was_misspelt() -> None:
    with pytest.raises(RequestError, match="did you mean data=generated"):
        SETTINGS["data"].parse("genrated")


@pytest.mark.parametrize(
    ("workload", "settings", "said"),
    [
        ("wideresnet", {"until": "accuracy>=0.9"}, "until has no meaning with data=device"),
        ("wideresnet", {"data": "generated"}, "no data=generated for wideresnet"),
        ("gpt-tiny", {"data": "./t", "until": "accuracy>=0.9"}, "unknown score 'accuracy'"),
        ("gpt-tiny", {"data": "generated", "data_format": "shards"}, "shards hold images"),
        ("resnet50", {"data": "./x", "data_format": "shards"}, "data_format says how data=generated is written"),
        ("resnet50", {"data": "generated", "stage": "/tmp/x"}, "PRONY_DATA says where"),
        ("resnet50", {"decode": "device"}, "decode has no meaning with data=device"),
        ("resnet50", {"data": "./x", "until": "loss<=1", "steps": "5"}, "give epochs instead of steps"),
        ("resnet50", {"data": "./x", "until": "loss<=1", "mode": "infer"}, "until has no meaning with mode=infer"),
        ("gemm", {"data": "./x"}, "operands of its own"),
        ("resnet50", {"data": "./x", "epochs": "2", "graphs": "on", "fused": "off"}, "needs fused=on"),
    ],
)
def test_what_cannot_go_together_is_refused(workload: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        find_workload(workload).parse(settings)


def test_a_run_learns_to_a_quality_only_on_a_data_set_and_for_epochs() -> None:
    assert learns_to_quality({"data": "./set", "epochs": 1})
    assert learns_to_quality({"data": "generated", "until": "loss<=1"})
    assert not learns_to_quality({"data": "./set"})
    assert not learns_to_quality({"data": "device", "epochs": 1})
    assert not learns_to_quality({"data": "./set", "epochs": 1, "mode": "infer"})

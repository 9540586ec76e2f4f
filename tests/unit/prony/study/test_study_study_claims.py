"""Claims in a study file: what they mean, and each mistake said where it stands."""

from __future__ import annotations

import pytest

from prony.study.study import Study
from prony.study.study_file import StudyFileOptions, parse_study
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload

STUDY = """
workloads: [resnet50, swin-t]
settings: {devices: [1, 4]}
tables:
  - {title: a table, figures: hurt-nrp, where: {place: Table I}, metrics: time}
cells:
  one: {workload: resnet50, on: A100 80GB, match: {devices: 1}, figure: {system: 1xA100, dataset: cifar100}}
  four: {workload: resnet50, on: A100, only: {devices: 4, mode: }, figure: {system: 4xA100, dataset: cifar100}}
  ours: {workload: swin-t}
claims:
  - {says: four are faster, place: Table I, value: [four / one, 1 - one / four], above: 0.1, below: 4, published: 1.9}
"""


def read(text: str) -> Study:
    return parse_study(text, "mine.yaml", StudyFileOptions(None), find_workload)


def test_a_claim_has_cells_bounds_and_expressions_of_a_ratio() -> None:
    (claim,) = read(STUDY).claims
    assert (claim.says, claim.place, claim.metric) == ("four are faster", "Table I", "rate")
    assert (claim.above, claim.below, claim.published) == (0.1, 4.0, 1.9)
    assert list(claim.cells) == ["four", "one"]
    assert [(*ratio.pairs[0], ratio.of(2.0)) for ratio in claim.values] == [
        ("four", "one", 2.0),
        ("one", "four", -1.0),
    ]
    four = claim.cells["four"]
    assert (four.only, four.on) == ({"devices": ("4",), "mode": (None,)}, "A100")
    assert [(figure.metric, figure.value) for figure in four.figures()] == [("time", 19.74)]
    assert four.published("rate") == pytest.approx(1 / 19.74)
    assert four.published("time") == pytest.approx(19.74)
    assert four.published("rate_per_device") == pytest.approx(1 / 19.74 / 4)
    assert four.published("accuracy") is None


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("workload: swin-t", "workload: swin-s", "line 9, column 20: unknown workload of this study 'swin-s'"),
        ("{workload: swin-t}", "{on: A100}", "line 9, column 9: a cell names its workload"),
        ("match: {devices", "match: {device_s", "unknown setting 'device_s'; did you mean 'devices'"),
        ("match: {devices: 1}", "match: {devices: many}", "devices=many is not possible"),
        ("on: A100 80GB", "onn: A100", "'onn' has no meaning in a cell; did you mean 'on'"),
        ("system: 1xA100", "sistem: 1xA100", "unknown field of a figure 'sistem'; did you mean 'system'"),
        ("system: 1xA100, ", "", "a cell has one figure of each metric; this chooses 3 figures of time"),
        ("system: 1xA100", "system: A1", "a cell has one figure of each metric; this chooses 0 figures"),
        ("four / one", "four / onee", "line 11, column 53: unknown cell 'onee'; did you mean 'one'"),
        ("four / one", "four - one", "line 11, column 53: 'four - one' is not of the ratio of two cells"),
        ("four / one", "four", "is not of the ratio of two cells"),
        ("four / one", "four * one / two", "unknown cell 'two'"),
        ("above: 0.1", "above: 0.1, metric: first_epoch", "a claim on the first epoch has samples"),
        ("four / one", "four / (one - one)", "divides by zero"),
        ("four / one", "four > one", "is no number"),
        ("four / one", "four / ours", "either all cells of a claim say on which device (on), or none does"),
        ("above: 0.1, below: 4, ", "", "a claim has a bound: above, below, or both"),
        ("above: 0.1", "above: much", "above is a number, not 'much'"),
        ("place: Table I, value", "value", "a claim has place"),
        ("above: 0.1", "above: 0.1, metric: rat", "unknown metric 'rat'; did you mean 'rate'"),
        ("above: 0.1", "abov: 0.1", "'abov' has no meaning in a claim; did you mean 'above'"),
    ],
)  # fmt: skip
def test_a_wrong_claim_is_refused_where_it_stands(was: str, becomes: str, message: str) -> None:
    assert was in STUDY
    with pytest.raises(RequestError) as caught:
        read(STUDY.replace(was, becomes, 1))
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine.yaml, line ")


def test_a_claim_may_compare_two_ratios() -> None:
    def pairs(value: str) -> tuple[tuple[str, str], ...]:
        text = STUDY.replace("  ours: {workload: swin-t}", "  a: {workload: swin-t}\n  b: {workload: swin-t}")
        text = text.replace("on: A100 80GB, ", "").replace("on: A100, ", "")
        (ratio,) = read(text.replace("[four / one, 1 - one / four]", f"[{value}]")).claims[0].values
        return ratio.pairs

    assert pairs("(four / one) / (a / b)") == (("four", "one"), ("b", "a"))
    assert pairs("(a / four) / (one / a)") == (("a", "four"), ("a", "one"))
    for wrong in ("four / one + a / b", "2 * (four / one) / (a / b)", "four / (one * a)", "four * one * a * b"):
        with pytest.raises(RequestError, match="is not of the ratio of two cells"):
            pairs(wrong)


def test_a_study_without_figures_has_claims_without_figures() -> None:
    text = STUDY[: STUDY.index("tables:")] + STUDY[STUDY.index("cells:") :]
    with pytest.raises(RequestError, match="no table of this study has figures"):
        read(text)

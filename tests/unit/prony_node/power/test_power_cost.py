"""Carbon and money: one multiplication each, by a number that the site gave, and nothing without one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import CARBON, PRICE, Rate, Rates, carbon_g, cost_json, find_rates, parse_rate, price

KWH_J = 3.6e6


def test_one_multiplication_each() -> None:
    assert carbon_g(2 * KWH_J, Rate(380.0, "g")) == pytest.approx(760.0)
    assert price(KWH_J / 2, Rate(0.31, "EUR")) == pytest.approx(0.155)


def test_an_energy_that_is_not_known_costs_nothing_that_is_known() -> None:
    assert carbon_g(None, Rate(380.0, "g")) is None
    assert price(None, Rate(0.31)) is None
    document = cost_json(None, "", Rates(Rate(380.0, "g"), None))
    assert document["carbon"]["value_g"] is None
    assert document["price"] is None


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("0.31EUR", Rate(0.31, "EUR")),
        ("0.31 EUR", Rate(0.31, "EUR")),
        (".5", Rate(0.5)),
        ("12€", Rate(12.0, "€")),
        ("0", Rate(0.0)),
    ],
)
def test_a_price_may_name_its_money(text: str, rate: Rate) -> None:
    assert parse_rate(text, "--price") == rate


@pytest.mark.parametrize("text", ["", "cheap", "-1", "1e400", "0.31 EUR per kWh", "nan", "inf", "1.2.3"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--price"):
        parse_rate(text, "--price")


def test_a_comma_is_answered_with_the_point() -> None:
    with pytest.raises(RequestError, match=r"did you mean 0\.31EUR\?"):
        parse_rate("0,31EUR", "--price")


def test_carbon_is_in_grams_and_in_nothing_else() -> None:
    assert parse_rate("380", "--carbon", "g") == parse_rate("380g", "--carbon", "g") == Rate(380.0, "g")
    with pytest.raises(RequestError, match="give g per kWh"):
        parse_rate("0.38kg", "--carbon", "g")


def test_off_unless_given_and_an_option_before_the_environment() -> None:
    assert find_rates(None, None, {}) == Rates()
    there = {CARBON: "400", PRICE: "0.2CHF"}
    assert find_rates(None, None, there) == Rates(Rate(400.0, "g"), Rate(0.2, "CHF"))
    assert find_rates("380", None, there).carbon == Rate(380.0, "g")
    with pytest.raises(RequestError, match=CARBON):
        find_rates(None, None, {CARBON: "much"})


@given(st.text(max_size=20))
def test_any_text_is_a_rate_or_refused(text: str) -> None:
    try:
        rate = parse_rate(text, "--price")
    except RequestError:
        return
    assert 0.0 <= rate.per_kwh < float("inf")

"""Carbon and money of an energy: one multiplication each, by a site's own number. Neither is known unless given."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prony_node.contract.errors import RequestError

JOULES_A_KWH = 3.6e6
CARBON, PRICE = "PRONY_CARBON_G_PER_KWH", "PRONY_PRICE_PER_KWH"
GRAMS = "g"
FORM = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([^\W\d_]{0,4}|[€$£¥])\s*")


@dataclass(frozen=True)
class Rate:
    """How much a kilowatt-hour is: of grams, of euros, or of a money that was not named."""

    per_kwh: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.per_kwh:g}{f' {self.unit}' if self.unit else ''}/kWh"


def parse_rate(text: str, name: str, unit: str | None = None) -> Rate:
    """`380`, or `0.31EUR`; `name` is where it was given. With `unit` no other one is taken."""
    match = FORM.fullmatch(text)
    per_kwh = float(match.group(1)) if match else math.inf
    if match is None or not math.isfinite(per_kwh):
        example = "380" if unit == GRAMS else "0.31 or 0.31EUR"
        comma = f"; did you mean {text.replace(',', '.')}?" if FORM.fullmatch(text.replace(",", ".")) else ""
        raise RequestError(f"{name} {text} is no amount per kWh: give one such as {example}{comma}")
    given = match.group(2)
    if unit is not None and given not in ("", unit):
        raise RequestError(f"{name} {text} is in {given!r}: give {unit} per kWh, as a number such as 380")
    return Rate(per_kwh, given or unit or "")


def carbon_g(energy_j: float | None, rate: Rate) -> float | None:
    """Grams of CO2 equivalent."""
    return None if energy_j is None else energy_j / JOULES_A_KWH * rate.per_kwh


def price(energy_j: float | None, rate: Rate) -> float | None:
    """In the rate's own money."""
    return None if energy_j is None else energy_j / JOULES_A_KWH * rate.per_kwh


@dataclass(frozen=True)
class Rates:
    """What a site gave; None for what it did not."""

    carbon: Rate | None = None
    price: Rate | None = None


def find_rates(carbon: str | None, money: str | None, environment: Mapping[str, str]) -> Rates:
    """The rates of a command's options, and else of the environment."""

    def find(text: str | None, option: str, variable: str, unit: str | None) -> Rate | None:
        if text is not None:
            return parse_rate(text, option, unit)
        stated = environment.get(variable, "").strip()
        return parse_rate(stated, f"{variable}:", unit) if stated else None

    return Rates(find(carbon, "--carbon", CARBON, GRAMS), find(money, "--price", PRICE, None))


def cost_json(energy_j: float | None, basis: str, rates: Rates) -> dict[str, Any]:
    """Both as a document holds them: null where no rate was given, with the number used where one was."""
    carbon = rates.carbon and {
        "value_g": carbon_g(energy_j, rates.carbon), "g_per_kwh": rates.carbon.per_kwh, "of": basis,
    }  # fmt: skip
    money = rates.price and {
        "value": price(energy_j, rates.price), "per_kwh": rates.price.per_kwh, "currency": rates.price.unit or None,
        "of": basis,
    }  # fmt: skip
    return {"carbon": carbon, "price": money}

"""The metric vocabulary, with unit and direction, and what energy comes to in carbon and money."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prony_node.contract.errors import RequestError


@dataclass(frozen=True)
class Quantity:
    """A plain name; `{unit}` stands for the workload's own (images, tokens), `{score}` for a score's (accuracy)."""

    name: str
    unit: str
    better: str  # "more", "less" or "neither"
    help: str


METRICS: dict[str, Quantity] = {
    metric.name: metric
    for metric in (
        Quantity("throughput", "{unit}/s", "more", "work through the model per second, all devices"),
        Quantity("throughput_per_device", "{unit}/s", "more", "the same for one device"),
        Quantity("step_time", "s", "less", "mean time of a step in the steady window"),
        Quantity("latency_p50", "s", "less", "one batch alone, submitted to finished: median"),
        Quantity("latency_p90", "s", "less", "one batch alone: 90th percentile"),
        Quantity("latency_p99", "s", "less", "one batch alone: 99th percentile"),
        Quantity("time_to_first_token", "s", "less", "prompts submitted to their first token: median (phase=prefill)"),
        Quantity("algorithm_bandwidth", "B/s", "more", "collective: largest message size over its time"),
        Quantity("message_latency", "s", "less", "collective: time of one operation with the smallest message"),
        Quantity("split_time", "s", "less", "one pass of inference over the test split, loading included"),
        Quantity("split_throughput", "{unit}/s", "more", "samples of the test split over split_time"),
        Quantity("cold_start", "s", "less", "first steps: compilation, autotuning, capture"),
        Quantity("data_wait_share", "1", "less", "share of the steady window waiting for data, copies included"),
        Quantity("flops_per_sample", "FLOP", "neither", "counted on the model, without recomputation"),
        Quantity("recomputed_flops_per_sample", "FLOP", "neither", "forward work repeated in the backward pass"),
        Quantity("mfu", "1", "more", "model FLOP/s over the device's dense peak for this precision"),
        Quantity("peak_memory", "B", "less", "peak device memory of live tensors"),
        Quantity("peak_memory_reserved", "B", "less", "peak device memory held by the allocator"),
        Quantity("peak_memory_host", "B", "less", "peak resident memory of the rank process"),
        Quantity("cpu_utilisation", "1", "neither", "CPU time of rank and loaders over steady time x allowed cores"),
        Quantity("communication_bytes", "B", "less", "sent per device and step, by the algorithm's definition"),
        Quantity("bus_bandwidth", "B/s", "more", "of the exchange between devices, where it was timed"),
        Quantity("energy", "J", "less", "of the devices that took part, first to last tick in the steady window"),
        Quantity("energy_per_sample", "J/{one}", "less", "energy over the work done between the same two instants"),
        Quantity("samples_per_wh", "{unit}/Wh", "more", "work per watt-hour, the inverse of energy per work"),
        Quantity("power", "W", "less", "mean power of the devices that took part"),
        Quantity("power_peak", "W", "neither", "highest power reading of any device in the window"),
        Quantity("power_idle", "W", "neither", "mean power of the devices before the run, where they were idle"),
        Quantity("node_energy", "J", "less", "of the node: measured, or the sum of its devices, a lower bound"),
        Quantity("node_power", "W", "less", "mean power of the node: measured, or the sum of its devices"),
        Quantity("loss_first", "1", "neither", "loss on held-out data before the first step"),
        Quantity("loss_last", "1", "less", "loss on held-out data after the last step"),
        Quantity("quality", "{score}", "neither", "score on the test split; higher is better, of a loss lower"),
        Quantity("quality_at_epochs", "{score}", "neither", "the same after the epochs given as report_at_epochs"),
        Quantity("time_to_quality", "s", "less", "training until the target was first reached, without evaluation"),
        Quantity("energy_to_quality", "J", "less", "of the devices that took part, over the same training"),
    )
}  # fmt: skip


JOULES_A_WH, JOULES_A_KWH = 3600.0, 3.6e6
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

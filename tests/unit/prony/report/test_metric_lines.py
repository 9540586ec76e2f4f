"""If these fail, a metric is not shown, or one reason is repeated until nobody reads it."""

from __future__ import annotations

from typing import Any

from documents import of_documents

from prony.report.lines import TOGETHER_FROM, MetricLine, metric_lines
from prony_node.contract import record as room
from prony_node.contract.metrics import METRICS
from prony_node.contract.typed import encode

metric_lines = of_documents(metric_lines)


def measured(*values: Any, **named: Any) -> dict[str, Any]:
    """A metric as a document."""
    return dict(encode(room.measured(*values, **named)))


def missing(reason: str) -> dict[str, Any]:
    return dict(encode(room.missing(reason)))


RATE = measured(1000.0, "images/s", low=990.0, high=1010.0, scope="all devices", source="counted images over events")
ENERGY = ("energy", "energy_per_sample", "samples_per_wh", "power")


def lines_of(metrics: dict[str, Any]) -> list[MetricLine]:
    return metric_lines({"metrics": metrics})


def test_a_metric_has_its_value_where_it_comes_from_and_what_it_is() -> None:
    assert lines_of({"throughput": RATE}) == [
        MetricLine("throughput", "1,000 images/s ± 1.0 %", "counted images over events", METRICS["throughput"].help)
    ]


def test_the_order_is_that_of_the_vocabulary_and_unknown_names_come_last() -> None:
    metrics = {"of_a_newer_prony": RATE, "power": measured(50.0, "W", scope="gpu", source="s"), "throughput": RATE}
    lines = lines_of(metrics)
    assert [line.name for line in lines] == ["throughput", "power", "of_a_newer_prony"]
    assert lines[-1].help == ""


def test_what_is_absent_for_one_reason_stands_together_at_the_end() -> None:
    metrics = {**dict.fromkeys(ENERGY, missing("no sensor")), "loss_last": RATE, "mfu": missing("no peak is known")}
    lines = lines_of(metrics)
    assert [line.name for line in lines] == ["mfu", "loss_last", "not measured"]
    assert lines[-1] == MetricLine("not measured", "energy, energy_per_sample, samples_per_wh, power: no sensor")
    assert lines[0].value == "– (no peak is known)"


def test_two_of_a_reason_stand_each_for_themselves() -> None:
    few = dict.fromkeys(ENERGY[: TOGETHER_FROM - 1], missing("no sensor"))
    assert [line.name for line in lines_of(few)] == list(few)
    two_reasons = {name: missing("a" if number % 2 else "b") for number, name in enumerate(ENERGY)}
    assert [line.name for line in lines_of(two_reasons)] == list(ENERGY)


def test_groups_of_two_reasons_are_two_lines() -> None:
    metrics = dict.fromkeys(ENERGY, missing("no sensor"))
    metrics |= dict.fromkeys(("latency_p50", "latency_p90", "latency_p99"), missing("training has no latency"))
    assert [line.value for line in lines_of(metrics)] == [
        "latency_p50, latency_p90, latency_p99: training has no latency",
        "energy, energy_per_sample, samples_per_wh, power: no sensor",
    ]


def test_zero_is_a_value() -> None:
    zero = {name: measured(0.0, "W", scope="gpu", source="s") for name in ("power", "power_peak", "power_idle")}
    assert [line.value for line in lines_of(zero)] == ["0 W"] * 3


def test_every_metric_of_a_record_is_in_some_line(get_record: Any) -> None:
    record = get_record("-a00200")
    record["metrics"] |= dict.fromkeys(ENERGY, missing("no sensor"))
    text = " ".join(f"{line.name} {line.value}" for line in metric_lines(record))
    assert all(name in text for name in record["metrics"])

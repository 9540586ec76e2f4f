"""Runs that learned from a data set, for tests/replay/learning: curves that look real and are not measurements.

tests/replay/synthesise_records.py calls this; see there.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

RATE = 27_100.0  # images/s
EPOCH = 50_000
TEST = 10_000
EVALUATION_S = 0.31
POWER_W = 602.0


@dataclass(frozen=True)
class Wish:
    """A run to be made up: what it was asked for, and how well it will do."""

    seed: int
    batch: int
    epochs: int
    score: str  # accuracy or loss
    target: float | None
    best: float  # where the accuracy levels off


# Three seeds that reach their target and one that does not, a target of the loss, and batch sizes without a target.
RUNS = {
    "f00000": Wish(0, 1024, 20, "accuracy", 0.93, 0.9385),
    "f00001": Wish(1, 1024, 20, "accuracy", 0.93, 0.9402),
    "f00002": Wish(2, 1024, 20, "accuracy", 0.93, 0.9391),
    "f00003": Wish(3, 1024, 20, "accuracy", 0.93, 0.9150),
    "f10000": Wish(0, 1024, 20, "loss", 0.35, 0.9400),
    "f20000": Wish(0, 128, 16, "accuracy", None, 0.9444),
    "f20001": Wish(0, 512, 16, "accuracy", None, 0.9421),
    "f20002": Wish(0, 2048, 16, "accuracy", None, 0.9318),
    "f20003": Wish(0, 8192, 16, "accuracy", None, 0.8872),
}
RATES = {128: 17_900.0, 512: 25_200.0, 1024: RATE, 2048: 27_900.0, 8192: 28_300.0}
DATA = {
    "source": "./cifar10",
    "kind": "cifar10",
    "folder": "/data/cifar10",
    "samples": EPOCH,
    "test_samples": TEST,
    "classes": 10,
    "bytes": 185_860_521,
    "fingerprint": "3f9a1c57e02b64d8",
    "held": "device",
    "staged": None,
    "generated": None,
}


def until(wish: Wish) -> str | None:
    sign = "<=" if wish.score == "loss" else ">="
    return None if wish.target is None else f"{wish.score}{sign}{wish.target:g}"


def learned(wish: Wish, rate: float) -> dict[str, Any]:
    """What such a record has beside the others: learning, data, and metrics, phases and checks of its own."""
    points = curve(wish, rate)
    last, target = points[-1], until(wish)
    reached = has_reached(wish, last)
    best = (min if wish.score == "loss" else max)(float(point[wish.score]) for point in points)
    missed = f"{target} was not reached: at best {best:g} after {last['epoch']} epochs"
    said = f"{target} was reached after epoch {last['epoch']}" if reached else missed
    return {
        "metrics": metrics(wish, last, reached, missed),
        "phases": {"evaluation": {"seconds": last["evaluation_s"], "steps": last["epoch"] * (TEST // wish.batch)}},
        "checks": {} if target is None else {"quality": ("pass" if reached else "fail", said)},
        "learning": {
            "score": wish.score,
            "better": "less" if wish.score == "loss" else "more",
            "target": wish.target,
            "until": target,
            "reached": {"epoch": last["epoch"], "steps": last["steps"]} if reached else None,
            "test_samples": TEST,
            "epochs": wish.epochs,
            "curve": points,
        },
        "data": DATA,
    }


def curve(wish: Wish, rate: float) -> list[dict[str, Any]]:
    """Epoch by epoch, until the target is reached or the epochs are over."""
    rng = random.Random(f"{wish}")
    steps = EPOCH // wish.batch
    points: list[dict[str, Any]] = []
    for epoch in range(1, wish.epochs + 1):
        accuracy = wish.best - 0.55 * math.exp(-epoch / 4.2) + rng.gauss(0, 0.0025)
        points.append(
            {
                "epoch": epoch,
                "steps": epoch * steps,
                "samples": epoch * steps * wish.batch,
                "training_s": round(epoch * steps * wish.batch / rate * (1 + rng.gauss(0, 0.002)), 4),
                "evaluation_s": round(epoch * EVALUATION_S, 4),
                "learning_rate": round(0.08 * (1 - (epoch - 1) / wish.epochs), 6),
                "accuracy": round(accuracy, 4),
                "loss": round(3.4 * (1 - accuracy) + 0.11, 4),
            }
        )
        if has_reached(wish, points[-1]):
            break
    return points


def has_reached(wish: Wish, point: dict[str, Any]) -> bool:
    if wish.target is None:
        return False
    value = float(point[wish.score])
    return value <= wish.target if wish.score == "loss" else value >= wish.target


def metrics(wish: Wish, last: dict[str, Any], reached: bool, missed: str) -> dict[str, Any]:
    value = float(last[wish.score])
    half = None if wish.score == "loss" else 1.96 * math.sqrt(value * (1 - value) / TEST)
    quality = {
        "value": value,
        "low": None if half is None else round(value - half, 4),
        "high": None if half is None else round(value + half, 4),
        "unit": wish.score,
        "scope": "test split",
        "source": f"{TEST:,} samples of cifar10's test split after epoch {last['epoch']}",
    }
    if half is not None:
        quality["interval"] = "95 %, of the test split's size"
    if not reached:
        nothing = {"value": None, "reason": missed if wish.target is not None else "no target was asked for"}
        return {"quality": quality, "time_to_quality": nothing, "energy_to_quality": nothing}
    time = {
        "value": last["training_s"],
        "low": None,
        "high": None,
        "unit": "s",
        "scope": "training alone, without evaluation",
        "source": "monotonic clock",
    }
    joules = POWER_W * last["training_s"]
    energy = {
        "value": round(joules, 1),
        "low": round(0.996 * joules, 1),
        "high": round(1.004 * joules, 1),
        "unit": "J",
        "scope": "gpu",
        "source": "NVML's energy counter",
    }
    return {"quality": quality, "time_to_quality": time, "energy_to_quality": energy}

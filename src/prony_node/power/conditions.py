"""What a device was doing while it was sampled: held back by what, and how many processes on it.

A reader that can tell has `conditions(part)`, which is asked about once a second, in the reader's own thread.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from prony_node.contract.assemble import make_check
from prony_node.power.sensor import Reader

EVERY_S = 1.0
NOT_HELD_BACK = {"idle", "application clocks", "display clocks", "sync boost"}  # no fault of heat or power
POWER = {"power limit"}  # reached in normal work


class Conditions:
    """Counts what one reader says of its parts."""

    def __init__(self, reader: Reader) -> None:
        self._ask = getattr(reader, "conditions", None)
        self._parts = list(dict.fromkeys(sensor.part for sensor in reader.sensors))
        self._due_s = 0.0
        self._words: dict[str, Counter[str]] = {part: Counter() for part in self._parts}
        self._throttle_samples: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()
        self._most: dict[str, int] = {}

    def look(self) -> None:
        """Ask every part, when it is time. A part that fails to answer is not counted."""
        now_s = time.monotonic()
        if self._ask is None or now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        for part in self._parts:
            try:
                self._count(part, self._ask(part))
            except Exception:  # a vendor's library in a bad moment; what was not seen stays unknown
                continue

    def _count(self, part: str, answer: dict[str, Any] | None) -> None:
        if not answer:
            return
        self._samples[part] += 1
        if answer.get("throttle") is not None:
            self._throttle_samples[part] += 1
            self._words[part].update(set(answer["throttle"]))
        if answer.get("processes") is not None:
            self._most[part] = max(self._most.get(part, 0), int(answer["processes"]))

    def to_json(self) -> dict[str, Any]:
        """By part: the share of samples that each word was in, the most processes at once, how many samples."""
        return {
            part: {
                "throttle": {word: count / asked for word, count in self._words[part].most_common()} if asked else None,
                "processes_seen": self._most.get(part),
                "samples": samples,
            }
            for part, samples in list(self._samples.items())  # counted in another thread meanwhile
            for asked in [self._throttle_samples[part]]
        }


def throttling(seen: Any) -> dict[str, str]:
    """The check that the samples of a part allow."""
    words = seen.get("throttle") if isinstance(seen, dict) else None
    if not isinstance(words, dict):
        return make_check("energy-throttling", "unknown", "no reader here tells it")
    held = {word: share for word, share in words.items() if word not in NOT_HELD_BACK}
    if not held:
        return make_check("energy-throttling", "pass", f"none in {seen.get('samples')} samples")
    said = ", ".join(f"{word} in {100 * share:.0f} % of samples" for word, share in held.items())
    return make_check("energy-throttling", "pass" if set(held) <= POWER else "warn", said)


def foreign(busy: str | None, seen: Any) -> dict[str, str]:
    """Whether anyone else was on the part, as far as it can be told: at the start."""
    most = seen.get("processes_seen") if isinstance(seen, dict) else None
    later = f"; at most {most} on it at once while sampled, one's own among them" if most else ""
    if busy is None:
        return make_check("energy-foreign", "unknown", f"no reader here tells them{later}")
    if busy:
        return make_check("energy-foreign", "warn", f"at the start: {busy}{later}")
    return make_check("energy-foreign", "pass", f"none seen at the start{later}")

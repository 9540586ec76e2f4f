"""What this node can be asked for: every sensor with what it states, and how often it really changes."""

from __future__ import annotations

import threading
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Any

from prony_node.contract.cache import private_folder
from prony_node.power.recording import Trace, read_recording
from prony_node.power.sampler import sample

SURVEY_S = 1.5
SURVEY_INTERVAL_S = 0.01
FEWEST_CHANGES = 4


def survey(seconds: float = SURVEY_S) -> dict[str, Any]:
    """Open every reader and read all of it for a moment."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    with private_folder("prony-survey-") as folder:
        sample(folder, interval_s=SURVEY_INTERVAL_S, readers=[], stop=stop, users=None)
        timer.cancel()
        recording = read_recording(folder)
    assert recording is not None
    return {
        "sensors": [{**asdict(trace.sensor), "unit": trace.sensor.unit, **seen(trace)} for trace in recording.traces],
        "reasons": recording.reasons,
        "busy": recording.about.get("busy_at_start") or {},
        "notes": recording.about.get("notes") or [],
    }


def seen(trace: Trace) -> dict[str, Any]:
    """The last value, how often it changed, and how long a read took; null where that did not show."""
    readings = trace.readings
    changes_s = [b.after_s for a, b in pairwise(readings) if b.value != a.value]
    gaps_s = [b - a for a, b in pairwise(changes_s)]
    period_s = median(gaps_s) if len(gaps_s) >= FEWEST_CHANGES else None
    takes_s = median(r.after_s - r.before_s for r in readings) if readings else None
    lost = trace.notes[-1][1] if trace.notes else None
    return {
        "value_now": readings[-1].value if readings else None,
        "probed_period_s": period_s,
        "read_takes_s": takes_s,
        "note": lost,
    }

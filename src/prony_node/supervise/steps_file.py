"""The step series as it lies on disk: a line for every timed block, the transient included."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from prony_node.contract import files


def write_blocks(path: Path, blocks: Iterable[tuple[int, float, float]]) -> None:
    """Blocks of steps with their duration and what of it was waiting for data, in full precision.

    The rate and its interval are recomputed from these numbers by `prony_node.stats.estimate_of`.
    """
    with files.open_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
        end_s = 0.0
        for number, (steps, duration_s, data_wait_s) in enumerate(blocks):
            end_s += duration_s
            writer.writerow((number, steps, end_s, float(duration_s), float(data_wait_s)))

"""What `prony tune` searches: which settings, which values of them, and where a trial lies among them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prony.plan.request import split_words, with_loader
from prony.plan.space import known_settings
from prony.plan.values import split_values
from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value
from prony_node.contract.trial import Trial, reads_data_set
from prony_node.workloads.config import Workload

BATCH = "batch_size"
MOST_TRIALS = 2000  # each is looked at before every run
# Other forms of a layer: the same function by other kernels, most of them for a compiler.
SAME_FUNCTION = ("norms", "parts", "stem", "blocks", "enlarge", "depthwise", "assignment", "suppression", "pooling",
                 "sampling")  # fmt: skip
REACH = 8  # times the default batch, up and down, where nobody says what to search


@dataclass(frozen=True)
class Candidate:
    """One point of the space: the values of the searched settings."""

    values: tuple[tuple[str, Value], ...]

    @property
    def settings(self) -> dict[str, Value]:
        return dict(self.values)

    @property
    def key(self) -> str:
        """The same for the same values, whatever their order was on the command line."""
        return json.dumps(dict(sorted(self.values)))

    @property
    def series(self) -> str:
        """What trials that differ in the batch size alone share."""
        return json.dumps({name: value for name, value in sorted(self.values) if name != BATCH})

    def replaced(self, name: str, value: Value) -> Candidate:
        return Candidate(tuple((one, value if one == name else had) for one, had in self.values))

    @property
    def batch(self) -> float | None:
        value = self.settings.get(BATCH)
        return float(value) if isinstance(value, int) else None


@dataclass(frozen=True)
class Space:
    """Lists of values, the trials they make, and those of them that cannot be."""

    lists: dict[str, tuple[Value, ...]]
    candidates: tuple[Candidate, ...]
    refused: tuple[str, ...] = ()  # why combinations were left out

    def of_effective(self, effective: Mapping[str, Value]) -> Candidate:
        """The candidate that a run's effective settings are."""
        return Candidate(tuple((name, effective[name]) for name in self.lists if name in effective))


def split_searched(workload: Workload, words: Iterable[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The words of a command line: settings with one value stay as they are, those with several are searched."""
    known = known_settings(workload)
    fixed: dict[str, str] = {}
    searched: dict[str, list[str]] = {}
    for name, text in with_loader(split_words(words, workload.own_settings())).items():
        values = split_values(known[name], text)
        if len(values) == 1:
            fixed[name] = values[0]
        else:
            searched[name] = values
    if "auto" in searched.get(BATCH, ()):
        raise RequestError("batch_size=auto is the largest that fits, not the best; tune takes numbers: 16..4096")
    return fixed, searched


def make_space(workload: Workload, fixed: Mapping[str, Value], lists: Mapping[str, Sequence[object]]) -> Space:
    """Every combination of the values that can work together; refused when none can, or when they are too many."""
    known = known_settings(workload)
    typed = {name: tuple(dict.fromkeys(known[name].parse(value) for value in lists[name])) for name in lists}
    count = math.prod(len(values) for values in typed.values())
    if count > MOST_TRIALS:
        raise RequestError(f"{count} combinations are more than tune looks through ({MOST_TRIALS}); leave some out")
    candidates, refused = [], []
    for values in itertools.product(*typed.values()):
        candidate = Candidate(tuple(zip(typed, values, strict=True)))
        try:
            workload.parse({**fixed, **candidate.settings})
        except RequestError as error:
            refused.append(str(error))
            continue
        candidates.append(candidate)
    if not candidates:
        raise RequestError(f"no combination of these settings can work: {refused[0]}")
    return Space(typed, tuple(candidates), tuple(dict.fromkeys(refused)))


def default_lists(
    workload: Workload, fixed: Mapping[str, Value], effective: Mapping[str, Value]
) -> dict[str, list[Value]]:
    """What is worth searching where nobody says: around the defaults, and nothing that changes a step's mathematics
    but its size."""
    lists: dict[str, list[Value]] = {}
    batch, mode = effective.get(BATCH), str(effective.get("mode", "train"))
    if isinstance(batch, int) and not workload.operation:
        sizes = [batch * REACH // 2**step for step in range(2 * REACH.bit_length() - 1)]
        lists[BATCH] = sorted({size for size in sizes if size >= workload.least(mode)})
    if effective.get("device") != "cpu" and not workload.operation and not workload.varies:
        lists["compile"] = ["off", "default"]
    if workload.memory_format == "channels_last":
        lists["memory_format"] = ["contiguous", "channels_last"]
    if reads_data_set(effective) or effective.get("data") == "host":
        workers = effective.get("workers")
        lists["workers"] = sorted({0, int(workers), 2 * int(workers)}) if isinstance(workers, int) else [0, 4]
    for setting in workload.settings:
        if effective.get("device") != "cpu" and setting.name in SAME_FUNCTION and setting.name in effective:
            lists[setting.name] = list(setting.choices)
    return {name: values for name, values in lists.items() if name not in fixed and len(values) > 1}


def trial_of(workload: Workload, fixed: Mapping[str, Value], candidate: Candidate) -> Trial:
    return Trial(workload.name, workload.parse({**fixed, **candidate.settings}))

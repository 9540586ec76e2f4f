"""A comparison in sentences that can be quoted."""

from __future__ import annotations

from prony.analysis.compare import (
    COMPILE_CACHE_STATE,
    NOT_COMPARABLE,
    PAIRED,
    QUALITY_NOT_COMPARABLE,
    SAME,
    SAME_QUALITY,
    TEST_SPLIT,
    UNKNOWN,
    UNKNOWN_QUALITY,
    Comparison,
    QualityDifference,
)
from prony.analysis.summary import DRAWN, LABELS
from prony.analysis.variation import CPU_PRIOR_DEVIATION, NEAREST, PRIOR, PRIOR_DEVIATION, Variation


def quality_sentences(found: QualityDifference | None) -> list[str]:
    """What the comparison of quality says; nothing where there is none."""
    if found is None:
        return []
    if found.verdict == QUALITY_NOT_COMPARABLE:
        return [f"Their quality is not comparable: {found.reason}."]
    said = [_difference(found)]
    if found.covers == TEST_SPLIT:
        said.append("Each side is one run, so that interval covers the size of the test split alone, not other seeds.")
    elif found.covers is not None:
        said.append(f"That interval covers {found.covers}.")
    return said + _target(found)


def _difference(found: QualityDifference) -> str:
    ours, theirs, difference = found.a or 0.0, found.b or 0.0, found.difference or 0.0
    values = f"B has {theirs:.4g} and A {ours:.4g}"
    if found.verdict == UNKNOWN_QUALITY:
        return f"{_name(found)}: {values}; without intervals nothing says whether that is chance."
    interval = f"{found.low:.3g} to {found.high:.3g}"
    if found.verdict == SAME_QUALITY:
        return f"No difference in {found.score} shown: {values}; the 95 % CI of the difference, {interval}, includes 0."
    ends = sorted((abs(found.low or 0.0), abs(found.high or 0.0)))
    more = f"{abs(difference):.3g} {found.verdict}{_judged(found)} (95 % CI {ends[0]:.3g} to {ends[1]:.3g})"
    return f"{_name(found)}: {values}, so B's is {more}."


def _judged(found: QualityDifference) -> str:
    """Whether higher is better depends on the score."""
    if found.better is None:
        return ""
    good = (found.verdict == "higher") == (found.better == "more")
    return ", which is better" if good else ", which is worse"


def _name(found: QualityDifference) -> str:
    score = found.score or "score"
    return score[:1].upper() + score[1:]


def _target(found: QualityDifference) -> list[str]:
    """A run ends at its target, so that the time to it says what the score at its end cannot."""
    if found.until is None:
        return []
    if found.reached != found.runs:
        by = [
            f"{reached} of {runs} of {side}"
            for reached, runs, side in zip(found.reached, found.runs, "AB", strict=True)
        ]
        return [f"{found.until} was reached by {by[0]} and by {by[1]}, so there is no ratio of the times to it."]
    if found.times is None:
        return []
    stopped = f"All runs ended on reaching {found.until}, so the time to it says more"
    ratio = f"{found.times.ratio:.4g}"
    if found.times.low is None or found.times.high is None:
        return [f"{stopped}: B took {ratio} times as long as A. That has no interval: it takes several runs per side."]
    interval = f"95 % CI {found.times.low:.4g} to {found.times.high:.4g}"
    shown = "" if not found.times.low <= 1.0 <= found.times.high else ", no difference shown"
    return [f"{stopped}: B took {ratio} times as long as A ({interval}){shown}."]


PRIORS = (PRIOR_DEVIATION, CPU_PRIOR_DEVIATION)
MOST_PARTS = 4  # of the software, in a sentence


def sentences(comparison: Comparison) -> list[str]:
    """What a comparison says, the most important first."""
    if comparison.verdict == NOT_COMPARABLE:
        return [f"Not comparable: {comparison.reason}.", *quality_sentences(comparison.quality)]
    said = [_ratio(comparison)]
    if comparison.verdict != UNKNOWN:
        said.append(_time(comparison))
    said.append(_cause(comparison))
    said += _software(comparison)
    if any(difference.name == "workload" for difference in comparison.settings):
        counted = (comparison.a.unit or "samples").removesuffix("/s")
        said.append(f"The workloads differ: the same number of {counted} is not the same work.")
    return said + quality_sentences(comparison.quality)


def slowdown_sentence(found: bool | None, threshold: float, comparison: Comparison) -> str:
    """What `--fail-if-slower` found."""
    share = f"{100 * threshold:.3g} %"
    if found is not None:
        return f"B is{'' if found else ' not'} slower than A by more than {share}"
    if comparison.failed_checks or comparison.verdict in (NOT_COMPARABLE, UNKNOWN):
        why = "; ".join(comparison.failed_checks) or str(comparison.reason)
    elif comparison.confounded:
        cause = _cause(comparison).removesuffix(".")
        why = cause[0].lower() + cause[1:]
    else:
        why = f"the runs do not show whether B is slower than A by more than {share}"
    return f"nothing can be concluded: {why}"


def _ratio(comparison: Comparison) -> str:
    """The whole answer: the ratio, its interval, and where the variation between runs was taken from."""
    ratio = comparison.ratio or 0.0
    if comparison.verdict == UNKNOWN:
        return f"No conclusion: B is {ratio:.4g}x as fast as A, but {comparison.reason}."
    low, high = comparison.ratio_low or 0.0, comparison.ratio_high or 0.0
    digits = _digits(ratio, low, high)
    interval = f"95 % CI {low:.{digits}f} to {high:.{digits}f}"
    rate = f"B is {ratio:.{digits}f}x as fast as A"
    if comparison.verdict == SAME:
        return f"No difference shown: {rate} ({interval}, which includes 1; {_basis(comparison)})."
    return f"{rate} ({interval}; {_basis(comparison)})."


def _digits(ratio: float, low: float, high: float) -> int:
    """Decimals that show the width of an interval and on which side of 1 it lies."""
    digits = 2
    half_width = max(min(ratio - low, high - ratio), 1e-6)
    while digits < 6 and (half_width < 10.0**-digits or _touches(low, high, digits)):
        digits += 1
    return digits


def _touches(low: float, high: float, digits: int) -> bool:
    """Whether rounding would move an end of the interval onto 1."""
    return any(end != 1.0 and round(end, digits) == 1.0 for end in (low, high))


def _basis(comparison: Comparison) -> str:
    """What the interval rests on: repeats, pairs, or variation that was borrowed."""
    a, b = comparison.a, comparison.b
    if comparison.method == PAIRED:
        return f"{len(a.runs)} interleaved pairs"
    lone = [(name, one.variation) for name, one in (("A", a), ("B", b)) if len(one.runs) == 1 and one.variation]
    if not lone:
        return f"variation between {len(a.runs)} and {len(b.runs)} runs"
    sources = list(dict.fromkeys(_borrowed(variation) for _, variation in lone))
    if len(lone) == 2 and len(sources) == 1:
        return f"one run per side, {sources[0]}"
    if len(lone) == 2:
        return f"one run per side, A: {sources[0]}, B: {sources[1]}"
    return f"{lone[0][0]} is one run, {sources[0]}"


def _borrowed(variation: Variation) -> str:
    deviation = f"{100 * variation.deviation:.2g} %"
    if variation.kind == PRIOR:
        if variation.deviation not in PRIORS:
            return f"between-run SD {deviation} from only {variation.runs} repeats"
        return f"between-run SD not measured: heavy-tailed prior of {deviation} assumed"
    if variation.kind == NEAREST and variation.deviation in PRIORS:
        return f"between-run SD taken as {deviation}, at least that of {variation.source}"
    return f"between-run SD {deviation} from {variation.source}"


def _time(comparison: Comparison) -> str:
    """B's time against A's. The ends are sorted, so that the interval reads upwards."""
    saved, ends = comparison.saved or 0.0, (comparison.saved_low or 0.0, comparison.saved_high or 0.0)
    if comparison.verdict == SAME:
        return f"B may take up to {_share(max(ends))} less or up to {_share(-min(ends))} more time than A."
    low, high = sorted(abs(end) for end in ends)
    share = f"{_share(abs(saved))} ({_share(low)} to {_share(high)})"
    return f"B saves {share} of A's time." if saved > 0.0 else f"B takes {share} more time than A."


def _share(value: float) -> str:
    return f"{100 * value:.1f} %" if value >= 0.0095 else f"{100 * value:.2g} %"


def _cause(comparison: Comparison) -> str:
    if comparison.confounded_by == [COMPILE_CACHE_STATE]:
        cache = next(one for one in comparison.facts if one.name == COMPILE_CACHE_STATE)
        return (
            f"Confounded: only the compile cache differs, {cache.a} for A and {cache.b} for B, so this is no "
            "difference of settings or code. Repeat both with a warm cache."
        )
    if comparison.confounded:
        differ = _listed(comparison.confounded_by)
        return f"Confounded: {differ} differ, so no one of them explains the ratio alone."
    if comparison.question is None and comparison.settings:
        drawn = _listed([f"the {difference.name}" for difference in comparison.settings])
        return f"Only {drawn} differs: the two sides are repeats of one trial."
    if comparison.question is None:
        return "Nothing that is known to matter differs between the two sides."
    chosen = [
        difference.name for difference in comparison.settings if difference.name not in ("preset", *LABELS, *DRAWN)
    ]
    if comparison.question == "preset" and chosen:
        return f"Only preset differs, and what it chooses: {_listed(chosen)}."
    return f"Only {comparison.question} differs."


def _software(comparison: Comparison) -> list[str]:
    """The parts of the software that differ, by name."""
    start = "software."
    parts = [
        difference.name.removeprefix(start) for difference in comparison.facts if difference.name.startswith(start)
    ]
    if not parts:
        return []
    more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
    return [f"Software that differs: {', '.join(parts[:MOST_PARTS])}{more}."]


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)

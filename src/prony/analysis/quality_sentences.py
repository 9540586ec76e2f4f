"""The difference of what two sides learned, in sentences that can be quoted."""

from __future__ import annotations

from prony.analysis.compare_quality import NOT_COMPARABLE, SAME, TEST_SPLIT, UNKNOWN, QualityDifference


def quality_sentences(found: QualityDifference | None) -> list[str]:
    """What the comparison of quality says; nothing where there is none."""
    if found is None:
        return []
    if found.verdict == NOT_COMPARABLE:
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
    if found.verdict == UNKNOWN:
        return f"{_name(found)}: {values}; without intervals nothing says whether that is chance."
    interval = f"{found.low:.3g} to {found.high:.3g}"
    if found.verdict == SAME:
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

"""A comparison in sentences that can be quoted.

They give the ratio of rates and the saved share of time; "p % faster" could mean either.
"""

from __future__ import annotations

from prony.analysis.compare import NOT_COMPARABLE, SAME, UNKNOWN, WITHIN, Comparison, Side
from prony.analysis.quality_sentences import quality_sentences
from prony.analysis.settings import DRAWN, LABELS


def sentences(comparison: Comparison) -> list[str]:
    """What a comparison says, the most important first."""
    if comparison.verdict == NOT_COMPARABLE:
        return [f"Not comparable: {comparison.reason}.", *quality_sentences(comparison.quality)]
    said = [_ratio(comparison)]
    if comparison.verdict != UNKNOWN:
        said.append(_coverage(comparison.a, comparison.b))
    said.append(_cause(comparison))
    if any(difference.name == "workload" for difference in comparison.settings):
        counted = (comparison.a.unit or "samples").removesuffix("/s")
        said.append(f"The workloads differ: the same number of {counted} is not the same work.")
    return said + quality_sentences(comparison.quality)


def _ratio(comparison: Comparison) -> str:
    ratio, saved = comparison.ratio or 0.0, comparison.saved or 0.0
    if comparison.verdict == UNKNOWN:
        return f"B does {ratio:.4g} times the rate of A; without intervals nothing says whether that is chance."
    interval = f"{comparison.ratio_low:.4g} to {comparison.ratio_high:.4g}"
    if comparison.verdict == SAME:
        rate = f"B does {ratio:.4g} times the rate of A"
        return f"No difference shown: {rate}, and the 95 % interval, {interval}, holds 1."
    word = "saves" if saved > 0.0 else "takes"
    ends = sorted((abs(comparison.saved_low or 0.0), abs(comparison.saved_high or 0.0)))
    share = f"{abs(saved):.1%} ({ends[0]:.1%} to {ends[1]:.1%})".replace("%", " %")
    more = "of A's time" if saved > 0.0 else "more time than A"
    return f"B does {ratio:.4g} ({interval}, 95 %) times the rate of A: it {word} {share} {more}."


def _coverage(a: Side, b: Side) -> str:
    if a.interval == WITHIN and b.interval == WITHIN:
        return (
            "Each side is one run, so the interval covers the variation within these two runs only; "
            "another run of either may lie outside. Repeats would show that."
        )
    lone = [name for name, one in (("A", a), ("B", b)) if one.interval == WITHIN]
    if lone:
        return f"Side {lone[0]} is one run; its share of the interval covers the variation within that run only."
    return f"The interval covers the variation between runs ({len(a.runs)} and {len(b.runs)} of them)."


def _cause(comparison: Comparison) -> str:
    if comparison.confounded:
        differ = _listed(comparison.confounded_by)
        return f"Confounded: {differ} differ, so the ratio belongs to none of them alone."
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


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)

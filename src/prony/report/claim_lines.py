"""The claims of a publication with their verdicts, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prony.analysis.claims import FAILS, HOLDS, SHOWN, UNDECIDED, UNTESTED, Judged, Value, state
from prony.report.numbers import format_number

TITLE = "What the publication concludes, tested here"
ON_BOUNDS = "A verdict is on the bounds in brackets, not on the published number."
VERDICTS = (HOLDS, FAILS, UNDECIDED, UNTESTED)


@dataclass(frozen=True)
class Conclusions:
    """What a report says of a publication below its tables."""

    study: str
    claims: list[str]
    more: str  # on the claims that are left out
    stated: list[str]
    assumed: list[str]


def claim_lines(judged: Sequence[Judged]) -> list[str]:
    """The claims, verdict by verdict, below a line that counts them."""
    if not judged:
        return []
    groups = {verdict: [one for one in judged if one.verdict == verdict] for verdict in VERDICTS}
    counts = [f"{verdict}: {len(those)}" for verdict, those in groups.items() if those]
    contradicted = sum(one.contradicted is not None for one in judged)
    counts += [f"contradicted by the publication's own numbers: {contradicted}"] if contradicted else []
    lines = [TITLE, "", f"{len(judged)} {'claim' if len(judged) == 1 else 'claims'}; {'; '.join(counts)}. {ON_BOUNDS}"]
    for verdict, those in groups.items():
        if those:
            lines += ["", f"{verdict.capitalize()}:", "", *(f"- {claim_line(one)}" for one in those)]
    return lines


def claim_line(one: Judged) -> str:
    """The claim, our values, what a test would need, and what the publication's own figures say."""
    claim = one.claim
    sentences = [f"{claim.says} ({claim.place})"]
    told = _told(one)
    published = (
        [f"published {claim.published:g}{_beside(claim.published, told)}"] if claim.published is not None else []
    )
    ours = [f"{_with_interval(value)} for {value.text}" for value in told]
    if ours:
        sentences.append(f"{one.verdict} ({claim.tested}): ours {'; '.join([*_some(ours), *published])}")
    elif published:
        sentences += published
    if one.verdict in (UNTESTED, UNDECIDED):
        sentences += _some(list(one.missing))
    if one.contradicted:
        sentences.append(f"Contradicted by the publication's own numbers: {one.contradicted}")
    return ". ".join(text[0].upper() + text[1:] for text in sentences) + "."


def _told(one: Judged) -> list[Value]:
    """Our values; where the claim does not hold, those that say so."""
    known = [value for value in one.values if value.value is not None]
    return [value for value in known if one.verdict != FAILS or state(one.claim, value) == FAILS]


def _with_interval(value: Value) -> str:
    text = format_number(value.value or 0.0, 3)
    if value.low is None or value.high is None:
        return text
    return f"{text} (95 % CI {format_number(value.low, 3)} to {format_number(value.high, 3)})"


def _beside(published: float, ours: list[Value]) -> str:
    """Whether the published number lies in our interval, where there is one interval."""
    if len(ours) != 1 or ours[0].low is None or ours[0].high is None:
        return ""
    return f", {'inside' if ours[0].low <= published <= ours[0].high else 'outside'} this CI"


def _some(texts: list[str]) -> list[str]:
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return [*texts[:SHOWN], *more]

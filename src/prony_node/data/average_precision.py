"""Mean average precision of found boxes, as COCO counts it: over ten overlaps from 0.50 to 0.95, at 101 recalls.

Written out here, since the node needs torch alone; the tests hold it to pycocotools. A region that is marked as a crowd
is neither to be found nor wrong to find.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

OVERLAPS = tuple((50 + 5 * at) / 100 for at in range(10))
RECALLS = (*(at * 0.01 for at in range(100)), 1.0)
NEARLY = 1 - 1e-10  # the most that an overlap is asked to be
Corners = Sequence[float]  # x1, y1, x2, y2


@dataclass(frozen=True)
class Truth:
    """One box that is there."""

    label: int
    corners: Corners
    crowd: bool = False


@dataclass(frozen=True)
class FoundBox:
    """One box that was answered."""

    label: int
    corners: Corners
    score: float


def found_in(rows: Iterable[Sequence[float]]) -> list[FoundBox]:
    """The boxes of one image from rows of x1, y1, x2, y2, score, label; a row without a score holds none."""
    return [FoundBox(int(row[5]), row[:4], row[4]) for row in rows if row[4] > 0]


@dataclass
class Tally:
    """Of one class: how many are to be found, and for each answer its score and, by overlap, what became of it."""

    there: int = 0
    scores: list[float] = field(default_factory=list)
    right: list[tuple[bool | None, ...]] = field(default_factory=list)  # None: it does not count


def mean_average_precision(images: Iterable[tuple[Sequence[Truth], Sequence[FoundBox]]]) -> float:
    """The mean over classes and overlaps; not a number where nothing was to be found."""
    tallies: dict[int, Tally] = {}
    for truths, answers in images:
        for label in {truth.label for truth in truths} | {answer.label for answer in answers}:
            tally = tallies.setdefault(label, Tally())
            there = [truth for truth in truths if truth.label == label]
            given = [answer for answer in answers if answer.label == label]
            _count(tally, there, sorted(given, key=lambda answer: -answer.score))
    each = [precision for tally in tallies.values() if tally.there for precision in _precisions(tally)]
    return math.fsum(each) / len(each) if each else math.nan


def _count(tally: Tally, truths: list[Truth], answers: list[FoundBox]) -> None:
    """Add one image's answers of a class, the best first."""
    truths = sorted(truths, key=lambda truth: truth.crowd)  # a crowd is looked at last
    tally.there += sum(not truth.crowd for truth in truths)
    shared = [[_overlap(answer.corners, truth) for truth in truths] for answer in answers]
    by_overlap = [_matches(shared, truths, least) for least in OVERLAPS]
    tally.scores += [answer.score for answer in answers]
    tally.right += zip(*by_overlap, strict=True) if answers else ()


def _matches(shared: list[list[float]], truths: list[Truth], least: float) -> list[bool | None]:
    """Each answer takes the box it overlaps most and that no better answer has taken."""
    taken: set[int] = set()
    right: list[bool | None] = []
    for row in shared:
        best, most = None, min(least, NEARLY)
        for at, (overlap, truth) in enumerate(zip(row, truths, strict=True)):
            if truth.crowd and best is not None and not truths[best].crowd:
                break
            if overlap >= most and (truth.crowd or at not in taken):
                best, most = at, overlap
        if best is None:
            right.append(False)
        else:
            right.append(None if truths[best].crowd else True)
            taken.add(best)
    return right


def _overlap(corners: Corners, truth: Truth) -> float:
    """Intersection over union; with a crowd, the share of the answer that lies in it."""
    there = truth.corners
    wide = min(corners[2], there[2]) - max(corners[0], there[0])
    high = min(corners[3], there[3]) - max(corners[1], there[1])
    if wide <= 0 or high <= 0:
        return 0.0
    area = (corners[2] - corners[0]) * (corners[3] - corners[1])
    other = 0.0 if truth.crowd else (there[2] - there[0]) * (there[3] - there[1]) - wide * high
    return wide * high / (area + other)


def _precisions(tally: Tally) -> list[float]:
    """The average precision of a class at each overlap."""
    order = sorted(range(len(tally.scores)), key=lambda at: -tally.scores[at])  # stable: ties in the images' order
    return [_average([tally.right[at][which] for at in order], tally.there) for which in range(len(OVERLAPS))]


def _average(right: list[bool | None], there: int) -> float:
    """Precision at 101 recalls: the highest that is reached at that recall or a higher one, else nothing."""
    recalls, precisions = [], []
    found = wrong = 0
    for answer in right:
        found += answer is True
        wrong += answer is False
        recalls.append(found / there)
        precisions.append(found / (found + wrong) if found else 0.0)
    for at in range(len(precisions) - 1, 0, -1):
        precisions[at - 1] = max(precisions[at - 1], precisions[at])
    places = (bisect.bisect_left(recalls, recall) for recall in RECALLS)
    return math.fsum(precisions[place] for place in places if place < len(precisions)) / len(RECALLS)

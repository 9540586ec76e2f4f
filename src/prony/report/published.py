"""The tables, captions and claims of a publication as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prony.analysis.claims import FAILS, HOLDS, SHOWN, UNDECIDED, UNTESTED, ClaimValue, Judged, state
from prony.analysis.published_plots import BARS, HEAT, Panel, Plot
from prony.analysis.published_tables import EPOCHS, Cell, Ours, Table, TableRow
from prony.report.numbers import NOTHING, format_number, format_share

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
        sentences.append(f"{one.verdict} ({claim.tested}): ours {'; '.join([*_first_few(ours), *published])}")
    elif published:
        sentences += published
    if one.verdict in (UNTESTED, UNDECIDED):
        sentences += _first_few(list(one.missing))
    if one.contradicted:
        sentences.append(f"Contradicted by the publication's own numbers: {one.contradicted}")
    return ". ".join(text[0].upper() + text[1:] for text in sentences) + "."


def _told(one: Judged) -> list[ClaimValue]:
    """Our values; where the claim does not hold, those that say so."""
    known = [value for value in one.values if value.value is not None]
    return [value for value in known if one.verdict != FAILS or state(one.claim, value) == FAILS]


def _with_interval(value: ClaimValue) -> str:
    text = format_number(value.value or 0.0, 3)
    if value.low is None or value.high is None:
        return text
    return f"{text} (95 % CI {format_number(value.low, 3)} to {format_number(value.high, 3)})"


def _beside(published: float, ours: list[ClaimValue]) -> str:
    """Whether the published number lies in our interval, where there is one interval."""
    if len(ours) != 1 or ours[0].low is None or ours[0].high is None:
        return ""
    return f", {'inside' if ours[0].low <= published <= ours[0].high else 'outside'} this CI"


def _first_few(texts: list[str]) -> list[str]:
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return [*texts[:SHOWN], *more]


HEADS = {
    "workload": "workload", "dataset": "data set", "batch_per_device": "batch per device",
    "global_batch": "global batch", "workers_per_device": "workers", "place": "where", "cpus": "CPUs",
}  # fmt: skip
SHARE = "1"  # the unit of an accuracy
MOST_VALUES = 8  # different values in a line
WIDE = 0.01  # an interval within a run is printed from here on
WARNS = "*"
SMALL = "where none shows, it is smaller than the mark"
TITLES = {
    "throughput": "rate", "throughput_first_epoch": "rate of the first epoch", "time": "time",
    "epoch_time": "time per epoch", "tflops_per_device": "rate per device", "energy": "energy",
    "energy_per_device": "energy per device", "energy_per_epoch": "energy per epoch",
    "energy_per_epoch_per_device": "energy per epoch and device", "tokens_per_energy": "tokens per energy",
    "images_per_energy": "images per energy", "accuracy_epoch_10": "accuracy after epoch 10",
    "power_per_device": "power per device",
}  # fmt: skip


def heads(table: Table) -> list[str]:
    """The names of the columns; a published one with its unit, where the table has several."""
    of = {name: {row.cells[name].figure.unit for row in table.rows if name in row.cells} for name in table.columns}
    several = len(set().union(*of.values()) - {SHARE}) > 1
    published = [f"{name}, {unit}" if several and (unit := _only_unit(of[name])) else name for name in table.columns]
    return [*(HEADS.get(name, name) for name in table.spec.rows), *published, *table.ours]


def _only_unit(units: set[str]) -> str:
    return next(iter(units - {SHARE}), "") if len(units) == 1 else ""


def body(table: Table) -> list[list[str]]:
    """The rows of a table as texts; a note in brackets is explained by `below`."""
    notes = _notes(table)
    return [
        [
            *(text or NOTHING for text in row.key),
            *(_published(row.cells[name], notes) if name in row.cells else NOTHING for name in table.columns),
            *(_ours(row.ours[name], row, table, notes) if name in row.ours else NOTHING for name in table.ours),
        ]
        for row in table.rows
    ]


def above(table: Table) -> str:
    """What the numbers are."""
    cells = table.cells()
    words = [f"Published in {text}"] if (text := ", ".join(units(table))) else []
    words += [] if cells else ["No figures are published in numbers"]
    words += [f"ours in {text}"] if (text := ", ".join(units_of_ours(table))) else []
    if any(cell.kind == EPOCHS for cell in cells):
        words.append("in brackets: how many of our epochs take the published time (its number of epochs is not stated)")
    elif any(cell.ratio is not None for cell in cells):
        words.append("in brackets ours over the published")
    if any(cell.per_device and cell.ratio is not None for cell in cells):
        words.append("with d: of one device on each side, since ours ran on another number of them")
    return "; ".join(words) + "." if words else ""


def units(table: Table) -> list[str]:
    """Of the published figures, each once."""
    return list(dict.fromkeys(cell.figure.unit for cell in table.cells() if cell.figure.unit != SHARE))


def units_of_ours(table: Table) -> list[str]:
    """Those that are not the published ones."""
    return list(dict.fromkeys(ours.unit for row in table.rows for ours in row.ours.values() if ours.unit))


def below(table: Table) -> list[str]:
    """What differs, what is missing and why."""
    lines = [f"{table.spec.note}"] if table.spec.note else []
    differs = table.differs()
    if differs:
        names = ", ".join(one.name for one in differs)
        lines.append(f"Not the same on both sides, and a ratio is the effect of all of it together: {names}.")
        lines += [f"{one.name}: published {_some(one.published)}; ours {_some(one.ours)}" for one in differs]
    ours = [one for row in table.rows for one in row.ours.values() if one.value is not None]
    doubts = list(dict.fromkeys(name for one in ours for name in one.doubts))
    lines += [f"{WARNS} Checks of these runs warn: {', '.join(doubts)}."] if doubts else []
    if any(one.half_width and one.half_width >= WIDE for one in ours):
        lines.append(f"± is half of a 95 % CI within one run, printed from {format_share(WIDE, digits=1)} on.")
    return lines + reasons(table)


def published_lines(table: Table) -> list[str]:
    """A table as a page of Markdown shows it, and as a terminal can."""
    return [
        table.spec.title,
        "",
        *([above(table), ""] if above(table) else []),
        *grid_lines(table),
        "",
        *(f"- {line}" for line in below(table)),
    ]


def grid_lines(table: Table) -> list[str]:
    """The rows and columns alone."""
    texts = [heads(table), *body(table)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(texts[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in texts
    ]
    rule = "| " + " | ".join("-" * max(3, width) for width in widths) + " |"
    return [lines[0], rule, *lines[1:]]


def reasons(table: Table) -> list[str]:
    """Why cells are empty or have no ratio, by the numbers that stand in them."""
    return [f"[{number}] {why}" for why, number in _notes(table).items()]


@dataclass(frozen=True)
class PublishedTable:
    """A table as texts, for the template of a report."""

    title: str
    above: str
    columns: list[str]
    named: int  # columns in front that name a row
    rows: list[list[str]]
    below: list[str]


def table_entry(table: Table) -> PublishedTable:
    return PublishedTable(
        title=table.spec.title, above=above(table), columns=heads(table), named=len(table.spec.rows),
        rows=body(table), below=below(table),
    )  # fmt: skip


def _notes(table: Table) -> dict[str, int]:
    """Why cells are empty or have no ratio, numbered in the order of the table."""
    found: dict[str, int] = {}
    for why in (why for row in table.rows for why in _whys(row)):
        found.setdefault(why, len(found) + 1)
    return found


def _whys(row: TableRow) -> list[str]:
    cells = [cell.why for cell in row.cells.values() if cell.why and cell.kind != EPOCHS]
    return [*cells, *(ours.why for ours in row.ours.values() if ours.why)]


def _published(cell: Cell, notes: dict[str, int]) -> str:
    text = format_published(cell.figure.value)
    if cell.ratio is not None and cell.kind == EPOCHS:
        return f"{text} ({format_number(cell.ratio, 3)} ep)"
    if cell.ratio is not None:
        return f"{text} (×{format_number(cell.ratio, 3)}{' d' if cell.per_device else ''})"
    return f"{text} [{notes[cell.why]}]" if cell.why else text


def format_published(value: float) -> str:
    """A figure as it is published, not a digit more or less."""
    return f"{value:,}".removesuffix(".0")


def _ours(ours: Ours, row: TableRow, table: Table, notes: dict[str, int]) -> str:
    if ours.value is None:
        return f"{NOTHING} [{notes[ours.why]}]" if ours.why else NOTHING
    width = f" ± {format_share(ours.half_width, digits=2)}" if ours.half_width and ours.half_width >= WIDE else ""
    text = f"{format_number(ours.value)}{width}{WARNS if ours.doubts else ''}"
    if "devices" not in table.spec.rows:
        return text
    wished = row.key[table.spec.rows.index("devices")]
    return text if wished in ("", str(ours.devices)) else f"{text} (1 device)"


def _some(values: Sequence[str]) -> str:
    more = f" and {len(values) - MOST_VALUES} more" if len(values) > MOST_VALUES else ""
    return ", ".join(values[:MOST_VALUES]) + more


def panel_title(plot: Plot, panel: Panel) -> str:
    """What a panel shows, in which unit; whose it is, where the other side has a panel of its own."""
    words = TITLES.get(panel.metric, panel.metric.replace("_", " "))
    for one in plot.apart:
        if one.metric == panel.metric:
            side = "ours" if panel.unit == one.ours else "published"
            scale = ", log scale" if plot.spec.kind == BARS and panel.is_logarithmic else ""
            return f"{words.split(' of ')[0] if side == 'ours' else words}, {panel.unit} ({side}{scale})"
    return words if panel.unit == SHARE else f"{words}, {panel.unit}"


@dataclass(frozen=True)
class Captioned:
    """A plot with the lines below it."""

    plot: Plot
    caption: list[str]


def plot_caption(plot: Plot, source: str, machine: str) -> list[str]:
    """What a reader needs below a plot, a sentence or two each: whose series are drawn, what is not, what differs."""
    cited = f" ({source})" if source else ""
    lines = [f"{plot.spec.title}.", f"{'Grey: as published' if plot.has_published else 'No published series'}{cited}."]
    lines.append(f"In colour: ours, on {machine}." if plot.has_ours else "There are no runs of ours to draw.")
    without = sum(mark.low is None for mark in plot.values)
    if plot.spec.kind != HEAT and without < len(plot.values):
        said = f"{without} of our {len(plot.values)} values have none" if without else SMALL
        lines.append(f"Bars are 95 % CIs, within one run where there is one; {said}.")
    times = plot.times()
    for how, places in times.items():
        lines.append(f"Our time is {how}{f': {_some(places)}' if len(times) > 1 else ''}.")
    if plot.spec.kind == BARS and any(panel.has_own_scales and not panel.is_logarithmic for panel in plot.panels):
        lines.append(f"Each {HEADS.get(plot.spec.x, plot.spec.x)} has a scale of its own.")
    if plot.spec.kind == BARS and any(panel.is_logarithmic for panel in plot.panels):
        lines.append("Bars of ours share one logarithmic scale.")
    if plot.spec.undrawn:
        lines.append(f"Not drawn, since the publication states no numbers: {', '.join(plot.spec.undrawn)}.")
    for metric, names in plot.without_numbers.items():
        words = TITLES.get(metric, metric.replace("_", " "))
        lines.append(f"Not drawn in {words}, since no numbers are published: {'; '.join(names)}.")
    for why in dict.fromkeys(plot.spec.no_ratio.values()):
        left = [TITLES.get(name, name.replace("_", " ")) for name, its in plot.spec.no_ratio.items() if its == why]
        lines.append(f"Not drawn: {' and '.join(left)}, since {why}.")
    for one in plot.apart:
        lines.append(f"Published in {one.published}, ours in {one.ours}, so each has its own panel: {one.why}.")
    for name, marks in plot.out_of_memory().items():
        where = _some([", ".join(filter(None, (mark.x, mark.y))) for mark in marks])
        axes = " and ".join(HEADS.get(axis, axis) for axis in (plot.spec.x, plot.spec.y) if axis)
        lines.append(f"Out of memory (OOM), {name}: {axes} {where}.")
    if plot.differs:
        told = "; ".join(
            f"{one.name} (published {_some(one.published)}; ours {_some(one.ours)})" for one in plot.differs
        )
        lines.append(f"Not the same on both sides: {told}.")
    return lines + ([plot.spec.note] if plot.spec.note else [])

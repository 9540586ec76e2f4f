"""The energy account of a time span: how it is made, its JSON document, and its text for a terminal."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import JOULES_A_WH, Rates, carbon_g, cost_json, price
from prony_node.contract.record import Check, Level
from prony_node.contract.safe_files import read_in_run
from prony_node.contract.typed import encode
from prony_node.power import figures
from prony_node.power.figures import MeasuredNode, PartEnergy, quickest_first, span_energy
from prony_node.power.recording import Recording, Trace, foreign, read_recording, throttling
from prony_node.power.window import SHORTEST_S, ticks

BLOCKS, LETTERS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
LEAST_WIDTH = 16


def power_points(traces: list[Trace], start_s: float, end_s: float) -> tuple[list[tuple[float, float]], str]:
    """Instants and watts of the quickest sensor of a part, and its name; of a counter, between its ticks."""
    for trace in quickest_first(traces):
        inside = [(r.after_s, r.value) for r in trace.readings if start_s <= r.after_s <= end_s]
        if len(inside) >= 2:
            return inside, trace.sensor.id.partition(" ")[0]
    for trace in traces:
        if trace.sensor.kind == "counter":
            found = [tick for tick in ticks(trace.readings, trace.sensor)[0] if start_s <= tick.middle_s <= end_s]
            points = [
                (0.5 * (a.middle_s + b.middle_s), (b.value_j - a.value_j) / (b.middle_s - a.middle_s))
                for a, b in pairwise(found)
                if b.middle_s > a.middle_s and b.value_j >= a.value_j
            ]
            if len(points) >= 2:
                return points, trace.sensor.id.partition(" ")[0]
    return [], ""


def columns(points: list[tuple[float, float]], start_s: float, end_s: float, count: int) -> list[float | None]:
    """Mean watts of each of `count` equal times; None where nothing was read for longer than usual."""
    width_s = (end_s - start_s) / count
    bins: list[list[float]] = [[] for _ in range(count)]
    for at_s, power_w in points:
        bins[min(count - 1, max(0, int((at_s - start_s) / width_s)))].append(power_w)
    means = [math.fsum(values) / len(values) if values else None for values in bins]
    gaps_s = sorted(b[0] - a[0] for a, b in pairwise(points))
    reach = max(1, math.ceil(3.0 * gaps_s[len(gaps_s) // 2] / width_s))  # a reading holds until the next
    held: list[float | None] = []
    for number, mean in enumerate(means):
        recent = [value for value in means[max(0, number - reach) : number] if value is not None]
        held.append(mean if mean is not None else recent[-1] if recent else None)
    return held


def bars(values: list[float | None], highest_w: float, rows: int, marks: str) -> list[str]:
    """Rows of characters, the top one first; what is not known is blank."""
    steps = len(marks) - 1

    def mark(value: float | None, row: int) -> str:
        if value is None or highest_w <= 0:
            return " "
        # What is there at all is seen: at least one step.
        level = max(1, round(rows * steps * max(0.0, value) / highest_w))
        return marks[min(steps, max(0, level - row * steps))]

    return ["".join(mark(value, row) for value in values) for row in reversed(range(rows))]


def draw(traces: list[Trace], start_s: float, end_s: float, width: int, *, unicode: bool) -> list[str]:
    """The curve of a part with its axes, or nothing where there are no readings."""
    points, sensor = power_points(traces, start_s, end_s)
    if not points or end_s <= start_s:
        return []
    lowest_w, highest_w = min(w for _, w in points), max(w for _, w in points)
    rows, marks = (2, BLOCKS) if unicode else (1, LETTERS)
    margin = max(len(f"{highest_w:.0f} W"), 3)
    room = max(LEAST_WIDTH, width - margin - 2)
    drawn = bars(columns(points, start_s, end_s, room), highest_w, rows, marks)
    heads = [f"{highest_w:.0f} W", "0 W"] if rows == 2 else [f"{highest_w:.0f} W"]
    edge = "┤" if unicode else "|"
    lines = [f"{head:>{margin}} {edge}{row}" for head, row in zip(heads, drawn, strict=True)]
    left, right = "0 s", f"{end_s - start_s:.3g} s"
    middle = f"{lowest_w:.0f} to {highest_w:.0f} W ({sensor})"
    if len(left) + len(middle) + len(right) + 4 > room:
        middle = ""
    axis = left + middle.center(max(0, room - len(left) - len(right))) + right
    return [*lines, " " * (margin + 2) + axis]


ENERGY = "energy.json"
ENERGY_SCHEMA = "prony.energy/1"
SILENT = ("replay",)  # a reader whose absence is no news


@dataclass
class Account:
    """What was measured between two instants of the monotonic clock; what was not has its reason."""

    start_s: float
    end_s: float
    recording: Recording = field(default_factory=Recording)
    parts: list[PartEnergy] = field(default_factory=list)
    node: MeasuredNode | None = None
    idle: dict[str, tuple[float | None, str]] = field(default_factory=dict)  # W by part, or why not
    checks: dict[str, list[Check]] = field(default_factory=dict)  # by part; of all of them under ""
    reason: str = ""  # why nothing was measured at all
    complaints: list[str] = field(default_factory=list)  # of the sampler

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def why_nothing(self) -> str:
        """One line: why there is no figure of the node."""
        if self.node is not None:
            return ""
        return self.reason or "; ".join(dict.fromkeys(part.reason for part in self.parts)) or "no sensor"

    def reader_reasons(self) -> dict[str, str]:
        return {name: why for name, why in self.recording.reasons.items() if name not in SILENT}


def make_account(folder: Path, start_s: float, end_s: float) -> Account:
    """The account of a span, from the recording in a folder. Nothing that goes wrong here raises."""
    account = Account(start_s, end_s, complaints=_log(folder))
    try:
        recording = read_recording(folder)
        if recording is None:
            account.reason = "the sampler did not start" + "".join(f": {line}" for line in account.complaints[-1:])
            return account
        account.recording = recording
        if not recording.traces:
            account.reason = "no power sensor answers here"
            return account
        _fill(account)
    except RequestError as error:
        account.reason = str(error)
    except Exception as error:  # what was measured is for a command that went well; it must not end badly by us
        account.reason = f"the samples could not be judged: {type(error).__name__}: {error}"
    return account


def _fill(account: Account) -> None:
    recording = account.recording
    span = span_energy(recording, account.start_s, account.end_s)
    found = span.parts
    if account.seconds < SHORTEST_S:
        short = f"it took {account.seconds:.2g} s, and under {SHORTEST_S:.0f} s there is no energy figure"
        found = [replace(part, figure=None, reason=short) for part in found]
    found = [_with_peak(part, recording, account.start_s, account.end_s) for part in found]
    account.parts, account.node, account.idle = found, span.node, span.idle
    busy = recording.about.get("busy_at_start") or {}
    seen = recording.about.get("conditions") or {}
    for part in found:
        checks = [*_span(part, account.seconds), *span.checks_of_part(part)]
        if part.scope in ("gpu", "module"):
            checks.append(throttling(seen.get(part.part)))
        checks.append(foreign(busy.get(part.part), seen.get(part.part)))
        account.checks[part.part] = checks
    everything = figures.covered([part.part for part in found], found)
    account.checks[""] = [*span.checks_of_node(), everything]


def _with_peak(part: PartEnergy, recording: Recording, start_s: float, end_s: float) -> PartEnergy:
    """The peak of the whole span, not of what lies between two ticks."""
    points, sensor = power_points(recording.of_part(part.part), start_s, end_s)
    known = part.peak_w is not None and points
    return replace(part, peak_w=max(power_w for _, power_w in points), peak_sensor=sensor) if known else part


def _span(part: PartEnergy, seconds: float) -> list[Check]:
    """A counter knows the time from its first tick to its last. What is outside is said, and never made up for."""
    figure = part.figure
    if figure is None:
        return []
    missed_s = seconds - figure.seconds
    level: Level = "pass" if missed_s <= max(3.0 * figure.period_s, 0.02 * seconds) else "warn"
    return [Check("energy-span", level, f"covers {figure.seconds:.2f} s of {seconds:.2f} s")]


def _log(folder: Path) -> list[str]:
    """What the sampler complained of."""
    try:
        return read_in_run(folder / files.POWER_LOG).decode("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return []


def account_json(account: Account, about: dict[str, Any], rates: Rates) -> dict[str, Any]:
    """The document of an account; `about` says what ran."""
    node = figures.recorded_node(account.node, account.recording)
    if account.node is None:
        node = replace(node, reason=account.why_nothing())
    return {
        "schema": ENERGY_SCHEMA,
        **about,
        "seconds": account.seconds,
        "span_monotonic_s": [account.start_s, account.end_s],
        "parts": [
            {**encode(figures.recorded_part(part, account.idle[part.part])), "conditions": _seen(account, part)}
            for part in account.parts
        ],
        "node": encode(node),
        "checks": [
            {"part": name or None, **encode(check)} for name, checks in account.checks.items() for check in checks
        ],
        **cost_json(node.energy_j, node.how or "", rates),
        "reasons": account.reader_reasons(),
        "notes": [*(account.recording.about.get("notes") or []), *account.complaints],
    }


def _seen(account: Account, part: PartEnergy) -> Any:
    return (account.recording.about.get("conditions") or {}).get(part.part)


HEAD = ("device", "energy", "", "±", "mean", "peak", "idle")
DASH = "-"
WIDTH, WIDEST = 80, 120
MANY_PARTS = 2  # more of them have their quality as a paragraph each


@dataclass(frozen=True)
class Terminal:
    """Where the text goes: how wide, and whether it knows more than ASCII."""

    stream: TextIO | None
    width: int = WIDTH
    unicode: bool = True

    @staticmethod
    def of(stream: Any) -> Terminal:
        """`stream` is None where the caller closed it."""
        try:
            width = min(WIDEST, os.get_terminal_size(stream.fileno()).columns or WIDTH)
        except (OSError, ValueError, AttributeError):
            width = WIDTH
        try:
            "┤█▁±".encode(stream.encoding)
            unicode = True
        except (UnicodeEncodeError, LookupError, AttributeError, TypeError):
            unicode = False
        return Terminal(stream, max(40, width), unicode)

    def say(self, *lines: str) -> None:
        """Print; nobody may be there any more to read it, and that is no fault of the command."""
        text = "\n".join(line.rstrip() for line in lines) + "\n"
        if not self.unicode:
            text = text.replace("±", "+-")
        try:
            if self.stream is not None:
                self.stream.write(text)
                self.stream.flush()
        except (OSError, ValueError):
            if self.stream is sys.stderr:
                sys.stderr = None  # or Python tries once more at its end

    def wrap(self, text: str, indent: str = "  ", hang: str = "    ") -> list[str]:
        return textwrap.wrap(text, self.width, initial_indent=indent, subsequent_indent=hang, break_long_words=False)


def account_lines(account: Account, title: str, rates: Rates, screen: Terminal) -> list[str]:
    """Everything that is printed of an account."""
    lines = screen.wrap(f"prony power: {title}", "", "  ")
    if not account.parts:
        why = f"no energy figure: {account.reason}"
        return [*lines, *reason_lines(why, account.reader_reasons(), screen), *cost_lines(None, rates)]
    lines += ["", *table(account)]
    lines += [f"  {line}" for line in cost_lines(account.node, rates)]
    for part in account.parts:
        lines += ["", f"{part_name(part)}  ({part.part})" if part.part not in part_name(part) else part_name(part)]
        lines += _quality(account, part, screen)
        curve = draw(
            account.recording.of_part(part.part),
            account.start_s,
            account.end_s,
            screen.width - 2,
            unicode=screen.unicode,
        )
        lines += [f"  {line}" for line in curve]
    everything = [figures.said(check) for check in account.checks.get("", []) if account.node is not None]
    notes = [*(account.recording.about.get("notes") or []), *account.complaints]
    lines += ["", *(line for text in [*everything, *map(str, notes)] for line in screen.wrap(text, "", "  "))]
    return lines


def reason_lines(sentence: str, reasons: dict[str, str], screen: Terminal) -> list[str]:
    """That there is no figure, and why, a line a reader."""
    lines = screen.wrap(f"{sentence}{':' if reasons else ''}", "", "  ")
    longest = max(map(len, reasons), default=0)
    return lines + [f"  {name:<{longest}}  {_short(why, screen.width - longest - 4)}" for name, why in reasons.items()]


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(0, room - 3)].rstrip() + "..."


def table(account: Account) -> list[str]:
    """A row a part, then the node."""
    rows = [HEAD, *(_row(account, part) for part in account.parts)]
    if account.node is not None:
        rows.append(_node_row(account.node))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    aligned = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    ]
    return ["  ".join(cells) for cells in aligned]


def _row(account: Account, part: PartEnergy) -> tuple[str, ...]:
    idle_w = account.idle[part.part][0]
    idle = DASH if idle_w is None else f"{idle_w:.0f} W"
    figure = part.figure
    if figure is None:
        return (part_name(part), DASH, DASH, DASH, DASH, DASH, idle)
    peak = DASH if part.peak_w is None else f"{part.peak_w:.0f} W"
    share = f"{100 * figure.relative_uncertainty:.2g} %"
    return (
        part_name(part),
        joules(figure.energy_j),
        hours(figure.energy_j),
        share,
        f"{figure.power_w:.1f} W",
        peak,
        idle,
    )


def _node_row(node: MeasuredNode) -> tuple[str, ...]:
    share = f"{100 * node.uncertainty_j / node.energy_j:.2g} %" if node.energy_j > 0 else DASH
    power = f"{node.power_w:.1f} W"
    return (f"node: {node.how}", joules(node.energy_j), hours(node.energy_j), share, power, DASH, DASH)


def joules(energy_j: float) -> str:
    return f"{energy_j:.1f} J" if energy_j < 1e5 else f"{energy_j:.0f} J"


def hours(energy_j: float) -> str:
    energy_wh = energy_j / JOULES_A_WH
    return f"{energy_wh:.4g} Wh" if energy_wh < 1e4 else f"{energy_wh:.0f} Wh"


def plain(value: float) -> str:
    """Four digits that count, and no exponent."""
    digits = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(0, digits)}f}"


def part_name(part: PartEnergy) -> str:
    """Short enough for a table, and different for two devices of one model."""
    if part.part in part.label or part.scope == "node":
        return part.label
    short = part.part if len(part.part) <= 16 else part.part[:12]
    return f"{part.label} {short}"


def cost_lines(node: MeasuredNode | None, rates: Rates) -> list[str]:
    """Carbon and money where a site gave its numbers, each with the number."""
    energy_j = None if node is None else node.energy_j
    basis = "" if node is None else f", {node.how}"
    lines = []
    if rates.carbon is not None:
        grams = carbon_g(energy_j, rates.carbon)
        known = "unknown, as the energy is" if grams is None else f"{plain(grams)} g CO2e"
        lines.append(f"carbon: {known} (at {rates.carbon}{basis})")
    if rates.price is not None:
        amount = price(energy_j, rates.price)
        known = "unknown, as the energy is" if amount is None else f"{plain(amount)} {rates.price.unit}".strip()
        lines.append(f"price: {known} (at {rates.price}{basis})")
    return lines


def _quality(account: Account, part: PartEnergy, screen: Terminal) -> list[str]:
    found = figures.quality_lines(part, account.checks.get(part.part, []))
    idle_w, why = account.idle[part.part]
    if idle_w is None:
        found.append(f"idle power: unknown, {why}")
    if len(account.parts) > MANY_PARTS:
        return screen.wrap("; ".join(found), "  ", "  ")
    return [line for text in found for line in screen.wrap(text)]

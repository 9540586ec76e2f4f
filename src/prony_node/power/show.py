"""An account as text for a terminal: the table, what the figures are worth, and a small curve of each part."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, TextIO

from prony_node.contract.cost import Rates, carbon_g, price
from prony_node.power import quality
from prony_node.power.account import Account
from prony_node.power.curve import draw
from prony_node.power.figures import NodeEnergy, PartEnergy

JOULES_A_WH = 3600.0
HEAD = ("device", "energy", "", "±", "mean", "peak", "idle")
DASH = "-"
WIDTH, WIDEST = 80, 120
MANY_PARTS = 2  # more of them have their quality as a paragraph each


@dataclass(frozen=True)
class Screen:
    """Where the text goes: how wide, and whether it knows more than ASCII."""

    stream: TextIO | None
    width: int = WIDTH
    unicode: bool = True

    @staticmethod
    def of(stream: Any) -> Screen:
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
        return Screen(stream, max(40, width), unicode)

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


def account_lines(account: Account, title: str, rates: Rates, screen: Screen) -> list[str]:
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
    everything = [quality.said(check) for check in account.checks.get("", []) if account.node is not None]
    notes = [*(account.recording.about.get("notes") or []), *account.complaints]
    lines += ["", *(line for text in [*everything, *map(str, notes)] for line in screen.wrap(text, "", "  "))]
    return lines


def reason_lines(sentence: str, reasons: dict[str, str], screen: Screen) -> list[str]:
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


def _node_row(node: NodeEnergy) -> tuple[str, ...]:
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


def cost_lines(node: NodeEnergy | None, rates: Rates) -> list[str]:
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


def _quality(account: Account, part: PartEnergy, screen: Screen) -> list[str]:
    found = quality.quality_lines(part, account.checks.get(part.part, []))
    idle_w, why = account.idle[part.part]
    if idle_w is None:
        found.append(f"idle power: unknown, {why}")
    if len(account.parts) > MANY_PARTS:
        return screen.wrap("; ".join(found), "  ", "  ")
    return [line for text in found for line in screen.wrap(text)]

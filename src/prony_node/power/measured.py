"""The figures of a block, once it has ended."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from prony_node.contract import files
from prony_node.contract.cost import find_rates
from prony_node.power.account import Account, account_json, make_account
from prony_node.power.figures import NodeEnergy, PartEnergy
from prony_node.power.shared import Joined
from prony_node.power.show import Screen, account_lines
from prony_node.power.window import SHORTEST_S

BUFFER_S = 0.6  # a driver's own buffer is asked every half second
SETTLE_S = 2.0  # until the readings of a block's last moment are in the file


class Measured:
    """The figures of one block: there once it has ended, None with a reason in `reason` where not measured."""

    def __init__(self, name: str | None, started: str) -> None:
        self.name, self.started = name, started
        self.start_s = self.end_s = 0.0  # of the monotonic clock
        self.kept: Path | None = None  # where samples and figures were written
        self.notes: list[str] = []
        self.joined: Joined | None = None  # the sampler, while it is there
        self.why_not = ""
        self._account: Account | None = None

    @property
    def account(self) -> Account:
        """Everything that is known of the block. Asked for within an outer block, it waits for the last readings."""
        if self._account is None:
            if not self.end_s:
                raise RuntimeError("the block has not ended yet: its figures are there after it")
            self._account = self._make_account()
        return self._account

    def _make_account(self) -> Account:
        if self.joined is None:
            return Account(self.start_s, self.end_s, reason=self.why_not or "nothing was sampled")
        if self.end_s - self.start_s >= SHORTEST_S:  # else there is no figure to wait for
            _wait_for_readings(self.joined.folder, self.end_s)
        return make_account(self.joined.folder, self.start_s, self.end_s)

    @property
    def energy_j(self) -> float | None:
        """Of the node where it has a sensor, else the sum of its devices: a lower bound, as `node.how` says."""
        return self.node.energy_j if self.node else None

    @property
    def power_w(self) -> float | None:
        """Mean power of what `energy_j` is of."""
        return self.node.power_w if self.node else None

    @property
    def seconds(self) -> float:
        return self.account.seconds

    @property
    def parts(self) -> list[PartEnergy]:
        """The figure of each device and other part that has a sensor."""
        return self.account.parts

    @property
    def node(self) -> NodeEnergy | None:
        return self.account.node

    @property
    def reason(self) -> str:
        """Why there is no figure; empty when there is one."""
        return self.account.why_nothing()

    def table(self, width: int = 80) -> str:
        """What `prony power` prints, as text."""
        title = f"{self.name or 'block'}: {self.seconds:.2f} s"
        screen = Screen(None, width)
        return "\n".join(account_lines(self.account, title, find_rates(None, None, os.environ), screen))

    def json(self) -> dict[str, Any]:
        """The document, of schema prony.energy/1."""
        about = {
            "name": self.name,
            "command": None,
            "exit": None,
            "started": self.started,
            "samples": str(self.kept) if self.kept else None,
        }
        document = account_json(self.account, about, find_rates(None, None, os.environ))
        document["notes"] += self.notes
        return document


def _wait_for_readings(folder: Path, end_s: float) -> None:
    """Until the sampler has written something that is later; not for ever, it may have been killed."""
    give_up_s = time.monotonic() + SETTLE_S
    time.sleep(max(0.0, end_s + BUFFER_S - time.monotonic()))
    samples = folder / files.POWER_SAMPLES
    while time.monotonic() < give_up_s:
        try:
            with samples.open("rb") as file:
                file.seek(max(0, samples.stat().st_size - 4096))
                whole = file.read().splitlines()[:-1]  # the last one may be half written
            if len(whole) < 2 or float(whole[-1].split(b",")[1]) > end_s:
                return
        except (OSError, ValueError, IndexError):
            return
        time.sleep(0.05)

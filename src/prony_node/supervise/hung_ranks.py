"""Which of several ranks hangs: each is asked where it stands, and all but the one that hangs wait for the others."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.process import is_alive
from prony_node.supervise.blame import last_words, name
from prony_node.supervise.rank_process import top_of_stack

PATIENCE_S = 2.0  # for their answers
# Where a rank stands that waits for others or for its device: in torch's exchange, in the backward pass around it, or
# for a device that takes part in one.
WAITING = re.compile(
    r"torch/distributed/|torch/nn/parallel/|torch/autograd/|parallel/ranks\.py|measure/clock\.py|synchroni[sz]e"
)
FRAMES_LOOKED_AT = 4


def ask_where(folder: Path, wait: Callable[[float], None]) -> dict[int, str]:
    """Where each rank of this node stands; empty for one that gave no answer."""
    own = {rank: path for rank, path in files.rank_folders(folder).items() if _signal(path)}
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s and not all(top_of_stack(path / files.STACKS) for path in own.values()):
        wait(0.1)
    wait(0.2)  # for the last lines of the last one
    return {rank: top_of_stack(path / files.STACKS) for rank, path in own.items()}


def _signal(own: Path) -> bool:
    """Ask, where that rank lives on this very machine."""
    who = files.read_json(own / files.RANK) or {}
    if is_alive(who) is not True:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(int(who["pid"]), signal.SIGUSR1)
    return True


def where_they_stood(folder: Path, ranks: int, stacks: dict[int, str]) -> str:
    """The ranks that hang, by name, with their stack and last words; else where the first one stood."""
    silent = [rank for rank, stack in stacks.items() if not stack]
    busy = [rank for rank, stack in stacks.items() if stack and not waits(stack)]
    hung = silent or (busy if len(busy) < len(stacks) else [])
    if not hung:
        known = [f"{name(folder, rank, ranks)} stood at {stack}" for rank, stack in stacks.items() if stack]
        return f"which rank the others waited for cannot be told; {known[0]}" if known else "no rank of it lives here"
    told = []
    for rank in hung:
        at = f"stood at {stacks[rank]}" if stacks[rank] else "gave no answer when asked where it stands"
        told.append(f"{name(folder, rank, ranks)} {at}{last_words(folder, rank)}")
    return f"{'; '.join(told)}\nthe other {len(stacks) - len(hung)} waited"


def waits(stack: str) -> bool:
    return any(WAITING.search(frame) for frame in stack.splitlines()[:FRAMES_LOOKED_AT])

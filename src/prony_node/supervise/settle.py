"""The first thing that one rank of several does: a folder and a log of its own, and an end with its parents'."""

from __future__ import annotations

import os
import platform
import signal
import sys
from pathlib import Path

from prony_node.contract import files
from prony_node.contract.process import identify
from prony_node.parallel.place import Place
from prony_node.supervise.parent import end_with_parent


def settle(place: Place, folder: Path) -> Path:
    """The folder that this rank writes into."""
    end_with_parent(signal.SIGKILL)
    if _launcher_is_gone():
        os._exit(1)
    with files.open_bytes(folder / files.rank_log(place.rank), append=True) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    own = files.rank_folder(folder, place.rank)
    files.make_folder(own)
    files.write_whole(own / files.RANK, {"rank": place.rank, "node": place.node, "device": None, **identify()})
    return own


def note_device(place: Place, own: Path, device: str) -> None:
    files.write_whole(own / files.RANK, {"rank": place.rank, "node": place.node, "device": device, **identify()})


def name_of(place: Place, device: str) -> str:
    return f"rank {place.rank} ({platform.node()}, {device})"


def _launcher_is_gone() -> bool:
    """Whether the launcher ended before this process could ask to end with it: it is the supervisor's child."""
    supervisor = os.environ.get("PRONY_SUPERVISOR_PID", "")
    if not supervisor or not sys.platform.startswith("linux"):
        return False
    try:
        text = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[1] != supervisor

"""The measured blocks of this process that are open. The last one out makes the figures of all, and lets go.

A block inside another must not wait for its last readings, or that would be time of the outer one.
"""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

from prony_node.contract import files
from prony_node.power.account import ENERGY
from prony_node.power.measured import Measured
from prony_node.power.shared import Joined, NotShared, join

RANK_ON_NODE = ("LOCAL_RANK", "SLURM_LOCALID")
MOST_FOLDERS = 100_000


@dataclass
class Sampling:
    """A sampler that blocks of this process use."""

    joined: Joined
    depth: int = 0
    ended: list[tuple[Measured, Path | None]] = field(default_factory=list)


class OpenBlocks:
    """By sampler: how many blocks are open, and which have ended within them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._by_request: dict[tuple[float | None, tuple[str, ...]], Sampling] = {}

    def enter(self, interval_s: float | None, readers: list[str]) -> Joined:
        """The sampler for a block that begins."""
        with self._lock:
            if self._pid != os.getpid():  # a forked child: what was open is its parent's
                self._pid, self._by_request = os.getpid(), {}
            request = (interval_s, tuple(readers))
            sampling = self._by_request.get(request)
            if sampling is None:
                sampling = Sampling(join(interval_s, readers))
                try:
                    if not sampling.joined.ready():
                        raise NotShared("the sampler did not start")
                except BaseException:
                    sampling.joined.leave()
                    raise
                self._by_request[request] = sampling
            sampling.depth += 1
            return sampling.joined

    def leave(self, measured: Measured, out: Path | None) -> None:
        """A block has ended. Nothing here raises what would hide how it did."""
        with self._lock:
            of_it = [(key, one) for key, one in self._by_request.items() if one.joined is measured.joined]
            if not of_it:
                _finish(measured, out)
                return
            request, sampling = of_it[0]
            sampling.ended.append((measured, out))
            sampling.depth -= 1
            if sampling.depth:
                return
            del self._by_request[request]
        try:
            for each, folder in sampling.ended:
                _finish(each, folder)
        finally:
            sampling.joined.leave()


def _finish(measured: Measured, out: Path | None) -> None:
    """Make the figures while the samples are there, and keep them where asked."""
    try:
        account = measured.account
        if out is not None and _first_on_node():
            measured.kept = _new_folder(out)
            if measured.joined is not None and account.parts:
                for name in (files.POWER, files.POWER_SAMPLES):
                    shutil.copyfile(measured.joined.folder / name, measured.kept / name)
            files.write_whole(measured.kept / ENERGY, measured.json())
            files.fit_all(measured.kept)
    except Exception as error:  # a full disk, or a rate in the environment that is none
        measured.notes.append(f"the samples were not kept: {error}")


def _first_on_node() -> bool:
    """All ranks of a node see the same sampler; one of them writes."""
    return all(os.environ.get(name, "0") == "0" for name in RANK_ON_NODE)


def _new_folder(out: Path) -> Path:
    """A folder that nobody had before: nothing is overwritten, not by another node either."""
    files.make_folders(out.parent)
    for number in range(1, MOST_FOLDERS):
        folder = out if number == 1 else out.with_name(f"{out.name}-{number}")
        try:
            folder.mkdir(files.OWN_FOLDER)
        except FileExistsError:
            continue
        return folder
    raise OSError(f"there are too many folders named {out}")


OPEN = OpenBlocks()

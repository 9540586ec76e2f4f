"""measure(): the energy of a block of a user's own script, also under torchrun.

    from prony_node.power import measure

    with measure("training") as measured:
        train()
    print(measured.energy_j, measured.table())

or `@measure("training")` before a function; `function.measured` then has the figures of its last call. The figures are
those of this node: of every device that this process may use, whoever used it. All processes of a job share one
sampler. The outermost block makes the figures of all blocks: an inner block that waited for its last readings would
add that time to the outer one.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import find_rates
from prony_node.power.account import ENERGY, Account, Terminal, account_json, account_lines, make_account
from prony_node.power.any_command import LEAST_INTERVAL_S, MOST_INTERVAL_S, parse_readers
from prony_node.power.figures import MeasuredNode, PartEnergy
from prony_node.power.recording import NotShared, SharedSampler, join
from prony_node.power.window import SHORTEST_S

BUFFER_S = 0.6  # a driver's own buffer is asked every half second
SETTLE_S = 2.0  # until the readings of a block's last moment are in the file


class BlockEnergy:
    """The figures of one block: there once it has ended, None with a reason in `reason` where not measured."""

    def __init__(self, name: str | None, started: str) -> None:
        self.name, self.started = name, started
        self.start_s = self.end_s = 0.0  # of the monotonic clock
        self.kept: Path | None = None  # where samples and figures were written
        self.notes: list[str] = []
        self.joined: SharedSampler | None = None  # the sampler, while it is there
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
    def node(self) -> MeasuredNode | None:
        return self.account.node

    @property
    def reason(self) -> str:
        """Why there is no figure; empty when there is one."""
        return self.account.why_nothing()

    def table(self, width: int = 80) -> str:
        """What `prony power` prints, as text."""
        title = f"{self.name or 'block'}: {self.seconds:.2f} s"
        screen = Terminal(None, width)
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


RANK_ON_NODE = ("LOCAL_RANK", "SLURM_LOCALID")
MOST_FOLDERS = 100_000


@dataclass
class Sampling:
    """A sampler that blocks of this process use."""

    joined: SharedSampler
    depth: int = 0
    ended: list[tuple[BlockEnergy, Path | None]] = field(default_factory=list)


class OpenBlocks:
    """By sampler: how many blocks are open, and which have ended within them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._by_request: dict[tuple[float | None, tuple[str, ...]], Sampling] = {}

    def enter(self, interval_s: float | None, readers: list[str]) -> SharedSampler:
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

    def leave(self, measured: BlockEnergy, out: Path | None) -> None:
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


def _finish(measured: BlockEnergy, out: Path | None) -> None:
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


Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def measure(name: Function) -> Function: ...


@overload
def measure(
    name: str | None = None,
    out: str | Path | None = None,
    interval_s: float | None = None,
    readers: Sequence[str] = (),
) -> EnergyMeter: ...


def measure(
    name: Any = None, out: str | Path | None = None, interval_s: float | None = None, readers: Sequence[str] = ()
) -> Any:
    """A block to measure: `with measure() as measured:`, `@measure` or `@measure("name")`.

    With `out` the samples and energy.json of each block are kept in a new folder of that name, -2, -3 and so on after
    it; by the first process of each node. Nothing that goes wrong in measuring reaches the block.
    """
    if callable(name):
        return EnergyMeter(None, None, None, ())(name)
    return EnergyMeter(name, None if out is None else Path(out), interval_s, readers)


class EnergyMeter:
    """A context manager that may be entered again and again, and a decorator."""

    def __init__(self, name: str | None, out: Path | None, interval_s: float | None, readers: Sequence[str]) -> None:
        if interval_s is not None and not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S:
            raise RequestError(
                f"interval_s={interval_s} is not possible: it is from {LEAST_INTERVAL_S} to {MOST_INTERVAL_S:.0f} s"
            )
        self._name, self._out, self._interval_s = name, out, interval_s
        self._readers = parse_readers(",".join(readers))
        self._entered: list[BlockEnergy] = []

    def __call__(self, function: Function) -> Function:
        """The function, each call of which is measured; `function.measured` is that of the last call that ended."""
        name = self._name or function.__qualname__
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"{name} does not run when it is called: write `with measure():` inside it")

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            block = EnergyMeter(name, self._out, self._interval_s, self._readers)  # its own, for threads and recursion
            measured = block.__enter__()
            try:
                return function(*arguments, **options)
            finally:
                block.__exit__(None, None, None)
                call.measured = measured  # type: ignore[attr-defined]

        call.measured = None  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    def __enter__(self) -> BlockEnergy:
        measured = BlockEnergy(self._name, datetime.now(UTC).isoformat(timespec="milliseconds"))
        try:
            measured.joined = OPEN.enter(self._interval_s, self._readers)
        except NotShared as no:
            measured.why_not = str(no)
        except Exception as error:  # measuring must not cost the script
            measured.why_not = f"{type(error).__name__}: {error}"
        self._entered.append(measured)
        measured.start_s = time.monotonic()
        return measured

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        measured = self._entered.pop()
        measured.end_s = time.monotonic()
        OPEN.leave(measured, self._out)

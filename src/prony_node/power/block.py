"""The energy of a block of someone's own script, with the figures of `prony power`, under torchrun too.

    from prony_node.power import measure

    with measure("training") as measured:
        train()
    print(measured.energy_j, measured.table())

or `@measure("training")` before a function, whose last figures are then `function.measured`. The figures are those of
this node: of every device that this process may use, whoever used it. All processes of a job share one sampler.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from prony_node.contract.errors import RequestError
from prony_node.power.measured import Measured
from prony_node.power.open_blocks import OPEN
from prony_node.power.options import LONGEST_S, SHORTEST_S, parse_readers
from prony_node.power.shared import NotShared

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def measure(name: Function) -> Function: ...


@overload
def measure(
    name: str | None = None,
    out: str | Path | None = None,
    interval_s: float | None = None,
    readers: Sequence[str] = (),
) -> Block: ...


def measure(
    name: Any = None, out: str | Path | None = None, interval_s: float | None = None, readers: Sequence[str] = ()
) -> Any:
    """A block to measure: `with measure() as measured:`, `@measure` or `@measure("name")`.

    With `out` the samples and energy.json of each block are kept in a new folder of that name, -2, -3 and so on after
    it; by the first process of each node. Nothing that goes wrong in measuring reaches the block.
    """
    if callable(name):
        return Block(None, None, None, ())(name)
    return Block(name, None if out is None else Path(out), interval_s, readers)


class Block:
    """A context manager that may be entered again and again, and a decorator."""

    def __init__(self, name: str | None, out: Path | None, interval_s: float | None, readers: Sequence[str]) -> None:
        if interval_s is not None and not SHORTEST_S <= interval_s <= LONGEST_S:
            raise RequestError(f"interval_s={interval_s} is not possible: it is from {SHORTEST_S} to {LONGEST_S:.0f} s")
        self._name, self._out, self._interval_s = name, out, interval_s
        self._readers = parse_readers(",".join(readers))
        self._entered: list[Measured] = []

    def __call__(self, function: Function) -> Function:
        """The function, each call of which is measured; `function.measured` is that of the last call that ended."""
        name = self._name or function.__qualname__
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(f"{name} does not run when it is called: write `with measure():` inside it")

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            block = Block(name, self._out, self._interval_s, self._readers)  # its own, for threads and recursion
            measured = block.__enter__()
            try:
                return function(*arguments, **options)
            finally:
                block.__exit__(None, None, None)
                call.measured = measured  # type: ignore[attr-defined]

        call.measured = None  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    def __enter__(self) -> Measured:
        measured = Measured(self._name, datetime.now(UTC).isoformat(timespec="milliseconds"))
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

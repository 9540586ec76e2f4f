"""Sleeping until something happens: a child ends, a person interrupts, or the time is over.

The supervisor measures nothing, but it lives on the machine that is measured: it must not spin.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType, TracebackType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NEAR_END = signal.SIGUSR2  # from the script of a job whose time limit is near


class Wake:
    """Signals as bytes in a pipe, so that one select() waits for all of them."""

    def __init__(self) -> None:
        self.interrupted_by: signal.Signals | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def __enter__(self) -> Wake:
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*INTERRUPTS, NEAR_END):
            signal.signal(number, self._on_interrupt)
        signal.signal(signal.SIGCHLD, _on_child)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> None:
        """Return after that time, or at once when a signal arrives."""
        select.select([self._read], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted_by is None:
            self.interrupted_by = signal.Signals(number)


def _on_child(number: int, frame: FrameType | None) -> None:
    """Nothing to do but wake up."""

"""A question of the controller, answered in a child: it ends with the controller, and whatever it started with it.

Answering may import a user's model file, which may do anything: start processes, leave their group, never return.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from prony_node.supervise.parent import adopt_orphans, controller_is_gone, end_adopted, end_with_parent
from prony_node.supervise.wake import Wake

LOOK_EVERY_S = 0.5  # whether the controller is there, where the kernel does not tell


def answer_on_lifeline(answer: Callable[[], int]) -> int:
    """The exit code of `answer`, which prints; 130 when it was ended before. No process is left behind."""
    end_with_parent(signal.SIGTERM)
    adopt_orphans()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _answer(answer, keeper)
    code = None
    with Wake() as wake:
        while code is None and wake.interrupted_by is None and not controller_is_gone():
            ended, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            if code is None:
                wake.wait(LOOK_EVERY_S)
        end_adopted()
    return 130 if code is None else 1 if code < 0 else code


def _answer(answer: Callable[[], int], keeper: int) -> None:
    """In the child. Standard output is for the answer alone: nothing that is started from here can write to it."""
    end_with_parent(signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    os.environ.pop("PRONY_CONTROLLER_PID", None)  # what is started from here has another parent
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    code = 1
    try:
        code = answer()
        sys.stdout.flush()
    except BaseException:  # SystemExit of a model file too
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)  # threads and children that somebody left are not waited for

"""The real rank, of a process that has imported torch already: for tests of what a rank does, not of how it starts.

A rank imports torch and its compiler for four seconds before it does anything. `serve` imports them once; each rank of
a test is then a fork of that process. PRONY_RANK_MODULE=forked_rank makes the supervisor start this module instead of
the rank: it has no torch, hands its arguments, environment and open files over, and ends as the fork ends. If it is
killed, so is the fork. The ranks of a group are children of torch's launcher, which looks for them: they start anew.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path

from prony_node.backends.torch.out_of_memory import avoid_reservations
from prony_node.run.processes import adopt_orphans, end_with_parent

SOCKET = "PRONY_FORKED_RANK"
PRELOADED = ("torchvision", "torch._dynamo", "prony_node.run.run", "prony_node.run.rank")
STREAMS = (1, 2)
LOOK_EVERY_S = 0.02


def main(argv: list[str]) -> int:
    """Ask for the rank and wait for its end; the exit code."""
    if "LOCAL_RANK" in os.environ:
        from prony_node.run import rank

        return rank.main(argv)
    asked = {"argv": argv, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    asked["memory"] = resource.getrlimit(resource.RLIMIT_AS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.environ[SOCKET])
        socket.send_fds(server, [json.dumps(asked).encode()], STREAMS)
        answer = server.recv(100)
    status = int(answer) if answer else -signal.SIGKILL
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


def serve(path: str) -> None:
    """Fork a rank for each that asks, until nobody has this process's stdin open any more."""
    avoid_reservations()  # as a rank under a cap of memory does before it imports torch
    for name in PRELOADED:
        importlib.import_module(name)
    adopt_orphans()  # to see the end of what a rank leaves behind
    ranks: dict[int, socket.socket] = {}  # by process: who waits for its end
    ended: dict[int, int] = {}  # how a process ended
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(16)
        print("ready", flush=True)
        while True:
            clients = list(ranks.values())
            ready = select.select([0, listener, *clients], [], [], LOOK_EVERY_S if ranks else None)[0]
            if 0 in ready:
                break
            if listener in ready:
                pid, client = begin(listener, [*clients, listener])
                ranks[pid] = client
            for pid in [pid for pid, client in ranks.items() if client in ready]:  # whoever asked was killed
                kill(pid)
            reap(ended)
            for pid in [pid for pid in ranks if pid in ended and not is_left(pid)]:
                with ranks.pop(pid) as client, contextlib.suppress(OSError):
                    client.send(str(os.waitstatus_to_exitcode(ended[pid])).encode())
    for pid in ranks:
        kill(pid)


def begin(listener: socket.socket, ours: list[socket.socket]) -> tuple[int, socket.socket]:
    """A rank and who asked for it."""
    client, _ = listener.accept()
    text, streams, _, _ = socket.recv_fds(client, 1_000_000, len(STREAMS))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for one in (*ours, client):
                one.close()
            code = run(json.loads(text), streams)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    for number in streams:
        os.close(number)
    return pid, client


def run(asked: dict[str, object], streams: list[int]) -> int:
    """Become the rank that was asked for."""
    end_with_parent(signal.SIGKILL)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in zip((0, *STREAMS), (nothing, *streams), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    os.chdir(str(asked["folder"]))
    resource.setrlimit(resource.RLIMIT_AS, asked["memory"])  # type: ignore[arg-type]
    from prony_node.run import rank

    return rank.main(asked["argv"])  # type: ignore[arg-type]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # it has not made its group yet
        os.kill(pid, signal.SIGKILL)


def reap(ended: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]


def is_left(group: int) -> bool:
    """Whether a process of this group is there still: what a rank leaves behind would keep its run from ending."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        code = main(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

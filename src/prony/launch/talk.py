"""A node process that tells what it does while it does it, in lines of JSON, and ends when we do."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from prony.launch.node import local_environment, node_python
from prony_node.contract.errors import RequestError

LEAVE_S = 10.0  # for which a node that is to end is waited for before it is killed


@dataclass
class NodeTalk:
    """Both ends of the talk with a node process."""

    process: subprocess.Popen[str]
    said: IO[str]
    heard: IO[str]
    complaints: IO[str]  # its stderr

    def lines(self) -> Iterator[tuple[str, Any]]:
        """What it tells, as it tells it: a word and its content."""
        for text in self.said:
            try:
                ((what, content),) = json.loads(text).items()
            except (ValueError, AttributeError, RecursionError):  # a library's own words
                continue
            yield what, content

    def agree(self) -> None:
        """Let it do what it said it would."""
        with suppress(BrokenPipeError):  # it is gone, and its lines have ended
            self.heard.write("go\n")
            self.heard.flush()

    def last_words(self) -> str:
        """The end of its stderr, for a node that ended without an answer."""
        self.complaints.seek(0)
        lines = self.complaints.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.heard.close()
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()


@contextmanager
def talk(*words: str) -> Iterator[NodeTalk]:
    """`python -m prony_node WORDS`. Its input is a lifeline: it ends when that does, whatever becomes of us."""
    argv = [node_python(), "-m", "prony_node", *words]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        try:
            process = subprocess.Popen(
                argv,
                env=local_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C at the terminal reaches us alone
            )
        except OSError as error:
            raise RequestError(f"the node program cannot be started: {argv[0]}: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        node = NodeTalk(process, process.stdout, process.stdin, complaints)
        try:
            yield node
        finally:
            node.end()

"""kmock, an API server of Kubernetes in this process, behind the official client: on loopback, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kmock


class Mock:
    """`server` takes reactions as kmock's documentation says and keeps no objects; `asked` are the requests so far."""

    def __init__(self) -> None:
        self.server: Any = None
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    @property
    def asked(self) -> list[str]:
        return [f"{request.method.value} {request.url.path}" for request in self.server]

    async def _serve(self) -> None:
        async with kmock.KubernetesScaffold() as server, kmock.Server(server):
            self.server, self.url = server, str(server.url).rstrip("/")
            self._ready.set()
            await self._end.wait()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)


@contextmanager
def mock_server() -> Iterator[Mock]:
    mock = Mock()
    mock.start()
    try:
        yield mock
    finally:
        mock.stop()

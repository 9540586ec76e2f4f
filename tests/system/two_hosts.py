"""Two hosts on this machine, for tests of runs over several nodes: network namespaces with a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

Hosts = dict[int, tuple[str, str]]  # by node: the name of the namespace, and its address


@contextmanager
def connected() -> Iterator[Hosts]:
    """Skipped where they are not permitted."""
    hosts = {node: (f"prony{os.getpid()}n{node}", f"10.213.77.{node + 1}") for node in (0, 1)}
    if shutil.which("ip") is None:
        pytest.skip("the command ip, which makes network namespaces, is not here")
    try:
        for space, _ in hosts.values():
            done = subprocess.run(["ip", "netns", "add", space], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"network namespaces are not permitted here: {done.stderr.strip()}")
        cable = f"ip link add cable netns {hosts[0][0]} type veth peer cable netns {hosts[1][0]}"
        subprocess.run(cable.split(), check=True)
        for space, address in hosts.values():
            for words in (f"addr add {address}/24 dev cable", "link set lo up", "link set cable up"):
                subprocess.run(["ip", "-n", space, *words.split()], check=True)
        yield hosts
    finally:
        for space, _ in hosts.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True)

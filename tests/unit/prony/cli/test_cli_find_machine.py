"""Defaults that depend on the device must be those of the machine that will run the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prony.engine import possible as module
from prony.engine.possible import find_machine
from prony.engine.progress import silent
from prony.sites.site import Partition
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine


def answer(monkeypatch: pytest.MonkeyPatch, **said: Any) -> None:
    monkeypatch.setattr(module, "ask_node", lambda *_, **__: said)


def test_this_machine_is_asked_for_kind_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer(monkeypatch, kind="cuda", devices=["a", "b"], memory_gib=[16.0, 24.0])
    assert find_machine("auto", silent) == Machine("cuda", 16.0)
    assert find_machine("cuda:1", silent) == Machine("cuda", 24.0)
    assert find_machine("cuda:7", silent) == Machine("cuda")
    assert find_machine("xpu", silent) == Machine("xpu")
    answer(monkeypatch, kind="mps", devices=["mps"], memory_gib=[None])
    assert find_machine("auto", silent) == Machine("mps")


def test_without_torch_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer(monkeypatch, kind=None, devices=[], reason="torch cannot be imported: no")
    assert find_machine("cpu", silent) == Machine("cpu"), "nobody need be asked"
    with pytest.raises(RequestError, match="torch cannot be imported: no; PRONY_PYTHON names"):
        find_machine("auto", silent)


@pytest.mark.parametrize(
    ("partition", "kind"),
    [
        (Partition("a", accelerators=4), "cuda"),
        (Partition("a", accelerators=4, vendor="amd"), "cuda"),
        (Partition("a", accelerators=4, vendor="intel"), "xpu"),
        (Partition("a", accelerators=0), "cpu"),
    ],
)
def test_a_partition_tells_the_kind(partition: Partition, kind: str, tmp_path: Path) -> None:
    assert find_machine("auto", silent, partition) == Machine(kind)
    assert find_machine("cpu", silent, partition) == Machine("cpu")

"""A rank stays on the cores that were named; cores that are not ours are refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prony_node.contract import RequestError
from prony_node.parallel.place import allowed_cores, bind, wanted_cores


@pytest.mark.parametrize(
    ("text", "allowed", "cores"),
    [("2", [0, 1, 2, 3], [0, 1]), ("2", [4, 6, 8], [4, 6]), ("1", [7], [7]), ("0-1", [0, 1, 2], [0, 1]),
     ("0-2,5", [0, 1, 2, 3, 4, 5], [0, 1, 2, 5]), ("5,0-2,1", [0, 1, 2, 5], [0, 1, 2, 5]), ("3-3", [1, 3], [3]),
     ("25%", [0, 1, 2, 3, 6, 7, 8, 9], [0, 1]), ("100%", [4, 6, 8], [4, 6, 8]), ("25%", [3, 5], [3])],
)  # fmt: skip
def test_a_number_is_how_many_a_share_of_how_many_and_a_list_is_which(
    text: str, allowed: list[int], cores: list[int]
) -> None:
    assert wanted_cores(text, allowed) == cores


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("0", "cores=0: this machine lets us use 3 cores"), ("4", "lets us use 3 cores"),
     ("0-3", r"core 3 is not among the allowed \[0, 1, 2\]"), ("9,1", "core 9 is not among"),
     ("0%", "a share is 1% to 100%"), ("101%", "a share is 1% to 100%"),
     ("2-1", "2-1 runs backwards; write 1-2"), ("1,2-0", "2-0 runs backwards; write 0-2")],
)  # fmt: skip
def test_cores_that_are_not_ours_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        wanted_cores(text, [0, 1, 2])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to cores")
def test_a_bound_process_and_its_children_stay_on_their_cores() -> None:
    code = (
        "import os, subprocess, sys\n"
        "from prony_node.parallel.place import allowed_cores, bind\n"
        "one = allowed_cores()[-1:]\n"
        "assert bind(one)\n"
        "assert allowed_cores() == one\n"
        "seen = subprocess.check_output([sys.executable, '-c', 'import os; print(sorted(os.sched_getaffinity(0)))'])\n"
        "assert seen.decode().strip() == str(one)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)


def test_a_system_that_cannot_bind_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert allowed_cores() == [0, 1, 2]
    assert bind([0]) is False

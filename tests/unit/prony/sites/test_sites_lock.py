"""The lock on a device: held by one, freed by death, and says who holds it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prony.sites.locks import devices_of, hold_devices
from prony_node.contract import RequestError
from prony_node.contract.trial import Trial

ROOT = Path(__file__).parents[4]
HOLD = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from prony.sites.locks import hold_devices
with hold_devices({"cpu"}, "a sweep of theirs", Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder: Path, *names: str) -> None:
    with hold_devices(set(names) if names else None, "mine", folder):
        pass


def test_a_second_holder_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLD, str(ROOT / "src"), str(tmp_path)]
    other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for names in (("cpu",), ("cpu", "device-1"), ()):
            with pytest.raises(RequestError, match=rf"process {other.pid} \(a sweep of theirs\).*--share"):
                hold(tmp_path, *names)
        hold(tmp_path, "device-0")  # another device
        other.send_signal(signal.SIGKILL)
    finally:
        other.kill()
        other.communicate()
    hold(tmp_path, "cpu")
    hold(tmp_path)


def test_the_whole_machine_keeps_single_devices_away(tmp_path: Path) -> None:
    with (
        hold_devices(None, "all of it", tmp_path),
        pytest.raises(RequestError, match=r"device-3 is in use by .*all of it"),
    ):
        hold(tmp_path, "device-3")
    with (
        hold_devices({"device-3"}, "one", tmp_path),
        pytest.raises(RequestError, match="this machine's devices are in use"),
    ):
        hold(tmp_path)


def test_which_devices_trials_take() -> None:
    cpu, auto, second = (Trial("gpt-tiny", {"device": name}) for name in ("cpu", "auto", "cuda:1"))
    several = Trial("gpt-tiny", {"device": "cuda:1", "devices": 2})
    assert devices_of([cpu], {}) == {"cpu"}
    assert devices_of([cpu, second], {}) == {"cpu", "device-1"}
    assert devices_of([auto], {}) is None
    assert devices_of([Trial("gpt-tiny")], {}) is None
    assert devices_of([several], {}) is None
    assert devices_of([auto], {"CUDA_VISIBLE_DEVICES": "2,5"}) == {"device-2", "device-5"}
    assert devices_of([second], {"CUDA_VISIBLE_DEVICES": "2,5"}) == {"device-5"}
    assert devices_of([auto], {"CUDA_VISIBLE_DEVICES": "GPU-1234"}) is None

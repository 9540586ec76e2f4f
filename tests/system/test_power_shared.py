"""`measure` in a script under torchrun, and `prony power --watch`, for real."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from power_place import Place, wait_for


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


TRAINING = """
import os, sys, time
from prony_node.power import measure
def say(line):  # in one piece: with PYTHONUNBUFFERED print writes word by word, and the words of two ranks mix
    os.write(1, f"{line}\\n".encode())
with measure("training") as measured:
    time.sleep(5.0)
    say(f"folder {measured.joined.folder}")
assert "torch" not in sys.modules
node = measured.node
say(f"energy {node.energy_j} {node.uncertainty_j} {node.seconds} {measured.seconds}")
"""


def test_ranks_of_torchrun_share_one_sampler(place: Place) -> None:
    pytest.importorskip("torch")
    (place.here / "training.py").write_text(TRAINING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "training.py"]
    done = place.run(torchrun, text=True)
    assert done.returncode == 0, done.stderr
    folders = {line for line in done.stdout.splitlines() if line.startswith("folder ")}
    energies = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("energy ")]
    assert len(folders) == 1
    assert len(energies) == 2
    for energy_j, uncertainty_j, covered_s, block_s in (map(float, words) for words in energies):
        # A shared machine may hold up a rank or the sampler: then the block is longer, or less of it is covered.
        assert 2.0 <= covered_s <= block_s
        assert abs(energy_j - 200.0 * covered_s) <= max(1.5 * uncertainty_j, 0.06 * energy_j)
    assert wait_for(lambda: not place.samplers())
    assert wait_for(lambda: not list(place.tmp.glob("prony-power-*/*-*")))


def test_watch_shows_lines_until_interrupted(place: Place) -> None:
    with place.start("--watch") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert b"Made GPU GPU-5f1c0a3e    200.0 W" in line
    assert process.returncode == 0
    place.without_sensor()
    done = place.power("--watch")
    assert done.returncode == 1
    assert b"no power sensor answers here" in done.stderr

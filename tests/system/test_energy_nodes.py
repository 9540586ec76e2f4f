"""The energy of a run on two hosts whose clocks are hours apart, for real; their power is a synthesised recording."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from two_hosts import Hosts, connected

from prony_node.contract import Plan, Stop, Trial, files, read_record
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor
from prony_node.run.verify import verify_folder

ROOT = Path(__file__).parents[2]
POWERS_W = (50.0, 80.0)
APART_S = 7200
FIGURES = ("energy", "energy_per_sample", "samples_per_wh", "power", "node_energy")
# A host of its own: name, boot and clock; the program to start follows.
ALONE = ["unshare", "--uts", "--mount", "--time", "--monotonic", str(APART_S), "--fork", "--kill-child", "sh", "-c"]
BECOME = 'hostname "$0" && mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"'

pytestmark = pytest.mark.slow


def make_recording(folder: Path, power_w: float) -> Path:
    """A package by a counter and by a power sensor, read every 50 ms for a minute; both hosts call it the same."""
    folder.mkdir()
    counter = Sensor("made.energy package-0", "made", "counter", "package", "package-0", "Made CPU", period_s=0.1)
    power = Sensor("made.power package-0", "made", "instantaneous", "package", "package-0", "Made CPU", period_s=0.05)
    writer = Writer(folder, [counter, power], {"busy_at_start": {"package-0": ""}})
    for number in range(1200):
        at_s = 0.05 * number
        writer.add(counter, [Reading(at_s, at_s + 1e-4, 0.1 * power_w * (number // 2))])
        writer.add(power, [Reading(at_s, at_s + 1e-4, power_w)])
    writer.close()
    return folder


class Place:
    """Two hosts with a package each, one of 50 W and one of 80 W; the second has a clock of its own."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.folder, self.hosts = folder, hosts
        self.recordings = [make_recording(folder / f"power{node}", power_w) for node, power_w in enumerate(POWERS_W)]
        self.boot = folder / "boot_id"
        self.boot.write_text("00000000-0000-4000-8000-00000000000b\n")

    def run(self, name: str, other: str = "", **settings: Any) -> dict[str, Any]:
        """The record; the second host writes into the folder `other`, where one is given."""
        small = {"device": "cpu", "batch_size": 1, "sequence": 16, "nodes": 2, "cores": "1", **settings}
        plan = Plan("r", Trial("gpt-tiny", small), stop=Stop(tolerance=0.5, min_time_s=8.0, max_time_s=10.0))
        asked = self.folder / f"{name}.json"
        asked.write_text(json.dumps(plan.to_json()))
        (self.folder / other).mkdir(exist_ok=True)
        nodes = [self.start(node, asked, self.folder / (other if node else "") / name) for node in self.hosts]
        said = [process.communicate(timeout=240)[1] for process in nodes]
        assert [process.returncode for process in nodes] == [0, 0], said
        record = read_record(self.folder / name)
        assert record is not None
        return record

    def start(self, node: int, plan: Path, out: Path) -> subprocess.Popen[str]:
        space, address = self.hosts[node]
        alone = [*ALONE, BECOME, "other", str(self.boot)] if node else []
        argv = ["ip", "netns", "exec", space, *alone, sys.executable, "-m", "prony_node", str(plan), str(out)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
        own = {
            "PRONY_RENDEZVOUS": f"{self.hosts[0][1]}:29578", "PRONY_NODE_RANK": str(node), "PRONY_ADDRESS": address,
            "GLOO_SOCKET_IFNAME": "cable", "PRONY_POWER_REPLAY": str(self.recordings[node]),
            "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        return subprocess.Popen(argv, env={**kept, **own}, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "hostname other"], capture_output=True).returncode:
        pytest.skip("namespaces with a name and a clock of their own are not permitted here")
    with connected() as hosts:
        yield Place(tmp_path_factory.mktemp("nodes"), hosts)


def holds(metric: dict[str, Any], power_w: float) -> bool:
    """The replay moves with the machine's clock, but a machine that is held up is read late: the interval says so."""
    slack_w = 0.02 * power_w
    return bool(metric["low"] - slack_w <= power_w <= metric["high"] + slack_w)


def test_the_energy_of_two_hosts_is_the_sum_of_both(place: Place) -> None:
    record = place.run("whole")
    found = verify_folder(place.folder / "whole")
    assert (found.outcome, found.problems) == ("verified", ())
    assert set(FIGURES) <= set(found.recomputed)
    metrics, energy = record["metrics"], record["energy"]
    for name in FIGURES:
        assert metrics[name]["low"] < metrics[name]["value"] < metrics[name]["high"], metrics[name]
    assert holds(metrics["power"], sum(POWERS_W))
    first, second = energy["parts"]
    assert (first["node"], second["node"], second["host"]) == (0, 1, "other")
    assert second["window_s"][0] - first["window_s"][0] == pytest.approx(APART_S, abs=5.0), "each by its own clock"
    assert metrics["energy"]["value"] == pytest.approx(first["energy_j"] + second["energy_j"])
    shares = [node["share"] for node in energy["nodes"]]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[1] / shares[0] == pytest.approx(POWERS_W[1] / POWERS_W[0], rel=0.15)
    assert metrics["samples_per_wh"]["value"] * metrics["energy_per_sample"]["value"] == pytest.approx(3600.0)
    rate = metrics["power"]["value"] / metrics["energy_per_sample"]["value"]  # tokens a second of both, by energy
    assert rate == pytest.approx(metrics["throughput"]["value"], rel=0.25)
    there = {path.name for path in (place.folder / "whole.node1").iterdir()}
    assert there >= {files.POWER, files.POWER_SAMPLES, files.NODE}


def test_copies_on_two_hosts_are_taken_in_their_common_window(place: Place) -> None:
    record = place.run("copies", mode="infer")
    assert record["parallel"]["form"] == "independent"
    first, second = record["energy"]["parts"]
    for part in (first, second):
        assert part["window_s"][1] - part["window_s"][0] <= record["parallel"]["window_s"] + 0.01
    assert second["window_s"][0] - first["window_s"][0] == pytest.approx(APART_S, abs=5.0)
    assert holds(record["metrics"]["power"], sum(POWERS_W))
    rate = record["metrics"]["power"]["value"] / record["metrics"]["energy_per_sample"]["value"]
    assert rate == pytest.approx(record["metrics"]["throughput"]["value"], rel=0.25)


def test_a_host_whose_folder_cannot_be_seen_leaves_no_sum(place: Place) -> None:
    record = place.run("half", other="elsewhere")
    assert (place.folder / "elsewhere" / "half.node1" / files.POWER).exists()
    for name in FIGURES:
        reason = "node 1 (other): its folder half.node1 cannot be seen from the first node"
        assert record["metrics"][name] == {"value": None, "reason": reason}
    assert record["energy"]["nodes"][0]["energy_j"] > 0
    assert (record["status"], record["energy"]["node"]["energy_j"]) == ("ok", None)

"""The reader of Slurm's energy accounting against a scontrol that writes what Slurm's source prints.

If these fail, a job is given the energy of its neighbours on the node, or joules that are minutes old are called now.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fake_machine import put_program

from prony_node.power.readers import slurm
from prony_node.power.readers.slurm import (
    check_alone,
    open_reader,
    parse_config,
    parse_node_json,
    parse_node_text,
    value_of,
)
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable

CONFIG = """Configuration data as of 2024-02-15T08:36:01
AcctGatherEnergyType    = acct_gather_energy/ipmi
AcctGatherNodeFreq      = 30 sec
AuthType                = auth/munge
"""
JOB = "JobId=77 JobName=train UserId=u(1) NumNodes=1 NumCPUs=64 NumTasks=1 OverSubscribe=NO Contiguous=0\n"
NODE = "NodeName=n1 CPUAlloc=64 CPUEfctv=64 CPUTot=64 State=ALLOCATED CurrentWatts=420 AveWatts=300 ExtSensorsWatts=0\n"
OLD_NODE = "NodeName=n1 CPUAlloc=64 CPUTot=64 CurrentWatts=4208 LowestJoules=4522674 ConsumedJoules=7611934651\n"


def node_json(watts: Any = 420, joules: Any = 5_000_000, collected: Any = 0) -> str:
    energy = {"average_watts": 300, "current_watts": watts, "consumed_energy": joules, "last_collected": collected}
    return json.dumps({"nodes": [{"name": "n1", "energy": energy}], "errors": []})


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of what scontrol answers; without node.json it knows no --json."""
    folder = tmp_path / "answers"
    folder.mkdir()
    (folder / "config").write_text(CONFIG)
    (folder / "job").write_text(JOB)
    (folder / "node").write_text(NODE)
    body = f"""
words = [word for word in sys.argv[1:] if word != "--oneliner"]
name = words[1] + (".json" if "--json" in words else "")
assert words[0] == "show" and words[2:3] in (["77"], ["n1"], [])
path = os.path.join({str(folder)!r}, name)
sys.exit("scontrol: unrecognized option") if not os.path.exists(path) else sys.stdout.write(open(path).read())
"""
    put_program(monkeypatch, tmp_path / "bin", "scontrol", body)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    return folder


def test_text_tells_the_power_now_and_not_the_mean_since_the_daemon_started(cluster: Path, tmp_path: Path) -> None:
    reader: PowerReader = open_reader(tmp_path)
    (sensor,) = reader.sensors
    assert reader.read(sensor) == 420.0
    assert (sensor.kind, sensor.scope, sensor.part, sensor.period_s) == ("instantaneous", "node", "node", 30.0)
    assert (sensor.resolution, sensor.uncertainty, sensor.privileged) == (1.0, None, False)
    assert reader.busy("node") is None
    reader.close()


def test_older_text_also_counts_joules(cluster: Path, tmp_path: Path) -> None:
    (cluster / "node").write_text(OLD_NODE)
    reader = open_reader(tmp_path)
    assert [(sensor.id, reader.read(sensor)) for sensor in reader.sensors] == [
        ("slurm.power node", 4208.0),
        ("slurm.energy node", 7611934651.0),
    ]


def test_json_is_stamped_with_when_it_was_collected_and_told_once(cluster: Path, tmp_path: Path) -> None:
    collected_unix_s = int(time.time()) - 20
    (cluster / "node.json").write_text(node_json(collected=collected_unix_s))
    reader = open_reader(tmp_path)
    power, energy = reader.sensors
    first = reader.read(energy)
    assert isinstance(first, list)
    assert [reading.value for reading in first] == [5_000_000.0]
    assert first[0].after_s - first[0].before_s == 1.0
    assert first[0].before_s == pytest.approx(collected_unix_s - time.time() + time.monotonic(), abs=0.5)
    assert reader.read(energy) == []
    (cluster / "node.json").write_text(
        node_json({"set": True, "infinite": False, "number": 430}, 5_012_600, time.time())
    )
    later = reader.read(energy)
    assert isinstance(later, list)
    assert [reading.value for reading in later] == [5_000_000.0, 5_012_600.0], "it stood until it moved on"
    assert later[0].after_s == later[1].before_s
    told = reader.read(power)
    assert isinstance(told, list)
    assert [reading.value for reading in told] == [430.0]


def test_a_stamp_from_the_future_is_not_believed(cluster: Path, tmp_path: Path) -> None:
    (cluster / "node.json").write_text(node_json(collected=int(time.time()) + 600))
    reader = open_reader(tmp_path)
    with pytest.raises(SensorLost, match="future"):
        reader.read(reader.sensors[0])


def test_json_without_a_stamp_is_timed_by_when_it_was_asked_for(cluster: Path, tmp_path: Path) -> None:
    (cluster / "node.json").write_text(node_json())
    reader = open_reader(tmp_path)
    assert reader.read(reader.sensors[1]) == 5_000_000.0


@pytest.mark.parametrize(
    ("job", "node", "says"),
    [
        (JOB.replace("=NO ", "=OK "), NODE, "not shown to have the node alone"),
        (JOB.replace("=NO ", "=YES "), NODE, "not shown to have the node alone"),
        (JOB.replace("=NO ", "=USER "), NODE, "--exclusive"),
        ("", NODE, "not shown"),
        (JOB.replace("JobName=train", "JobName=my OverSubscribe=YES job"), NODE, "not shown"),
        (JOB.replace("NumCPUs=64", "NumCPUs=16"), NODE, "not alone there"),
        (JOB, NODE.replace("CPUAlloc=64", "CPUAlloc=?"), "may be shared"),
    ],
)
def test_a_job_that_may_share_its_node_gets_no_energy(job: str, node: str, says: str) -> None:
    with pytest.raises(Unavailable, match=says):
        check_alone(job, node)


def test_a_job_on_several_whole_nodes_is_alone_on_each() -> None:
    check_alone(JOB.replace("NumNodes=1", "NumNodes=4").replace("NumCPUs=64", "NumCPUs=256"), NODE)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("", "collects no energy"),
        (CONFIG.replace("acct_gather_energy/ipmi", "(null)"), "collects no energy"),
        (CONFIG.replace("/ipmi", "/none"), "collects no energy"),
        (CONFIG.replace("/ipmi", "/rapl"), "a part of the node"),
        (CONFIG.replace("/ipmi", "/gpu"), "a part of the node"),
        (CONFIG.replace("30 sec", "0 sec"), "AcctGatherNodeFreq is 0"),
    ],
)
def test_a_slurm_that_does_not_collect_the_nodes_energy_says_so(config: str, says: str) -> None:
    with pytest.raises(Unavailable, match=says):
        parse_config(config)


def test_what_is_not_supported_is_none_and_never_zero() -> None:
    text = "CurrentWatts=n/s LowestJoules=n/s ConsumedJoules=n/s"
    assert parse_node_text(text) == slurm.SlurmEnergy()
    assert parse_node_text("CurrentWatts=0 AveWatts=0") == slurm.SlurmEnergy()
    assert parse_node_text("CurrentWatts=4294967294") == slurm.SlurmEnergy()
    assert parse_node_json(node_json(4294967294, 18446744073709551614)) == slurm.SlurmEnergy()
    assert parse_node_json(node_json({"set": False, "infinite": False, "number": 0}, 0)) == slurm.SlurmEnergy()


def test_a_node_without_figures_is_unavailable(cluster: Path, tmp_path: Path) -> None:
    (cluster / "node").write_text(NODE.replace("=420", "=n/s"))
    with pytest.raises(Unavailable, match="n/s"):
        open_reader(tmp_path)


def test_outside_of_a_job_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(Unavailable, match="not inside a Slurm job"):
        open_reader(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for name in ("SLURMD_NODENAME", "SLURM_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unavailable, match="which node"):
        open_reader(tmp_path)
    monkeypatch.setenv("SLURM_NODENAME", "--help")
    with pytest.raises(Unavailable, match="which node"):
        open_reader(tmp_path)


def test_a_container_without_scontrol_says_so(cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cluster))
    with pytest.raises(Unavailable, match="scontrol is not on the PATH"):
        open_reader(tmp_path)


def test_a_controller_that_stops_answering_or_stating_is_lost(cluster: Path, tmp_path: Path) -> None:
    reader = open_reader(tmp_path)
    (cluster / "node").write_text(NODE.replace("=420", "=n/s"))
    with pytest.raises(SensorLost, match="n/s"):
        reader.read(reader.sensors[0])
    (cluster / "node").unlink()
    with pytest.raises(SensorLost, match="unrecognized"):
        reader.read(reader.sensors[0])


def test_a_key_inside_another_is_not_taken_for_it() -> None:
    assert value_of("MaxCurrentWatts=5 CurrentWatts=7", "CurrentWatts") == "7"

"""Several ranks for real, with gloo on this machine's CPU: one record, whatever becomes of one, and no process left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from two_hosts import Hosts, connected

from processes import processes_of
from prony_node.contract import Plan, Stop, Trial, files, read_record
from prony_node.run.verify import verify_folder
from prony_node.run.watchdog import last_progress

ROOT = Path(__file__).parents[2]
SETTINGS = {"device": "cpu", "size": "tiny", "devices": 2}

pytestmark = pytest.mark.slow


def write_plan(folder: Path, settings: dict[str, Any], **changes: Any) -> Path:
    stop = Stop(tolerance=0.5, min_time_s=0.5, max_time_s=1.5)
    plan = Plan(
        run_id="r", trial=Trial("gpt-tiny", {**SETTINGS, **settings}), **{"stop": stop, "energy": False, **changes}
    )
    path = folder / "asked.json"
    path.write_text(json.dumps(plan.to_json()))
    return path


def start(
    plan: Path, out: Path, stand_in: str = "", before: tuple[str, ...] = (), **more: str
) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRONY_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "stand_in")])
    own = {"PRONY_RANK_MODULE": "stand_in_rank", "PRONY_STAND_IN": stand_in} if stand_in else {}
    argv = [*before, sys.executable, "-m", "prony_node", str(plan), str(out)]
    return subprocess.Popen(argv, env={**kept, "PYTHONPATH": path, **own, **more}, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    """The record of a run that has ended, which left no process."""
    process.communicate(timeout=180)
    assert processes_of(out) == []
    record = read_record(out)
    assert record is not None
    return record


def test_two_ranks_make_one_record(tmp_path: Path) -> None:
    out = tmp_path / "out"
    record = finished(start(write_plan(tmp_path, {"global_batch": 16, "grad_accumulation": 2}), out), out)
    assert (record["status"], record["failure"]) == ("ok", None)
    work, parallel, metrics = record["work"], record["parallel"], record["metrics"]
    assert (work["devices"], work["samples"]) == (2, work["steps"] * 16)
    assert metrics["throughput"]["value"] == pytest.approx(2 * metrics["throughput_per_device"]["value"])
    assert metrics["throughput"]["value"] == pytest.approx(16 * 32 / metrics["step_time"]["value"])
    batches = [parallel[name] for name in ("micro_batch", "grad_accumulation", "replicas", "global_batch")]
    assert batches == [4, 2, 2, 16]
    assert [rank["rank"] for rank in parallel["ranks"]] == [0, 1]
    assert len({rank["steps"] for rank in parallel["ranks"]}) == 1, "the ranks did not stop after the same step"
    assert len((out / files.STEPS).read_text().splitlines()) == len(
        (out / "rank1" / files.STEPS).read_text().splitlines()
    )
    levels = {check["name"]: check["level"] for check in record["checks"]}
    assert levels["replicas"] == levels["parameters"] == "pass"
    assert "ranks" in levels
    assert [device["rank"] for device in record["facts"]["devices"]] == [0, 1]
    assert metrics["communication_bytes"]["value"] > 0
    assert metrics["bus_bandwidth"]["value"] is None
    found = verify_folder(out)
    assert (found.outcome, found.problems) == ("verified", ())
    assert {"throughput", "throughput_per_device", "step_time"} <= set(found.recomputed)


def test_copies_are_summed_over_their_common_window(tmp_path: Path) -> None:
    out = tmp_path / "out"
    stop = Stop(tolerance=0.5, min_time_s=3.0, max_time_s=6.0)  # a copy that is held up still meets the other
    plan = write_plan(tmp_path, {"copies": 2, "devices": 1, "mode": "infer"}, stop=stop)
    record = finished(start(plan, out), out)
    assert record["status"] == "ok"
    parallel, work = record["parallel"], record["work"]
    assert (parallel["form"], work["devices"], parallel["backend"]) == ("independent", 1, None)
    begins = [rank["begin_s"] + rank["cut_s"] for rank in parallel["ranks"]]
    ends = [rank["begin_s"] + rank["seconds"] for rank in parallel["ranks"]]
    assert parallel["window_s"] == pytest.approx(min(ends) - max(begins))
    counted = sum(rank["common_steps"] for rank in parallel["ranks"])
    assert all(rank["common_steps"] <= rank["steps"] for rank in parallel["ranks"])
    units = counted * 8 * 32
    assert record["metrics"]["throughput"]["value"] == pytest.approx(units / parallel["window_s"])
    found = verify_folder(out)
    assert (found.outcome, found.problems) == ("verified", ())
    assert {"throughput", "throughput_per_device"} <= set(found.recomputed)


def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    for patience_s in (15.0, 60.0, 240.0):  # a machine that is held up for longer looks hung before it measures
        out = tmp_path / f"out-{patience_s:.0f}"
        process = start(write_plan(tmp_path, {}, stop=Stop(1e-6, 1.0, 600.0), hung_after_s=patience_s), out)
        while (last_progress(out) or {}).get("phase") != "measure" and process.poll() is None:
            time.sleep(0.05)
        if process.poll() is None:
            break
    who = files.read_json(out / "rank1" / files.RANK)
    assert who is not None
    os.kill(who["pid"], signal.SIGSTOP)
    failure = finished(process, out)["failure"]
    assert failure["kind"] == "hung"
    assert f"rank 1 of 2 ({who['host']}, cpu) gave no answer when asked where it stands" in failure["message"]


@pytest.mark.parametrize(
    ("wish", "kind", "says"),
    [
        ("1:build=out-of-memory", "out-of-memory", "the stand-in was asked for out-of-memory"),
        ("1:measure=hang", "hung", "in misbehave"),
        ("1:measure=kill", "killed", "was killed by SIGKILL in phase"),
    ],
)
def test_how_one_of_two_ranks_ends_is_how_the_run_ends(tmp_path: Path, wish: str, kind: str, says: str) -> None:
    out = tmp_path / "out"
    record = finished(start(write_plan(tmp_path, {}, hung_after_s=15.0), out, f"pace=0.1 {wish}"), out)
    assert (record["status"], record["failure"]["kind"]) == ("failed", kind)
    assert "rank 1 of 2" in record["failure"]["message"]
    assert says in record["failure"]["message"]


def test_ranks_end_with_their_supervisor(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(write_plan(tmp_path, {}), out, "pace=0.1 1:measure=deaf")
    while not (out / "rank1" / files.RANK).exists() and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    end_s = time.monotonic() + 120
    while (left := processes_of(out)) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert left == []


def test_a_rendezvous_that_never_completes_is_a_record(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{listener.getsockname()[1]}"
    plan = write_plan(tmp_path, {"nodes": 2, "devices": 2}, rendezvous_after_s=2.0)
    record = finished(start(plan, out, PRONY_RENDEZVOUS=free, PRONY_NODE_RANK="0"), out)
    assert record["failure"]["kind"] == "rendezvous"
    assert f"did not all meet at {free} within 2 s" in record["failure"]["message"]


def test_a_port_in_use_is_a_record(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        plan = write_plan(tmp_path, {"nodes": 2, "devices": 2})
        process = start(plan, out, PRONY_RENDEZVOUS=f"127.0.0.1:{port}", PRONY_NODE_RANK="0")
        record = finished(process, out)
    assert record["failure"]["kind"] == "rendezvous"
    assert f"port {port} of" in record["failure"]["message"]


def test_a_node_that_does_not_know_which_it_is_starts_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(write_plan(tmp_path, {"nodes": 2}), out)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, out.exists()) == (2, False)
    assert "PRONY_NODE_RANK" in said


@pytest.fixture
def two_hosts() -> Iterator[Hosts]:
    with connected() as hosts:
        yield hosts


def start_nodes(plan: Path, out: Path, hosts: Hosts) -> list[subprocess.Popen[str]]:
    meet = f"{hosts[0][1]}:29577"
    return [
        start(plan, out, before=("ip", "netns", "exec", space), PRONY_RENDEZVOUS=meet, PRONY_NODE_RANK=str(node),
              PRONY_ADDRESS=address, GLOO_SOCKET_IFNAME="cable")
        for node, (space, address) in hosts.items()
    ]  # fmt: skip


def test_two_hosts_meet_by_c10d(tmp_path: Path, two_hosts: Hosts) -> None:
    """The first writes the record with the step series of both; then one rank of the other is killed."""
    settings = {"nodes": 2, "devices": 2, "cores": "1"}
    plan, out = write_plan(tmp_path, {**settings, "devices": 4, "steps": 10}), tmp_path / "out"
    nodes = start_nodes(plan, out, two_hosts)
    assert nodes[1].wait(timeout=240) == 0  # in either order, and only then nothing is left
    record = finished(nodes[0], out)
    assert (record["status"], record["work"]["devices"]) == ("ok", 4)
    assert [rank["node"] for rank in record["parallel"]["ranks"]] == [0, 0, 1, 1]
    assert len((out / "rank3" / files.STEPS).read_text().splitlines()) == 11
    other = files.read_json(tmp_path / "out.node1" / files.NODE) or {}
    assert other["failure"] is None
    assert [len(device["samples"]) > 0 for device in other["watched"]["devices"].values()] == [True]
    checks = {check["name"]: check["message"] for check in record["checks"]}
    assert "could not be judged" not in checks["throttled"]
    assert checks["foreign-processes"].startswith("node ")  # the worst of the two, by name

    plan, out = write_plan(tmp_path, settings, stop=Stop(1e-6, 1.0, 600.0)), tmp_path / "again"
    nodes = start_nodes(plan, out, two_hosts)
    while (last_progress(out) or {}).get("phase") != "measure" and nodes[0].poll() is None:
        time.sleep(0.05)
    who = files.read_json(tmp_path / "again.node1" / "rank1" / files.RANK)
    assert who is not None
    os.kill(who["pid"], signal.SIGKILL)
    assert nodes[1].wait(timeout=240) == 1
    record = finished(nodes[0], out)
    assert record["failure"]["kind"] == "killed"
    assert "on node 1: rank 1 of 2" in record["failure"]["message"]

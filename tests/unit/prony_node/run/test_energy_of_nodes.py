"""If these fail, the energy of several nodes is cut by a wrong clock, counted twice, or a part of it passes for all."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prony_node.contract import files
from prony_node.contract.facts import DeviceFacts
from prony_node.contract.metrics import METRICS
from prony_node.contract.record import Learning, ParallelWork, RankWork, TargetReached, WorkDone
from prony_node.contract.run_folder import Energy, Parts, RankResult
from prony_node.contract.trial import Plan, Trial
from prony_node.contract.typed import decode, encode
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor
from prony_node.run import conditions
from prony_node.run.energy import energy_of_run
from prony_node.run.several_ranks import in_common, own_times, times_of_nodes

CLOCKS_S = (100.0, 100.0 + 7 * 3600.0)  # of two hosts, at the same instant
POWERS_W = (300.0, 500.0)  # while the steps go on; before and after, when each node is idle, a tenth
STEP_S, UNITS_A_STEP, STEPS = 0.025, 8, 480
DEVICE_UUIDS = [f"5f1c0a3e-0000-4000-8000-00000000000{node}" for node in (0, 1)]
OF_DEVICES = ("energy", "energy_per_sample", "samples_per_wh", "power")
OF_NODES = ("node_energy", "node_power")


def record_power(
    folder: Path,
    node: int,
    kind: str = "counter",
    evidence: str = "hardware",
    part: str = "",
    also: str = "",
    held_up_s: float = 16.0,
) -> None:
    """A node's sampler: idle for 3 s, busy for 12 s, idle for a second, by the node's own clock.

    The second node's may be held up from some instant on.
    """
    names = [part or f"GPU-{DEVICE_UUIDS[node]}", *([also] if also else [])]
    stated: dict[str, Any] = {"period_s": 0.1, "evidence": evidence}
    sensors = [Sensor(f"made.{kind} {name}", "made", kind, "gpu", name, "Made", **stated) for name in names]
    writer = Writer(folder, sensors, {"reasons": {"rapl": "only root"}, "busy_at_start": dict.fromkeys(names, "")})
    joules = 0.0
    for number in range(320):
        since_s = 0.05 * number
        power_w = POWERS_W[node] if 3.0 <= since_s < 15.0 else 0.1 * POWERS_W[node]
        value = joules if kind == "counter" else power_w
        for sensor in sensors if node == 0 or since_s < held_up_s else []:
            writer.add(sensor, [Reading(CLOCKS_S[node] + since_s, CLOCKS_S[node] + since_s, value)])
        joules += power_w * 0.1 if number % 2 else 0.0
    writer.close()


def make_nodes(folder: Path, **how: Any) -> Parts:
    """The folders of two nodes with a rank each, and what the first one's supervisor reads of the run."""
    for node in (0, 1):
        own = files.node_folder(folder, node)
        files.rank_folder(own, node).mkdir(parents=True)
        record_power(own, node, **how)
        with (files.rank_folder(own, node) / files.STEPS).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["block", "steps", "end_s", "duration_s", "data_wait_s"])
            for block in range(STEPS // 10):
                writer.writerow((block, 10, f"{10 * STEP_S * (block + 1):.6f}", f"{10 * STEP_S:.9f}", "0.0"))
    files.write_whole(files.node_folder(folder, 1) / files.NODE, {"node": 1, "host": "n1", "failure": None})
    times = [
        {
            "node": node, "rank": node, "host": f"n{node}", "boot_id": f"boot {node}",
            "loop_monotonic": [clock_s + 3.0, clock_s + 15.0], "window_monotonic": [clock_s + 3.5, clock_s + 15.0],
            "training_monotonic": None, "device_from_monotonic": clock_s + 2.0,
        }
        for node, clock_s in enumerate(CLOCKS_S)
    ]  # fmt: skip
    work = {"units": STEPS * UNITS_A_STEP, "steps": STEPS}
    own = {name: value for name, value in times[0].items() if name.endswith("_monotonic")}
    result = decode(RankResult, {"status": "ok", "unit": "images", "work": work, **own, "nodes": times})
    devices = [DeviceFacts(kind="cuda", uuid=uuid, rank=rank) for rank, uuid in enumerate(DEVICE_UUIDS)]
    return Parts(result=result, device=devices[0], others=(devices[1],))


def with_result(parts: Parts, **changes: Any) -> Parts:
    return replace(parts, result=replace(parts.result, **changes))


def judged(folder: Path, parts: Parts) -> Energy:
    plan = Plan("wideresnet-20260101T000000-aaaaaa", Trial("wideresnet", {"nodes": 2, "devices": 2}))
    found = energy_of_run(plan, folder, parts)
    assert set(found.metrics) <= set(METRICS)
    assert all(one.value is not None or one.reason for one in found.metrics.values())
    json.dumps(encode([found.metrics, found.checks, found.detail]), allow_nan=False)
    return found


def value(found: Energy, name: str) -> float:
    return float(found.metrics[name].value or 0.0)


@pytest.mark.parametrize("kind", ["counter", "instantaneous"])
def test_two_nodes_are_added_each_over_its_own_window_by_its_own_clock(tmp_path: Path, kind: str) -> None:
    found = judged(tmp_path / "run", make_nodes(tmp_path / "run", kind=kind))
    parts = found.detail.parts
    for part, clock_s in zip(parts, CLOCKS_S, strict=True):
        assert clock_s + 3.5 <= part.window_s[0] < part.window_s[1] <= clock_s + 15.0
    assert value(found, "power") == pytest.approx(sum(POWERS_W), rel=0.01)
    assert value(found, "energy") == pytest.approx(sum(part.energy_j for part in parts))
    assert value(found, "energy_per_sample") == pytest.approx(sum(POWERS_W) * STEP_S / UNITS_A_STEP, rel=0.01)
    assert value(found, "samples_per_wh") * value(found, "energy_per_sample") == pytest.approx(3600.0)
    assert value(found, "node_energy") == pytest.approx(value(found, "energy"))
    assert found.metrics["node_energy"].source == "sum of devices, a lower bound"
    units = [found.metrics[name].unit for name in ("energy", "energy_per_sample", "samples_per_wh", "power")]
    assert units == ["J", "J/image", "images/Wh", "W"]
    for name in ("energy", "energy_per_sample", "samples_per_wh", "power", *OF_NODES[:1]):
        assert found.metrics[name].low < value(found, name) < found.metrics[name].high


def test_the_uncertainties_of_the_nodes_are_combined_as_those_of_devices_are(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", make_nodes(tmp_path / "run"))
    each_j = [part.uncertainty_j for part in found.detail.parts]
    energy = found.metrics["energy"]
    assert energy.high - energy.value == pytest.approx(sum(one**2 for one in each_j) ** 0.5)


def test_the_record_says_which_nodes_were_measured_and_the_share_of_each(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", make_nodes(tmp_path / "run"))
    shares = found.detail.nodes
    assert [(one.node, one.host) for one in shares] == [(0, "n0"), (1, "n1")]
    assert [one.devices for one in shares] == [(f"GPU-{uuid}",) for uuid in DEVICE_UUIDS]
    assert [one.share for one in shares] == pytest.approx([300 / 800, 500 / 800], rel=0.01)
    assert [part.host for part in found.detail.parts] == ["n0", "n1"]
    assert found.detail.reasons == {"node 0 (n0), rapl": "only root", "node 1 (n1), rapl": "only root"}
    assert {check.message.partition(":")[0] for check in found.checks} == {"node 0 (n0)", "node 1 (n1)"}
    assert found.metrics["energy"].source.startswith("sum of 2 nodes; node 0 (n0): made.counter")


def test_a_sampler_that_was_held_up_does_not_make_the_share_of_its_node_smaller(tmp_path: Path) -> None:
    """Its ticks cover five of twelve seconds, and so does its energy; the power it drew was the same."""
    found = judged(tmp_path / "run", make_nodes(tmp_path / "run", held_up_s=8.5))
    first, second = found.detail.nodes
    assert second.energy_j < first.energy_j
    assert [first.share, second.share] == pytest.approx([300 / 800, 500 / 800], rel=0.01)
    assert value(found, "power") == pytest.approx(sum(POWERS_W), rel=0.01)
    assert value(found, "energy_per_sample") == pytest.approx(sum(POWERS_W) * STEP_S / UNITS_A_STEP, rel=0.01)


SPOILS = {
    "folder": "its folder run.node1 cannot be seen from the first node",
    "power.json": "the sampler did not start",
    "power.csv": "made.counter: the counter ticked 0 times in the window; 8 are required",
    "node.json": "its supervisor had not ended 0 s after the first one's",
    "steps.csv": "the samples could not be judged",
    "device": "the devices of 1 of its 1 ranks are not known",
    "window": "the run has no steady window",
    "sensor": "none of the parts with a sensor is the device of this run",
}


@pytest.mark.parametrize("what", SPOILS)
def test_a_node_without_its_figure_is_named_and_nothing_is_summed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(conditions, "NODES_PATIENCE_S", 0.2)
    folder, other = tmp_path / "run", tmp_path / "run.node1"
    parts = make_nodes(folder)
    if what == "folder":
        other.rename(tmp_path / "elsewhere")
    elif what == "device":
        parts = Parts(parts.result, device=parts.device, others=(None,))
    elif what == "window":
        first, second = parts.result.nodes or ()
        parts = with_result(parts, nodes=(first, replace(second, window_monotonic=None)))
    elif what == "sensor":
        record_power(other, 1, part="GPU-00000000-0000-4000-8000-000000000009")
    else:
        (next(other.glob(f"**/{what}"))).unlink()
    found = judged(folder, parts)
    for name in OF_DEVICES:
        assert found.metrics[name].value is None
        assert found.metrics[name].reason.startswith(f"node 1 (n1): {SPOILS[what]}"), name
    assert "node 1 (n1): " in found.metrics["power_peak"].reason
    if what != "sensor":  # another part of that node has a sensor, so that it has an energy as a node
        assert all(found.metrics[name].value is None for name in OF_NODES)
        assert found.detail.node.energy_j is None
    first, second = found.detail.nodes
    assert (first.share, second.share, second.energy_j) == (None, None, None)
    assert first.energy_j > 0
    assert SPOILS[what] in second.reason


def test_a_run_whose_ranks_did_not_tell_their_times_has_no_sum(tmp_path: Path) -> None:
    parts = make_nodes(tmp_path / "run")
    found = judged(tmp_path / "run", with_result(parts, nodes=(parts.result.nodes or ())[:1]))
    assert {str(one.reason) for one in found.metrics.values()} == {"the run has no steady window"}


def of_one_machine(parts: Parts) -> Parts:
    return with_result(parts, nodes=tuple(replace(one, boot_id="the same") for one in parts.result.nodes or ()))


def test_two_nodes_that_are_one_machine_do_not_count_a_device_twice(tmp_path: Path) -> None:
    parts = make_nodes(tmp_path / "run", part="GPU-shared")
    shared = [replace(device, uuid="shared") for device in (parts.device, *parts.others)]
    parts = replace(parts, device=shared[0], others=(shared[1],))
    assert value(judged(tmp_path / "run", parts), "power") > 0, "two machines may call their parts alike"
    found = judged(tmp_path / "run", of_one_machine(parts))
    reason = "node 0 (n0) and node 1 (n1) are one machine, whose Made would be counted twice"
    assert {found.metrics[name].reason for name in (*OF_DEVICES, *OF_NODES)} == {reason}
    for node in (0, 1):
        record_power(files.node_folder(tmp_path / "run", node), node, part="GPU-shared", evidence="recording")
    replayed = judged(tmp_path / "run", parts)
    assert value(replayed, "power") == pytest.approx(sum(POWERS_W), rel=0.01), "a replay is of no machine"


def test_where_two_nodes_of_one_machine_see_each_others_devices_the_nodes_alone_have_no_sum(tmp_path: Path) -> None:
    parts = of_one_machine(make_nodes(tmp_path / "run"))
    assert value(judged(tmp_path / "run", parts), "node_power") == pytest.approx(sum(POWERS_W), rel=0.01)
    for node in (0, 1):
        own = files.node_folder(tmp_path / "run", node)
        record_power(own, node, also=f"GPU-{DEVICE_UUIDS[1 - node]}")
    found = judged(tmp_path / "run", parts)
    assert value(found, "power") == pytest.approx(sum(POWERS_W), rel=0.01)
    assert all("counted twice" in found.metrics[name].reason for name in OF_NODES)


def test_copies_are_taken_in_their_common_window_by_the_clock_of_each_node(tmp_path: Path) -> None:
    """The first copy ran from 3 s on, the second from 5 s to 13 s, at half the pace: 8 s are common to both."""
    parts = make_nodes(tmp_path / "run")
    told = [replace(own_times(rank, rank, f"n{rank}", RankResult()), boot_id=f"boot {rank}") for rank in (0, 1)]
    barriers_s = {rank: CLOCKS_S[rank] + 2.5 for rank in (0, 1)}
    nodes = in_common(times_of_nodes(told), [CLOCKS_S[0] + 5.0, CLOCKS_S[0] + 13.0], barriers_s)
    assert [one.window_monotonic for one in nodes] == [(clock_s + 5.0, clock_s + 13.0) for clock_s in CLOCKS_S]
    windows = [one.window_monotonic for one in nodes]
    known = zip(parts.result.nodes or (), windows, strict=True)
    parts = with_result(
        parts,
        nodes=tuple(replace(one, window_monotonic=window) for one, window in known),
        parallel=ParallelWork(ranks=(RankWork(common_steps=320.0), RankWork(common_steps=160.0))),
        work=WorkDone(units=480 * UNITS_A_STEP, steps=320),
    )
    with (tmp_path / "run.node1" / "rank1" / files.STEPS).open("w") as file:
        file.write("block,steps,end_s,duration_s,data_wait_s\n0,240,12.0,12.0,0.0\n")
    found = judged(tmp_path / "run", parts)
    assert value(found, "power") == pytest.approx(sum(POWERS_W), rel=0.01)
    assert value(found, "energy_per_sample") == pytest.approx(sum(POWERS_W) * 8.0 / (480 * UNITS_A_STEP), rel=0.01)
    nodes = in_common(nodes, None, {0: 1.0, 1: 2.0})
    assert [one.window_monotonic for one in nodes] == [None, None]


def test_what_it_cost_to_learn_is_added_over_the_training_of_each_node(tmp_path: Path) -> None:
    """Two epochs of 5 s with a second of evaluation between."""
    parts = make_nodes(tmp_path / "run")
    nodes = tuple(
        replace(one, training_monotonic=((clock_s + 3.5, clock_s + 8.5), (clock_s + 9.5, clock_s + 14.5)))
        for one, clock_s in zip(parts.result.nodes or (), CLOCKS_S, strict=True)
    )
    assert parts.result.work is not None
    work = replace(parts.result.work, epoch_units=4000)
    parts = with_result(parts, nodes=nodes, work=work, learning=Learning(reached=TargetReached(2, 400)))
    found = judged(tmp_path / "run", parts)
    assert value(found, "energy_to_quality") == value(found, "energy") == pytest.approx(10 * sum(POWERS_W), rel=0.02)
    assert value(found, "energy_per_sample") == pytest.approx(10 * sum(POWERS_W) / 4000, rel=0.02)
    (tmp_path / "run.node1" / files.POWER).unlink()
    assert judged(tmp_path / "run", parts).metrics["energy_to_quality"].reason.startswith("node 1 (n1): ")

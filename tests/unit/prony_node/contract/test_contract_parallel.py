"""A trial over several devices that makes no sense is refused with the reason, and its batches are one sum."""

from __future__ import annotations

from typing import Any

import pytest

from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import (
    all_devices,
    devices_per_node,
    form_of,
    in_lockstep,
    rank_count,
    ranks_per_node,
    replicas,
)
from prony_node.workloads import find_workload

CUDA, CPU = Machine("cuda", 140.0, 32), Machine("cpu", None, 4)


def effective(machine: Machine = CUDA, name: str = "gpt-tiny", **requested: Any) -> dict[str, Any]:
    workload = find_workload(name)
    return workload.effective(workload.parse(requested), machine)


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        ({"parallel": "ddp"}, "parallel has no meaning on one device; add devices=N"),
        ({"sync": "off"}, "sync has no meaning on one device"),
        ({"batch_norm": "synced"}, "batch_norm has no meaning on one device"),
        (
            {"devices": 4, "global_batch": 30},
            "1 micro-batches do not divide it; global_batch=32 would do",
        ),
        ({"devices": 2, "global_batch": 32, "batch_size": 16}, "give one of them"),
        ({"devices": 2, "parallel": "independent", "global_batch": 32}, "each copy has its own batch_size"),
        ({"devices": 2, "parallel": "fsdp", "graphs": "on"}, "graphs=on is not offered with parallel=fsdp"),
        ({"devices": 2, "graphs": "on"}, "graphs=on is not offered with parallel=ddp"),
        ({"devices": 2, "mode": "infer", "parallel": "ddp"}, "mode=infer has none; use parallel=independent"),
        ({"devices": 2, "reshard": "off"}, "reshard belongs to parallel=fsdp"),
        ({"devices": 2, "parallel": "fsdp", "bucket_mb": 10}, "bucket_mb belongs to parallel=ddp"),
        ({"devices": 2, "parallel": "fsdp", "sync": "off"}, "sync belongs to parallel=ddp"),
        ({"devices": 2, "parallel": "independent", "sync": "off"}, "sync belongs to parallel=ddp"),
        ({"devices": 2, "parallel": "independent", "batch_norm": "local"}, "whose copies exchange nothing"),
        ({"devices": 4, "batch_norm": 3}, "does not divide the 4 ranks"),
        ({"devices": 4, "tp": 2, "batch_norm": 2}, "no meaning for a model that tp or pp splits"),
        ({"devices": 2, "batch_norm": "synced", "device": "cpu"}, "on a GPU alone"),
        ({"devices": 2, "parallel": "fsdp", "precision": "fp16"}, "precision=fp16 scales the loss"),
        ({"devices": 2, "parallel": "fsdp", "compile": "default"}, "compile is not offered with parallel=fsdp"),
        ({"devices": 2, "parallel": "fsdp", "optimizer": "sgd", "fused": "on"}, "torch's fused sgd does not take"),
        ({"devices": 2, "batch_size": "auto"}, "find it with devices=1"),
        ({"copies": 2, "parallel": "ddp"}, "copies share a device without waiting"),
        ({"devices": 0}, "devices is a whole number of at least 1"),
        ({"devices": 6, "nodes": 4}, "devices=6 nodes=4 is not possible: .*; devices=8 would do"),
        ({"devices": 1, "nodes": 2}, "devices=1 nodes=2 is not possible: .*; devices=2 would do"),
        ({"devices": 7, "nodes": 3, "mode": "infer"}, "devices=6 would do"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(requested: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        find_workload("gpt-tiny").parse(requested)


def test_micro_batch_x_accumulation_x_replicas_is_the_global_batch() -> None:
    given = effective(devices=8, nodes=2, batch_size=8, grad_accumulation=3)
    assert given["global_batch"] == 8 * 3 * 8
    found = effective(devices=8, nodes=2, global_batch=192, grad_accumulation=3)
    assert found["batch_size"] == 8
    assert effective(global_batch=32)["batch_size"] == 32, "one device has a global batch too"


def test_devices_are_those_of_all_nodes_and_spread_evenly() -> None:
    """Else a run takes twice what was asked for, or half."""
    settings = effective(devices=8, nodes=2)
    assert (settings["devices"], settings["nodes"], all_devices(settings), devices_per_node(settings)) == (8, 2, 8, 4)
    assert (ranks_per_node(settings), rank_count(settings)) == (4, 8)
    shared = {"devices": 8, "nodes": 2, "copies": 3, "mode": "infer"}
    assert (devices_per_node(shared), ranks_per_node(shared), rank_count(shared)) == (4, 12, 24), "copies share each"
    alone = effective(nodes=3)
    assert (alone["devices"], devices_per_node(alone), replicas(alone)) == (3, 1, 3), "one a node where nobody says"


def test_one_device_stays_as_it_was() -> None:
    settings = effective()
    assert (settings["devices"], settings["nodes"], settings["graphs"]) == (1, 1, True)
    assert {"parallel", "sync", "global_batch", "bucket_mb"} & set(settings) == set()
    assert (rank_count(settings), form_of(settings), in_lockstep(settings)) == (1, "", False)


@pytest.mark.parametrize(
    ("requested", "form", "ranks", "replicated"),
    [
        ({"devices": 4}, "ddp", 4, 4),
        ({"devices": 8, "nodes": 2, "parallel": "fsdp"}, "fsdp", 8, 8),
        ({"devices": 4, "mode": "infer"}, "independent", 4, 1),
        ({"copies": 3}, "independent", 3, 1),
        ({"devices": 2, "copies": 2, "parallel": "independent"}, "independent", 4, 1),
    ],
)
def test_the_form_follows_from_what_is_asked(requested: dict[str, Any], form: str, ranks: int, replicated: int) -> None:
    settings = effective(**requested)
    assert (settings["parallel"], rank_count(settings), replicas(settings)) == (form, ranks, replicated)


def test_what_several_ranks_change_is_in_the_effective_settings() -> None:
    ddp = effective(devices=2)
    assert (ddp["graphs"], ddp["compile"], ddp["sync"], ddp["bucket_mb"]) == (False, "default", True, 25)
    fsdp = effective(devices=2, parallel="fsdp")
    assert (fsdp["graphs"], fsdp["compile"], fsdp["reshard"]) == (False, "off", True)
    assert effective(devices=2, parallel="independent")["graphs"] is True, "copies are captured as one alone is"
    assert effective(name="wideresnet", devices=2, parallel="fsdp")["fused"] is False


def test_a_batch_norm_over_ranks_needs_a_gpu_that_only_the_machine_knows_of() -> None:
    assert effective(name="wideresnet", devices=2, batch_norm="synced")["batch_norm"] == "synced"
    with pytest.raises(RequestError, match="on a GPU alone"):
        effective(CPU, "wideresnet", devices=2, batch_norm="synced")

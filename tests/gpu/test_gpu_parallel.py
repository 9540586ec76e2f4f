"""Several ranks where there is an accelerator: NCCL by itself, copies that share a device, two devices."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from prony_node.contract import Plan, Stop, Trial, read_record

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def made(folder: Path, **settings: Any) -> dict[str, Any]:
    """The record of a run of the tiny decoder with these settings."""
    stop = Stop(tolerance=0.2, min_time_s=2.0, max_time_s=5.0)
    plan = Plan(run_id="r", trial=Trial("gpt-tiny", settings), stop=stop)
    (folder / "asked.json").write_text(json.dumps(plan.to_json()))
    argv = [sys.executable, "-m", "prony_node", str(folder / "asked.json"), str(folder / "out")]
    subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=600)
    record = read_record(folder / "out")
    assert record is not None
    return record


def test_nccl_with_one_device_works() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=device)
    try:
        values = torch.ones(1024, device=device)
        dist.all_reduce(values)
        assert float(values.sum()) == 1024
    finally:
        dist.destroy_process_group()


def test_batch_norms_of_a_pair_are_one_over_the_samples_of_both() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    script = Path(__file__).parent / "norm_steps.py"
    subprocess.run([sys.executable, str(script), port], check=True, timeout=120)


def test_two_copies_share_a_device(tmp_path: Path) -> None:
    record = made(tmp_path, mode="infer", copies=2, compile="off")
    assert record["status"] == "ok", record["failure"]
    assert (record["work"]["devices"], len(record["parallel"]["ranks"])) == (1, 2)
    assert record["trial"]["effective"]["graphs"] is True
    assert {rank["device"] for rank in record["parallel"]["ranks"]} == {"cuda:0"}


def test_more_devices_than_there_are_start_nothing(tmp_path: Path) -> None:
    record = made(tmp_path, devices=torch.accelerator.device_count() + 1)
    assert record["failure"]["kind"] == "request"
    assert "torch finds" in record["failure"]["message"]


@pytest.mark.parametrize("form", ["ddp", "fsdp"])
def test_two_devices_train_one_model(tmp_path: Path, form: str) -> None:
    if torch.accelerator.device_count() < 2:
        pytest.skip("needs two devices")
    record = made(tmp_path, devices=2, parallel=form, batch_size=64)
    assert record["status"] == "ok", record["failure"]
    assert (record["parallel"]["backend"], record["work"]["devices"]) == ("nccl", 2)
    levels = {check["name"]: check["level"] for check in record["checks"]}
    assert levels["loss"] == levels["parameters"] == "pass"
    assert levels.get("replicas", "pass") == "pass"

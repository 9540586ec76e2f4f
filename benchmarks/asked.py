"""A workload and its settings from the words of a command, as `prony run` takes them: for benchmarks of one step."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value
from prony_node.measure.device import MissingDevice, choose_device, machine_of
from prony_node.workloads import find_workload
from prony_node.workloads.config import Workload

Asked = tuple[Workload, dict[str, Value], torch.device]


def read_words(name: str, words: list[str]) -> Asked | str:
    """What was asked for, with the defaults of this machine; or the sentence that says what is wrong with it."""
    try:
        workload = find_workload(name)
        given = workload.parse(dict(word.partition("=")[::2] for word in words))
        device = choose_device(str(given.get("device", "auto")))
        return workload, workload.effective(given, machine_of(device, torch.get_num_threads())), device
    except (RequestError, MissingDevice) as error:
        return str(error)


def finish(device: torch.device) -> None:
    """Wait until it has done what it was given."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()

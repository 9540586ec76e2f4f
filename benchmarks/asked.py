"""A workload and its settings from the words of a command, as `prony run` takes them: for benchmarks of one step.

Some time forms of a step in turns; what these ask for, tell and keep is here too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.backends.torch.backend import MissingDevice, choose_device, machine_of
from prony_node.contract.errors import RequestError
from prony_node.contract.files import write_whole
from prony_node.contract.settings import Value
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


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def turns_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of a benchmark that times forms of a workload's step in turns."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("settings", nargs="*", help="as for prony run")
    parser.add_argument("--steps", type=int, default=40, help="in each turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each form")
    parser.add_argument("--json", type=Path, help="keep the times there")
    return parser


def told(took: list[float]) -> str:
    return f"{statistics.median(took):.3f} ms a step ({min(took):.3f} to {max(took):.3f})"


def keep_turns(
    options: argparse.Namespace, device: torch.device, batch: dict[str, int], found: dict[str, list[float]]
) -> None:
    """Milliseconds a step of each form, one figure a turn, where the options name a file."""
    if options.json:
        about = {"workload": options.workload, "settings": options.settings, **batch}
        machine = {"device": device_name(device), "torch": torch.__version__}
        write_whole(options.json, {**about, **machine, "ms_a_step": found})

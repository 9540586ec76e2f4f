"""If this fails, a default has changed: which implementation of a layer runs where nobody asks for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import SETTINGS, Value
from prony_node.workloads import WORKLOADS, find_workload
from prony_node.workloads.config import Workload, attention_order

GOLDEN = Path(__file__).parents[3] / "golden" / "kernels.txt"
MACHINES = {
    "cpu": Machine("cpu", None, 16),
    "cuda": Machine("cuda", 139.8, 16),
    "cuda of 24 GiB": Machine("cuda", 24.0, 16),
    "rocm": Machine("cuda", 192.0, 16, rocm=True),
    "xpu": Machine("xpu", 64.0, 16),
    "mps": Machine("mps", 32.0, 8),
}
ASKED: tuple[dict[str, str], ...] = (
    {},
    {"compile": "off"},
    {"memory_format": "contiguous"},
    {"memory_format": "channels_last"},
    {"image_size": "225"},
    {"batch_size": "1"},
    {"batch_size": "5"},
    {"grad_accumulation": "2"},
    {"size": "tiny"},
    {"preset": "plain"},
    {"preset": "published"},
)
NAMES = [*WORKLOADS, "timm/resnet18", "torchvision/vit_b_16", "hf/llama"]


def test_what_runs_by_default_is_as_it_was() -> None:
    assert list(table()) == GOLDEN.read_text().splitlines()


def table() -> Iterator[str]:
    """For each workload and mode: the machines that share their defaults, and what differs where more is asked for."""
    for name in NAMES:
        workload = find_workload(name)
        for mode in workload.modes:
            yield f"{name} {mode}"
            groups: dict[tuple[str, ...], list[str]] = {}
            for device, machine in MACHINES.items():
                groups.setdefault(tuple(lines(workload, mode, machine)), []).append(device)
            for said, devices in groups.items():
                yield f"  {', '.join(devices)}"
                yield from (f"    {line}" for line in said)


def lines(workload: Workload, mode: str, machine: Machine) -> Iterator[str]:
    usual = choices(workload, mode, machine, {})
    for asked in ASKED:
        found = choices(workload, mode, machine, asked)
        other = {precision: chosen for precision, chosen in found.items() if usual.get(precision) != chosen}
        words = [f"{name}={value}" for name, value in asked.items()]
        for chosen in dict.fromkeys((other if asked else usual).values()):
            alike = [precision for precision in found if found[precision] == chosen]
            which = [] if len(alike) == len(found) else [f"({', '.join(alike)})"]
            yield f"{' '.join([*words, *which]) or 'any'}: {chosen}"


def choices(workload: Workload, mode: str, machine: Machine, asked: Mapping[str, str]) -> dict[str, str]:
    """What runs in each precision that is possible; that of nobody's choice is called unset."""
    own = {"devices": "2"} if workload.collective else {}
    found = {}
    for precision in ("unset", *SETTINGS["precision"].choices):
        stated = {} if precision == "unset" else {"precision": precision}
        try:
            given = workload.parse({"mode": mode, **stated, **own, **asked})
            found[precision] = choice(workload, workload.effective(given, machine), machine)
        except RequestError:
            continue
    return found


def choice(workload: Workload, effective: Mapping[str, Value], machine: Machine) -> str:
    order = attention_order(workload.kernels, effective) if machine.device == "cuda" else ()
    return f"{effective.get('kernels', '-')}; attention: {' '.join(order) or 'library'}"

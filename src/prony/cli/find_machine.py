"""What defaults depend on, where a request will be run: this machine, or a node of a site."""

from __future__ import annotations

from prony.cli.ask import ask_node
from prony.launch.site import Partition
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import Machine


def find_machine(device: str, there: Partition | None = None) -> Machine:
    """The device that `device=` means. Of a partition the kind alone is known; None is this machine.

    A node process is asked, since we have no torch.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return Machine(kind)
    if there is not None:
        return Machine(_kind_of(there) if kind == "auto" else kind)
    answer = ask_node("devices")
    if not answer.get("kind"):
        raise RequestError(f"{answer.get('reason', 'torch finds no device')}; PRONY_PYTHON names a Python that can")
    memory_gib = dict(enumerate(answer.get("memory_gib") or []))
    if kind not in ("auto", answer["kind"]):  # the runs themselves will say it
        return Machine(kind)
    return Machine(str(answer["kind"]), memory_gib.get(int(number or 0)))


def _kind_of(partition: Partition) -> str:
    if not partition.accelerators:
        return "cpu"
    return "xpu" if partition.vendor == "intel" else "cuda"

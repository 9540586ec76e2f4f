"""Ranks get the cores and memory next to their device, disjoint where asked, and never cores that are not allowed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony_node.contract.machine import cpu_list, parse_cpu_list
from prony_node.parallel.place import (
    PREFERRED,
    Binding,
    Node,
    Slot,
    Topology,
    allowed_cores,
    bind_rank,
    bindings,
    pci_address,
    prefer_memory,
    read_slot,
    read_topology,
)

REPLAY = Path(__file__).parents[3] / "replay" / "topology"


def write_machine(name: str, root: Path) -> list[str]:
    """A machine's /sys under `root`; the addresses of its devices."""
    machine = json.loads((REPLAY / f"{name}.json").read_text())
    offset = machine["thread_offset"]
    for number, files in machine["nodes"].items():
        for file, content in files.items():
            write(root / f"sys/devices/system/node/node{number}/{file}", content)
        for core in parse_cpu_list(files["cpulist"]):
            pair = f"{core % offset},{core % offset + offset}" if offset else f"{core}"
            write(root / f"sys/devices/system/cpu/cpu{core}/topology/core_cpus_list", pair)
    for address, files in machine["pci"].items():
        for file, content in files.items():
            write(root / f"sys/bus/pci/devices/{address}/{file}", content)
    return list(machine["pci"])


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def bound(name: str, root: Path, bind: str, allowed: str | None = None) -> list[Binding]:
    """One rank a device of that machine."""
    addresses = write_machine(name, root)
    topology = read_topology(root)
    every = frozenset(core for node in topology.nodes for core in node.cores)
    cores = frozenset(parse_cpu_list(allowed)) if allowed else every
    return bindings(bind, topology, cores, [read_slot(root, address) for address in addresses])


def shown(found: list[Binding]) -> list[tuple[str, int | None]]:
    return [(cpu_list(sorted(one.cores or ())), one.node) for one in found]


def test_eight_gpus_on_two_sockets(tmp_path: Path) -> None:
    near = [("0-55,112-167", 0)] * 4 + [("56-111,168-223", 1)] * 4
    assert shown(bound("dgx_h100", tmp_path, "numa")) == near
    own = shown(bound("dgx_h100", tmp_path, "cores"))
    assert own[:2] == [("0-13,112-125", 0), ("14-27,126-139", 0)]  # both threads of 14 cores each
    assert own[7] == ("98-111,210-223", 1)


def test_memory_of_a_superchip_is_a_node_without_cores(tmp_path: Path) -> None:
    own = [(f"{72 * chip}-{72 * chip + 71}", chip) for chip in range(4)]
    assert shown(bound("gh200_four", tmp_path, "numa")) == own
    assert shown(bound("gh200_four", tmp_path, "cores")) == own
    topology = read_topology(tmp_path)
    memory = topology.node(12)  # of the second GPU: where a driver names it as the device's node
    assert memory is not None
    assert not memory.cores
    found = bindings("numa", topology, frozenset(range(288)), [Slot(12, frozenset())])
    assert shown(found) == [own[1]]


@pytest.mark.parametrize(
    ("machine", "bind", "allowed", "sentence"),
    [("laptop", "numa", None, "one NUMA node: all of its cores are next to the device, so there was nothing to bind"),
     ("laptop", "cores", None, "the one rank of this node has every core that may be used"),
     ("dgx_h100", "numa", "0-7", r"\(0-7\) all lie on NUMA node 0, so there was nothing to bind"),
     ("dgx_h100", "cores", "0-6", "8 ranks share 7 cores: not each can have one")],
)  # fmt: skip
def test_where_it_cannot_matter_a_sentence_says_so(
    tmp_path: Path, machine: str, bind: str, allowed: str | None, sentence: str
) -> None:
    found = bound(machine, tmp_path, bind, allowed)
    assert {one.cores for one in found} == {None}
    assert all(re.search(sentence, one.reason) for one in found)


def test_a_cpuset_without_the_device_s_cores(tmp_path: Path) -> None:
    near = bound("gh200_four", tmp_path, "numa", "0-3,72-75")
    assert shown(near[:2]) == [("0-3", 0), ("72-75", 1)]
    assert near[2].reason == (
        "none of the cores next to the device (144-215) may be used here (0-3,72-75 may), so nothing was bound"
    )
    own = bindings(
        "cores", read_topology(tmp_path), frozenset({0, 1, 72}), [Slot(0, frozenset()), Slot(9, frozenset())]
    )
    assert shown(own) == [("0-1", 0), ("72", 1)]
    assert own[1].reason == "the firmware does not say which cores lie next to the device: these cores are any"


def test_ranks_on_the_cpu_are_dealt_out_over_the_nodes(tmp_path: Path) -> None:
    write_machine("gh200_four", tmp_path)
    topology, allowed = read_topology(tmp_path), frozenset(range(288))
    two = bindings("numa", topology, allowed, [None, None])
    assert shown(two) == [("0-143", None), ("144-287", None)]
    eight = bindings("cores", topology, allowed, [None] * 8)
    assert shown(eight)[:2] == [("0-35", 0), ("36-71", 0)]


def test_a_system_without_sysfs_binds_nothing(tmp_path: Path) -> None:
    found = bindings("numa", read_topology(tmp_path), frozenset({0}), [read_slot(tmp_path, "0000:01:00.0")])
    assert "does not say which cores lie next to what" in found[0].reason


@st.composite
def machines(draw: st.DrawFn) -> tuple[Topology, frozenset[int], list[Slot | None]]:
    """Any nodes, any cpuset, any devices, also such that contradict each other."""
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    ends = [sum(counts[:number]) for number in range(len(counts) + 1)]
    width = draw(st.integers(1, 3))
    nodes = tuple(
        Node(number, frozenset(range(ends[number], ends[number + 1])), draw(st.booleans()),
             {other: draw(st.integers(10, 90)) for other in range(len(counts))})
        for number in range(len(counts))
    )  # fmt: skip
    threads = {core: frozenset(range(core - core % width, core - core % width + width)) for core in range(ends[-1])}
    cores = st.frozensets(st.integers(0, 30))
    slot = st.none() | st.builds(Slot, st.none() | st.integers(0, 5), cores)
    return Topology(nodes, threads), draw(cores.filter(bool)), draw(st.lists(slot, min_size=1, max_size=9))


@settings(max_examples=300, deadline=None)
@given(machines(), st.sampled_from(["numa", "cores"]))
def test_bound_sets_are_allowed_and_disjoint(
    machine: tuple[Topology, frozenset[int], list[Slot | None]], bind: str
) -> None:
    topology, allowed, slots = machine
    found = bindings(bind, topology, allowed, slots)
    assert len(found) == len(slots)
    seen: set[int] = set()
    for one in found:
        if one.cores is None:
            assert one.reason
            assert one.node is None
            continue
        assert one.cores
        assert one.cores <= allowed
        if bind == "cores":
            assert not seen & one.cores
            seen |= one.cores


def test_the_address_of_a_device_is_written_as_the_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    told = SimpleNamespace(pci_domain_id=9, pci_bus_id=0x1B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: told)
    assert pci_address("cuda:1") == "0009:1b:00.0"
    nvml = SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetPciInfo=lambda uuid: SimpleNamespace(busId=b"00000000:DF:00.0" if uuid == "GPU-abc" else b"?"),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    told = SimpleNamespace(uuid="abc")  # an older torch
    assert pci_address("cuda:1") == "0000:df:00.0"
    told = SimpleNamespace(uuid="another")
    assert pci_address("cuda:1") is None
    assert pci_address("mps") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a memory policy is Linux's")
def test_a_memory_policy_that_the_kernel_refuses_is_a_sentence() -> None:
    assert "memory was not bound: the kernel refused it" in prefer_memory(900)  # there is no such node


BOUND_PROCESS = """
import ctypes, json, os, sys
from torch.utils.data import DataLoader
from prony_node.contract.typed import encode
from prony_node.parallel.place import bind_rank
import platform

class Where:
    def __len__(self): return 1
    def __getitem__(self, index):
        mode, mask = ctypes.c_int(), (ctypes.c_ulong * 16)()
        number = {"x86_64": 239, "aarch64": 236}[platform.machine()]  # get_mempolicy
        asked = ctypes.CDLL(None).syscall(number, ctypes.byref(mode), mask, 1024, None, 0)
        return json.dumps([sorted(os.sched_getaffinity(0)), asked, mode.value, mask[0], os.getpid()])

done = bind_rank("cores", 1, ["cpu", "cpu"], sorted(os.sched_getaffinity(0)))
worker = json.loads(next(iter(DataLoader(Where(), num_workers=1, batch_size=None))))
print(json.dumps([encode(done), worker, os.getpid()]))
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="this needs two cores and Linux"
)
def test_a_loader_worker_stays_where_its_rank_was_bound() -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    text = subprocess.run(
        [sys.executable, "-c", BOUND_PROCESS], check=True, env=environment, timeout=300, capture_output=True, text=True
    ).stdout
    done, (cores, asked, mode, mask, worker), rank = json.loads(text)
    allowed = sorted(os.sched_getaffinity(0))
    assert worker != rank
    assert done["cores"] == cpu_list(cores)
    assert set(cores) < set(allowed)
    assert allowed[0] not in cores
    if done["memory"] and asked == 0:  # else the reason says why not
        assert (mode, mask) == (PREFERRED, 1 << done["node"])
    else:
        assert done["reason"]


def test_what_was_not_asked_for_is_not_done() -> None:
    before = allowed_cores()
    assert bind_rank("none", 0, ["cpu"], before).cores is None
    assert allowed_cores() == before

"""If these fail, a record describes another machine than the one it was obtained on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prony_node.contract.facts import CgroupLimits, CpuList, HostFacts, SchedulerJob
from prony_node.contract.typed import decode, encode
from prony_node.facts import container_facts, host_facts
from prony_node.facts.host import cpu_model
from prony_node.facts.software import software_facts, source_facts

Machine = Callable[[str], Path]


def reasons(facts: HostFacts) -> dict[str, str]:
    return {entry.what: entry.reason for entry in facts.missing}


def test_grace_hopper(machine: Machine) -> None:
    host = host_facts(machine("grace_hopper"))
    assert host.cpu.model == "NVIDIA Grace (Arm Neoverse V2)"
    assert (host.cpu.sockets, host.cpu.cores, host.cpu.threads) == (1, 4, 4)
    assert {"sve2", "bf16", "i8mm"} <= set(host.cpu.instruction_sets)
    assert host.cpu.frequency.governors == ("performance",)
    assert host.cpu.frequency.highest_allowed_mhz == 3402
    assert host.memory.transparent_huge_pages == "madvise"
    device_memory = host.numa[1]
    assert device_memory.cpu_count == 0
    assert device_memory.memory_bytes == 100500000 * 1024
    assert host.hypervisor.present is None  # an ARM machine without a trace of one: not known, not "no"
    assert "hypervisor" in reasons(host)


def test_limits_of_outer_groups_count_in_version_2(machine: Machine) -> None:
    group = host_facts(machine("grace_hopper")).cgroup
    assert group == CgroupLimits(2, 2.0, 2**39, "0-3")


def test_x86_with_two_sockets(machine: Machine) -> None:
    host = host_facts(machine("x86_two_sockets"))
    assert host.cpu.model == "AMD EPYC 7A53 64-Core Processor"
    assert (host.cpu.sockets, host.cpu.cores, host.cpu.threads) == (2, 4, 8)
    assert host.cpu.allowed == CpuList("0-1,4-5", 4)
    assert host.cpu.frequency.governors == ("performance", "powersave")  # one core differs: it is said
    assert host.cpu.caches == {"L1d": "32K", "L3": "32768K"}
    assert [node.cpus for node in host.numa] == ["0-1,4-5", "2-3,6-7"]
    assert host.hypervisor.present is False


def test_limits_in_version_1_of_a_slurm_job(machine: Machine) -> None:
    host = host_facts(machine("x86_two_sockets"))
    assert encode(host.cgroup) == {
        "version": 1,
        "cpu_limit_cores": None,
        "memory_limit_bytes": 2**36,
        "cpus": "0-1,4-5",
    }
    assert "no control group" in reasons(host)["cgroup.cpu_limit_cores"]


def test_recorded_virtual_machine(machine: Machine) -> None:
    host = host_facts(machine("neoverse_vm"))
    assert host.cpu.model == "Arm Neoverse N1"
    assert host.hypervisor.name == "Firecracker"
    assert "cpu.frequency" in reasons(host)


def test_an_empty_tree_is_all_null_with_reasons(tmp_path: Path) -> None:
    host = host_facts(tmp_path)
    assert host.hostname is None
    assert host.cpu.model is None
    assert host.memory.total_bytes is None
    assert {"hostname", "cpu.model", "memory.total_bytes", "numa", "cgroup"} <= set(reasons(host))
    written = encode(host)
    assert written["cpu"]["model"] is None, "what was not found stands in the document, as null"
    assert decode(HostFacts, json.loads(json.dumps(written))) == host


@pytest.mark.parametrize(
    ("part", "name"),
    [("0xd0c", "N1"), ("0xd40", "V1"), ("0xd49", "N2"), ("0xd4f", "V2")],
)
def test_arm_parts(part: str, name: str) -> None:
    assert cpu_model([{"CPU implementer": "0x41", "CPU part": part}]) == f"Arm Neoverse {name}"


def test_an_unknown_arm_part_is_a_number_not_a_guess() -> None:
    assert cpu_model([{"CPU implementer": "0x41", "CPU part": "0xfff"}]) == "Arm part 0xfff"


def test_container_of_a_slurm_job(machine: Machine) -> None:
    root = machine("x86_two_sockets")
    (root / ".singularity.d").mkdir()
    environ = {
        "SLURM_JOB_ID": "42",
        "APPTAINER_CONTAINER": "/home/someone/images/torch.sif",
        "SLURM_JWT": "secret",
    }
    facts = container_facts(root, environ)
    assert facts.runtime == "apptainer"
    assert {entry.name for entry in facts.runtimes} == {"apptainer", "slurm"}
    assert facts.image == "torch.sif"
    assert facts.pid_namespace == "own"
    assert facts.job == SchedulerJob("slurm", "42")
    assert "secret" not in str(facts)


def test_podman_names_its_image(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").write_text('engine="podman-4.9"\nname="box"\nimage="docker.io/library/x:1"\n')
    facts = container_facts(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert facts.image == "docker.io/library/x:1"
    assert {entry.name for entry in facts.runtimes} == {"podman", "kubernetes"}


def test_software_names_torch_and_says_what_is_absent() -> None:
    facts = software_facts()
    assert facts.packages["torch"]
    assert facts.python.startswith("3.")
    absent = {entry.what.removeprefix("packages.") for entry in facts.missing}
    assert not absent & set(facts.packages)


def test_no_repository_is_fine(tmp_path: Path) -> None:
    facts = source_facts(tmp_path)
    assert facts.commit is None
    assert facts.missing


def test_a_changed_file_makes_the_source_dirty(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    (tmp_path / "a.txt").write_text("one")
    git("add", ".")
    git("commit", "-m", "first")
    clean = source_facts(tmp_path)
    assert (clean.branch, clean.dirty, len(clean.commit)) == ("main", False, 40)
    (tmp_path / "a.txt").write_text("two")
    assert source_facts(tmp_path).dirty is True


def test_the_supervisors_facts_import_no_torch() -> None:
    code = (
        "import sys; from prony_node import facts; from prony_node.contract.facts import DeviceFacts;"
        "facts.host_facts(); facts.software_facts();"
        "facts.container_facts(); facts.environment_facts(); facts.fingerprint(); facts.Watch(DeviceFacts()).sample();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

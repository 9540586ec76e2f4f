"""If these fail, an odd line in /proc or /sys ends a run that was measuring well."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from prony_node.contract.facts import DeviceFacts
from prony_node.contract.machine import cpu_list, parse_cpu_list
from prony_node.contract.typed import encode
from prony_node.facts import container_facts, host_facts
from prony_node.facts.device import amd_facts, parse_levels
from prony_node.facts.host import cpu_model, parse_cpuinfo, parse_membership, parse_meminfo, parse_mounts
from prony_node.facts.software import fingerprint, parse_nvidia_version
from prony_node.facts.tree import Missing, Tree, generation, normal_address, whole_number
from prony_node.facts.watch import Watch, parse_stat

REPLAY = Path(__file__).parents[3] / "replay" / "facts"
NAMES = sorted(
    {
        name
        for file in ("grace_hopper", "x86_two_sockets", "neoverse_vm")
        for name in json.loads((REPLAY / f"{file}.json").read_text())["files"]
    }
)
lines = st.text(st.sampled_from("0123456789abcdefx:-,=./ \n\t()cpu kBMHz*[]\x00é٣²"), max_size=200)


@given(lines)
def test_parsers_never_raise(text: str) -> None:
    cpu_model(parse_cpuinfo(text))
    parse_meminfo(text)
    parse_cpu_list(text)
    parse_mounts(text)
    parse_membership(text)
    parse_stat(text)
    parse_nvidia_version(text)
    parse_levels(text)
    normal_address(text)
    generation(text)
    whole_number(text)


@given(st.lists(st.integers(0, 5000), max_size=60))
def test_cpu_lists_round_trip(cpus: list[int]) -> None:
    assert parse_cpu_list(cpu_list(cpus)) == sorted(set(cpus))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=80) | lines.map(str.encode), max_size=25))
def test_a_broken_tree_gives_facts_and_never_raises(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in files.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        facts = [host_facts(root), container_facts(root, {}), fingerprint(root)]
        facts.append(amd_facts(Tree(root), "0000:c1:00.0", None, Missing()))
        facts.append(Watch(DeviceFacts(kind="cpu"), root).sample())
        json.dumps(encode(facts), allow_nan=False)

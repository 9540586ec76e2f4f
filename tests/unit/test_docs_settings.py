"""docs/settings.md and docs/measuring.md say what the code says: settings, defaults, checks, the stop rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from prony_node.contract.machine import Machine
from prony_node.contract.parallel import SEVERAL_ONLY
from prony_node.contract.settings import SETTINGS, Setting, Value
from prony_node.contract.trial import DATA_SET_ONLY, Stop
from prony_node.stats import StopRule
from prony_node.workloads import WORKLOADS
from prony_node.workloads.config import PUBLISHED

ROOT = Path(__file__).parents[2]
SETTINGS_PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
MEASURING_PAGE = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
KINDS = ("cpu", "cuda", "xpu", "mps")
CORES = 4


def table(page: str, *head: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins with these cells: the first cell to the others."""
    lines = page.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("| " + " | ".join(head)))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first.strip("`")] = others
    return rows


def values_of(setting: Setting) -> str:
    return setting.values().replace(" | ", ", ")


def test_every_setting_has_its_row() -> None:
    rows = table(SETTINGS_PAGE, "setting", "values", "default", "meaning")
    assert list(rows) == list(SETTINGS), "the page and prony_node/contract/settings.py list different settings"
    for name, (values, _, meaning) in rows.items():
        assert values == values_of(SETTINGS[name])
        assert meaning == SETTINGS[name].help


def test_settings_of_single_workloads_have_their_row() -> None:
    rows = table(SETTINGS_PAGE, "setting", "workloads", "values", "meaning")
    owners: dict[str, list[str]] = {}
    known = {}
    for workload in WORKLOADS.values():
        for setting in workload.settings:
            owners.setdefault(setting.name, []).append(workload.name)
            known[setting.name] = setting
    expected = {name: [", ".join(owners[name]), values_of(known[name]), known[name].help] for name in owners}
    assert rows == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_stated_defaults_are_the_defaults(kind: str) -> None:
    by_device = table(SETTINGS_PAGE, "setting", *KINDS)
    for workload in WORKLOADS.values():
        defaults = workload.defaults({}, Machine(kind, None, CORES))
        for name, (_, stated, _) in table(SETTINGS_PAGE, "setting", "values", "default").items():
            if stated == "by workload" or name in workload.fixed or name in workload.fixed_when_few:
                continue  # the page's table of workloads has it
            if name in DATA_SET_ONLY or name in SEVERAL_ONLY:
                continue  # these follow from the data set that a run finds, or from there being several devices
            if stated == "none":
                assert name not in defaults
            elif stated == "by device":
                assert by_device[name][KINDS.index(kind)] == SETTINGS[name].show(defaults[name]), f"{name} on {kind}"
            elif name == "workers":
                assert defaults[name] == CORES - 1
            elif name == "cores":
                assert defaults[name] == str(CORES)
            elif name == "mode":
                assert defaults[name] == (stated if stated in workload.modes else workload.modes[0])
            elif name != "device":
                assert stated == SETTINGS[name].show(defaults[name])
    assert set(by_device) == {
        name for name, row in table(SETTINGS_PAGE, "setting", "values").items() if row[1] == "by device"
    }


def words_of(settings: Mapping[str, Value]) -> str:
    shown = {True: "on", False: "off"}
    return ", ".join(f"{name}={shown[value] if isinstance(value, bool) else value}" for name, value in settings.items())


def test_the_stated_defaults_of_each_workload() -> None:
    rows = table(SETTINGS_PAGE, "workload", "batch size on a CPU")
    expected = {}
    for workload in WORKLOADS.values():
        batches = [
            ", ".join(str(workload.batch[f"{mode}/{kind}"]) for mode in workload.modes)
            for kind in ("cpu", "accelerator")
        ]
        own = words_of(workload.fixed)
        if workload.fixed_on_cpu:
            own += f" (on a CPU {words_of(workload.fixed_on_cpu)})"
        if workload.fixed_when_few:
            own += f" (for up to {workload.few} on one CUDA device {words_of(workload.fixed_when_few)})"
        optimizer = workload.optimizer if "train" in workload.modes else "none"
        expected[workload.name] = [*batches, optimizer, workload.memory_format, own]
    assert rows == expected


def test_every_kernel_has_its_row_with_where_it_is_a_default() -> None:
    where = {"any": "everywhere", "cuda": "on CUDA", "cuda-training": "in training on CUDA"}
    owners: dict[str, list[str]] = {}
    defaults: dict[str, list[str]] = {}
    known = {}
    for workload in WORKLOADS.values():
        for kernel in workload.kernels:
            known[kernel.name] = kernel
            owners.setdefault(kernel.name, []).append(workload.name)
            few = f"for up to {workload.few} samples on one CUDA device"
            found = [f"{workload.name} {where.get(kernel.default, few)}"] if kernel.default else []
            defaults.setdefault(kernel.name, []).extend(found)
    expected = {
        name: [", ".join(owners[name]), kernel.mode or "both", ", ".join(defaults[name]) or "none", kernel.help]
        for name, kernel in known.items()
    }
    assert table(SETTINGS_PAGE, "kernel", "workloads", "mode", "default") == expected


def test_the_stated_values_of_the_plain_preset() -> None:
    stated = {name: row[0] for name, row in table(SETTINGS_PAGE, "setting", "with preset=plain").items()}
    workload, machine = WORKLOADS["resnet50"], Machine("cuda", None, CORES)
    fast, plain = workload.defaults({}, machine), workload.defaults({"preset": "plain"}, machine)
    changed = {
        name: SETTINGS[name].show(plain[name]) for name in fast if name in SETTINGS and plain[name] != fast[name]
    }
    changed.pop("preset", None)
    assert stated == changed


def shown(value: Value) -> Value:
    return "on" if value is True else value


def listed(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{key}={shown(value)}" for key, value in settings.items())


def test_the_stated_studies_are_the_studies() -> None:
    expected = {
        name: [study.named, study.data, listed(study.stated), listed(study.assumed)]
        for name, study in PUBLISHED.items()
    }
    assert table(SETTINGS_PAGE, "workload", "study", "data set", "stated", "assumed") == expected
    assert PUBLISHED["vit-h"].assumed == {"batch_size": 16}, "no batch is stated"


def test_every_check_has_its_row() -> None:
    """Names are read from where checks are made, so that a new one cannot be forgotten."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "prony_node").rglob("*.py"))
    made = set(re.findall(r'\b(?:make_)?check\(\s*"([a-z-]+)"', code))
    assert {"steady", "outputs", "swap", "supervisor"} <= made, "the search is broken"
    described = set(table(MEASURING_PAGE, "check", "asks"))
    assert made - described == set()
    assert {name for name in described if f'"{name}"' not in code} == set()


def test_the_stated_stop_rule_is_the_rule() -> None:
    rule, stop = StopRule(), Stop()
    assert (rule.tolerance, rule.min_time_s, rule.max_time_s) == (stop.tolerance, stop.min_time_s, stop.max_time_s)
    for stated in (
        f"| {rule.tolerance:.0%} |".replace("%", " %"),
        f"| {rule.min_time_s:.0f} s |",
        f"({rule.max_time_s:.0f} s, `--max-time`)",
        f"independent blocks in it | at least {rule.min_independent_blocks:.0f} |",
        f"a drift of {rule.drift_limit:.0%} is excluded".replace("%", " %"),
    ):
        assert stated in MEASURING_PAGE

"""What is written by hand about settings and the stop rule is what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from prony_node.contract.checks import CHECKS
from prony_node.contract.machine import Machine
from prony_node.contract.settings import SETTINGS, SEVERAL_ONLY
from prony_node.contract.trial import DATA_SET_ONLY, Stop
from prony_node.stats import StopRule
from prony_node.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
SETTINGS_PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
MEASURING_PAGE = (ROOT / "docs" / "background" / "measuring.md").read_text(encoding="utf-8")
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


def test_the_stated_stop_rule_is_the_rule() -> None:
    rule, stop = StopRule(), Stop()
    assert (rule.tolerance, rule.min_time_s, rule.max_time_s) == (stop.tolerance, stop.min_time_s, stop.max_time_s)
    for stated in (
        f"| {rule.tolerance:.0%} |".replace("%", " %"),
        f"| {rule.min_time_s:.0f} s |",
        f"({rule.max_time_s:.0f} s, `--max-time`)",
        f"independent blocks in it | at least {rule.min_independent_blocks:.0f} |",
    ):
        assert stated in MEASURING_PAGE
    assert CHECKS["steady"].passes == f"a drift of {rule.drift_limit:.0%} is excluded".replace("%", " %")


def test_every_check_that_is_made_has_its_meaning() -> None:
    """Names are read from where checks are made, so that a new one cannot be forgotten."""
    table_file = ROOT / "src" / "prony_node" / "contract" / "checks.py"
    made = [path for path in (ROOT / "src" / "prony_node").rglob("*.py") if path != table_file]
    code = "\n".join(path.read_text(encoding="utf-8") for path in made)
    names = set(re.findall(r'\b(?:make_)?check\(\s*"([a-z-]+)"', code, re.IGNORECASE))
    assert {"steady", "outputs", "swap", "supervisor"} <= names, "the search is broken"
    assert names - set(CHECKS) == set()
    assert {name for name in CHECKS if f'"{name}"' not in code} == set(), "a check that nothing makes"


def test_each_level_that_a_check_is_given_has_its_meaning() -> None:
    """As far as the level stands in the call itself."""
    missing = []
    for path in (ROOT / "src" / "prony_node").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or len(call.args) < 2 or not isinstance(call.func, ast.Name):
                continue
            name = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            if call.func.id not in ("Check", "check", "make_check") or name not in CHECKS:
                continue
            level = call.args[1]
            ways = [level.body, level.orelse] if isinstance(level, ast.IfExp) else [level]
            given = {way.value for way in ways if isinstance(way, ast.Constant)}
            missing += [(name, one) for one in given - {level for level, _ in CHECKS[name].levels()}]
    assert missing == []

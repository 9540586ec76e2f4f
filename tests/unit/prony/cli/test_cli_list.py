"""`prony list`: a line each that fits, and everything about one of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from prony.cli.list import SINGULAR
from prony.cli.main import make_app
from prony.report.numbers import format_si
from prony_node.contract.errors import ParameterError, RequestError
from prony_node.contract.settings import SETTINGS
from prony_node.workloads import WORKLOADS, find_workload

Shown = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    def make(*words: str, columns: int | None = 80) -> str:
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
        done = CliRunner().invoke(make_app("list"), ["list", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return make


def test_the_list_of_workloads_has_a_line_of_80_columns_for_each(shown: Shown) -> None:
    lines = shown("workloads").splitlines()
    for workload in WORKLOADS.values():
        (line,) = [line for line in lines if line.startswith(f"{workload.name} ")]
        assert workload.task in line
        assert line.split()[-1] == workload.unit
        assert not workload.parameters or format_si(workload.parameters, "") in line
    assert len(lines) < len(WORKLOADS) + 8, "one line each, a head and a hint"
    assert max(map(len, lines)) <= 80


def test_every_workload_has_a_task() -> None:
    assert all(workload.task for workload in WORKLOADS.values())


@pytest.mark.parametrize("name", ["resnet50", "gemm", "allreduce", "timm/resnet18"])
def test_a_named_workload_is_shown_with_all_that_is_known_of_it(shown: Shown, name: str) -> None:
    text, workload = " ".join(shown("workloads", name).split()), find_workload(name)
    facts = [workload.help, workload.source, workload.flops_source, workload.library]
    facts += [f"{setting.name}: {setting.help}" for setting in workload.own_settings()]
    facts += [f"{kernel.name}: {kernel.help}" for kernel in workload.kernels]
    assert not [fact for fact in facts if fact not in text]
    assert f"{workload.batch[f'{workload.modes[0]}/accelerator']} on an accelerator" in text


@pytest.mark.parametrize("what", [*SINGULAR])
def test_a_line_fits_and_its_name_is_whole(shown: Shown, what: str) -> None:
    text, entries = shown(what), json.loads(shown(what, "--json"))
    assert max(map(len, text.splitlines())) <= 80 or what == "plugins"
    begun = [line.split()[0] for line in text.splitlines()]
    assert not [entry["name"] for entry in entries if entry["name"] not in begun and what != "plugins"]


def test_a_file_gets_the_whole_line(shown: Shown) -> None:
    text = shown("settings", columns=None)
    assert not [setting.help for setting in SETTINGS.values() if setting.help not in text]


@pytest.mark.parametrize(
    ("what", "name"), [("workloads", "resnet50"), ("settings", "precision"), ("kernels", "folded-stem"),
                       ("suites", "quick"), ("studies", "caraml")],
)  # fmt: skip
def test_json_of_a_name_is_its_entry_in_the_list(shown: Shown, what: str, name: str) -> None:
    (listed,) = [entry for entry in json.loads(shown(what, "--json")) if entry["name"] == name]
    assert json.loads(shown(what, name, "--json")) == listed
    text = " ".join(shown(what, name).split())
    assert text.startswith(f"{name} {' '.join(listed['help'].split())}")


@pytest.mark.parametrize(
    ("what", "name", "hint"), [("workloads", "resnet5", "resnet50"), ("settings", "precison", "precision"),
                               ("kernels", "folded", "folded-stem"), ("suites", "quik", "quick")],
)  # fmt: skip
def test_a_name_that_is_not_there_gets_the_nearest(what: str, name: str, hint: str) -> None:
    from prony.cli.list import list_

    with pytest.raises((RequestError, ParameterError), match=f"did you mean '{hint}'"):
        list_(what, name)

"""What installed packages add, read from their metadata: found, loaded, refused with the package's name, and hashed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.sites.protocol import make_launcher
from prony.study.request import check_target
from prony_node.contract import Plan, RequestError, Trial, plugins
from prony_node.facts import software_facts
from prony_node.facts.software import fingerprint
from prony_node.power.sensor import open_readers, reader_names
from prony_node.run.questions import fingerprint_for
from prony_node.workloads import find_workload, workload_of

Install = Callable[..., Path]
WORKLOAD = """\
from prony_node.workloads.config import Workload
THING = Workload(
    name="thing", help="a thing", module="{package}", unit="images", parameters=None, source="a test",
    batch={{"train/cpu": 1, "infer/cpu": 1}}, memory_gib={{}},
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A package as pip leaves it: a module, and metadata with its entry points."""

    def put(package: str, group: str, name: str, code: str, attribute: str = "THING") -> Path:
        place = tmp_path / package
        place.mkdir()
        module = place / f"{package}.py"
        module.write_text(code.format(package=package))
        about = place / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {package}:{attribute}\n")
        (about / "RECORD").write_text(f"{package}.py,,\n{package}-1.0.dist-info/METADATA,,\n")
        monkeypatch.syspath_prepend(str(place))
        sys.modules.pop(package, None)  # of an earlier test
        forget()
        return module

    yield put
    monkeypatch.undo()
    forget()


def forget() -> None:
    plugins.installed.cache_clear()
    plugins.installed_code.cache_clear()


def test_a_workload_of_a_package_is_found_by_its_name(install: Install) -> None:
    install("thing_package", plugins.WORKLOADS, "thing", WORKLOAD)
    assert find_workload("thing").help == "a thing"
    check_target("thing", ())
    with pytest.raises(RequestError, match="did you mean 'thing'"):
        find_workload("thinq")


def test_a_package_that_cannot_be_imported_costs_its_own_things_alone(install: Install) -> None:
    install("broken_package", plugins.WORKLOADS, "thing", "import a_library_that_is_not_here\n")
    with pytest.raises(
        RequestError, match=r"the workload thing is of the package broken-package 1\.0, which cannot be loaded: Module"
    ):
        find_workload("thing")
    assert find_workload("gpt-tiny").name == "gpt-tiny"
    listed = CliRunner().invoke(make_app("list"), ["list", "workloads", "--json"])
    assert listed.exit_code == 0
    assert "broken-package 1.0" in listed.stderr
    assert "thing" not in [entry["name"] for entry in json.loads(listed.stdout)]
    (entry,) = json.loads(CliRunner().invoke(make_app("list"), ["list", "plugins", "--json"]).stdout)
    assert (entry["package"], entry["adds"], entry["name"]) == ("broken-package", "workload", "thing")
    assert "a_library_that_is_not_here" in entry["refused"]


def test_a_package_that_ends_the_program_is_refused_like_one_that_raises(install: Install) -> None:
    install("rude_package", plugins.WORKLOADS, "thing", "import sys\nsys.exit(3)\n")
    with pytest.raises(plugins.PluginError, match="SystemExit: 3"):
        find_workload("thing")


def test_a_thing_of_another_kind_or_name_is_refused(install: Install) -> None:
    install("odd_package", plugins.WORKLOADS, "thing", "THING = 7\n")
    with pytest.raises(plugins.PluginError, match=r"odd_package:THING of the package odd-package 1\.0 is no Workload"):
        find_workload("thing")


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    install("first_package", plugins.WORKLOADS, "thing", WORKLOAD)
    install("second_package", plugins.WORKLOADS, "thing", WORKLOAD)
    with pytest.raises(RequestError, match=r"first-package 1\.0.*second-package 1\.0|second.*and first-package"):
        find_workload("thing")


def test_a_package_does_not_take_the_name_of_one_of_ours(install: Install) -> None:
    install("thief", plugins.WORKLOADS, "gpt-tiny", "import a_library_that_is_not_here\n")
    assert find_workload("gpt-tiny").module.startswith("prony_node.")
    install("thief_of_sensors", plugins.POWER_READERS, "rapl", "import a_library_that_is_not_here\n")
    assert "thief" not in reader_names()["rapl"]


def test_metadata_that_cannot_be_read_hides_no_other_package(install: Install, tmp_path: Path) -> None:
    install("thing_package", plugins.WORKLOADS, "thing", WORKLOAD)
    module = install("garbage", plugins.WORKLOADS, "other", WORKLOAD)
    (module.parent / "garbage-1.0.dist-info" / "entry_points.txt").write_text("[prony.workloads\n= = =\nprony.\n")
    (module.parent / "garbage-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe")
    forget()
    assert find_workload("thing").name == "thing"


def test_a_power_reader_that_fails_leaves_a_reason_that_names_its_package(install: Install) -> None:
    install("sensor_package", plugins.POWER_READERS, "meter", "def THING(root):\n    raise OSError('no bus')\n")
    assert reader_names()["meter"] == "of the package sensor-package 1.0"
    assert "no bus" in open_readers(["meter"]).reasons["meter"]
    install("lost_package", plugins.POWER_READERS, "lost", "import a_library_that_is_not_here\n")
    assert "the package lost-package 1.0" in open_readers(["lost"]).reasons["lost"]


def test_a_launcher_of_a_package_is_made_for_its_kind_of_site(install: Install) -> None:
    install("queue_package", plugins.LAUNCHERS, "queue", "class THING:\n    def __init__(self, warn):\n        pass\n")
    assert type(make_launcher("queue", print)).__module__ == "queue_package"
    with pytest.raises(RequestError, match="unknown launcher 'quoue'; did you mean 'queue'"):
        make_launcher("quoue", print)


def test_what_is_not_installed_where_the_run_is_made_is_said(install: Install) -> None:
    with pytest.raises(RequestError, match=r"unknown workload 'thing'.*the plug-in that adds it is not installed in /"):
        workload_of(Plan(run_id="thing-1", trial=Trial("thing", {})))


def test_two_codes_are_two_things(install: Install) -> None:
    """The hash is of the files, so that an edit of an installed file is seen although the version stays."""
    module = install("thing_package", plugins.WORKLOADS, "thing", WORKLOAD)
    before, others = fingerprint_for("thing"), fingerprint()
    assert before.parts["plugin_thing-package"].startswith("1.0 ")
    assert "plugin_thing-package" not in others.parts, "runs of other workloads do not depend on it"
    assert fingerprint_for("thing").software == before.software != others.software
    (facts,) = software_facts().plugins
    assert facts.package == "thing-package"
    assert facts.adds == ("workload thing",)
    module.write_text(module.read_text() + "# edited\n")
    forget()
    assert fingerprint_for("thing").software != before.software
    assert software_facts().plugins[0].sha256 != facts.sha256


def test_code_that_reads_power_is_part_of_every_run(install: Install) -> None:
    before = fingerprint()
    install("sensor_package", plugins.POWER_READERS, "meter", "def THING(root): ...\n")
    after = fingerprint()
    assert after.parts["plugin_sensor-package"].startswith("1.0 ")
    assert after.software != before.software

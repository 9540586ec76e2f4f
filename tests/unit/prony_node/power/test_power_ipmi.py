"""The reader of the management controller against an ipmitool that writes what the real one's source prints.

If these fail, a controller that does not measure is believed, or a user is not told why nothing was read.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import put_program, write_tree

from prony_node.power.readers import ipmi
from prony_node.power.readers.ipmi import open_reader, parse_reading
from prony_node.power.sensor import PowerReader, SensorLost, Unavailable

ANSWER = """
    Instantaneous power reading:                   220 Watts
    Minimum during sampling period:                 68 Watts
    Maximum during sampling period:                504 Watts
    Average power reading over sample period:      348 Watts
    IPMI timestamp:                           Thu Feb 15 08:36:01 2024
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated

"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "root", {"/dev/ipmi0": ""})


def answers(monkeypatch: pytest.MonkeyPatch, root: Path, text: str) -> None:
    put_program(monkeypatch, root.parent / "bin", "ipmitool", f"sys.stdout.write({text!r})")


def test_the_power_now_is_read_and_not_a_mean_over_weeks(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"assert sys.argv[1:] == ['dcmi', 'power', 'reading'] and os.environ['LC_ALL'] == 'C'\nprint({ANSWER!r})"
    put_program(monkeypatch, node.parent / "bin", "ipmitool", body)
    reader: PowerReader = open_reader(node)
    (sensor,) = reader.sensors
    assert reader.read(sensor) == 220.0
    assert (sensor.kind, sensor.scope, sensor.part, sensor.privileged) == ("instantaneous", "node", "node", True)
    assert (sensor.period_s, sensor.window_s, sensor.uncertainty) == (None, None, None)
    assert reader.busy("node") is None
    reader.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ANSWER.replace(" activated", " deactivated"), "deactivated"),
        (ANSWER.replace(" 220 ", " 0 "), "0 W"),
        (ANSWER.replace(" 220 ", " N/A "), "gave no power"),
        ("", "gave no power"),
    ],
)
def test_a_controller_that_does_not_measure_is_not_believed(text: str, says: str) -> None:
    with pytest.raises(SensorLost, match=says):
        parse_reading(text)


def test_without_the_device_the_modules_are_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="ipmi_devintf"):
        open_reader(tmp_path)


def test_without_ipmitool_the_reason_says_to_install_it(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(node))
    with pytest.raises(Unavailable, match="install ipmitool"):
        open_reader(node)


@pytest.mark.parametrize(
    ("complaint", "says"),
    [
        ("Could not open device at /dev/ipmi0 or /dev/ipmi/0: Permission denied", "is for root"),
        ("DCMI request failed because: Invalid command (c1)", "does not offer DCMI"),
    ],
)
def test_a_refusal_says_what_would_help(node: Path, monkeypatch: pytest.MonkeyPatch, complaint: str, says: str) -> None:
    put_program(monkeypatch, node.parent / "bin", "ipmitool", f"sys.exit({complaint!r})")
    with pytest.raises(Unavailable, match=says):
        open_reader(node)


def test_a_controller_that_stops_answering_is_lost(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, node, ANSWER)
    reader = open_reader(node)
    put_program(monkeypatch, node.parent / "bin", "ipmitool", "sys.exit('Error: no response')")
    with pytest.raises(SensorLost, match="no response"):
        reader.read(reader.sensors[0])


def test_one_that_hangs_is_given_up(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(monkeypatch, node.parent / "bin", "ipmitool", "time.sleep(60)")
    monkeypatch.setattr(ipmi, "TIMEOUT_S", 0.2)
    with pytest.raises(Unavailable, match="no answer within"):
        open_reader(node)

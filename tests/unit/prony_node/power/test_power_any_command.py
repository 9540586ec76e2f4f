"""Energy for any command: what is asked for, what is printed, and what is said where there is no figure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import Rate, Rates
from prony_node.power import any_command
from prony_node.power.account import (
    BLOCKS,
    Account,
    Terminal,
    account_json,
    account_lines,
    bars,
    columns,
    make_account,
    plain,
)
from prony_node.power.any_command import CommandEnd, NotStarted, check_command, check_out
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor

GPU = "GPU-5f1c0a3e-0000-4000-8000-000000000001"
COUNTER = Sensor(
    "made.energy " + GPU, "made", "counter", "gpu", GPU, "Made GPU, counter", period_s=0.1, uncertainty=0.05
)
POWER = Sensor("made.power " + GPU, "made", "instantaneous", "gpu", GPU, "Made GPU, power", period_s=0.05)


def record(folder: Path, *, until_s: float = 14.0, counter_from_s: float = 0.0, **about: Any) -> Path:
    """A made-up GPU at 200 W from 0 s, read every 50 ms; its counter ticks every 100 ms."""
    writer = Writer(folder, [COUNTER, POWER], {"reasons": {}, "busy_at_start": {GPU: ""}, **about})
    for number in range(int(until_s / 0.05)):
        at_s = 0.05 * number
        if at_s >= counter_from_s:
            writer.add(COUNTER, [Reading(at_s, at_s + 1e-4, 20.0 * (number // 2))])
        writer.add(POWER, [Reading(at_s, at_s + 1e-4, 200.0)])
    writer.close()
    return folder


def printed(account: Account, rates: Rates | None = None, **screen: Any) -> str:
    return "\n".join(account_lines(account, "sleep", rates or Rates(), Terminal(None, **screen)))


def test_the_figures_of_a_span_and_what_the_ticks_do_not_cover(tmp_path: Path) -> None:
    account = make_account(record(tmp_path), 2.0, 12.0)
    assert account.node is not None
    assert account.node.power_w == pytest.approx(200.0, rel=0.02)
    assert account.node.how == "sum of devices, a lower bound"
    assert account.node.seconds < 10.0, "a counter knows from its first tick to its last"
    text = printed(account, Rates(Rate(380.0, "g"), Rate(0.3, "EUR")))
    for expected in (
        "Made GPU GPU-5f1c0a3e",
        "lower bound",
        "source: made.energy (counter",
        "scope: gpu",
        f"window: covers {account.node.seconds:.2f} s of 10.00 s",
        "ticks: ±",
        "agreement: made.power",
        "drift: the power changed by",
        "throttling: no reader here tells it [unknown]",
        "foreign processes: none seen at the start",
        "devices: 1 of 1",
        "at 380 g/kWh",
        "at 0.3 EUR/kWh",
        "200 to 200 W (made.power)",
    ):
        assert expected in text
    assert "200 W" in text.splitlines()[3], "idle power before it"


def test_nothing_is_scaled_to_what_was_not_covered(tmp_path: Path) -> None:
    account = make_account(record(tmp_path, counter_from_s=7.0), 2.0, 12.0)
    document = account_json(account, {}, Rates())
    assert document["parts"][0]["energy_j"] == pytest.approx(1000.0, rel=0.05)
    assert any(check["name"] == "energy-span" and check["level"] == "warn" for check in document["checks"])


def test_carbon_and_money_are_off_unless_given(tmp_path: Path) -> None:
    account = make_account(record(tmp_path), 2.0, 12.0)
    assert "kWh" not in printed(account)
    document = account_json(account, {"command": ["sleep"]}, Rates())
    assert document["carbon"] is None
    assert document["price"] is None
    assert document["schema"] == "prony.energy/1"
    files.to_json(document)


def test_under_two_seconds_there_is_no_figure_and_one_reason(tmp_path: Path) -> None:
    account = make_account(record(tmp_path), 2.0, 3.5)
    assert account.node is None
    assert account.why_nothing() == "it took 1.5 s, and under 2 s there is no energy figure"
    text = printed(account, Rates(Rate(380.0, "g")))
    assert "no figure: it took 1.5 s" in text
    assert "carbon: unknown" in text


def test_without_a_sensor_each_reader_says_why(tmp_path: Path) -> None:
    Writer(tmp_path, [], {"reasons": {"nvidia": "no driver " * 30, "rapl": "not readable", "replay": "none"}}).close()
    text = printed(make_account(tmp_path, 0.0, 5.0))
    assert "no energy figure: no power sensor answers here:" in text
    assert "  rapl    not readable" in text
    assert "replay" not in text, "nobody misses a recording"
    assert max(map(len, text.splitlines())) <= 80


def test_without_a_recording_the_sampler_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / files.POWER_LOG).write_text("Traceback\nOSError: no space\n")
    account = make_account(tmp_path, 0.0, 5.0)
    assert account.reason == "the sampler did not start: OSError: no space"


@pytest.mark.parametrize(
    "content", ["{}", '{"schema": "prony.power/99"}', '{"schema": "prony.power/1", "sensors": [1]}']
)
def test_a_recording_that_cannot_be_read_is_a_reason(tmp_path: Path, content: str) -> None:
    (tmp_path / files.POWER).write_text(content)
    account = make_account(tmp_path, 0.0, 5.0)
    assert account.reason
    assert account.node is None


def test_a_sensor_that_went_away_leaves_its_reason(tmp_path: Path) -> None:
    account = make_account(record(tmp_path, until_s=3.0), 4.0, 12.0)
    assert account.node is None
    assert "0 times" in account.why_nothing()


def test_throttling_and_foreign_processes_as_the_sampler_counted_them(tmp_path: Path) -> None:
    conditions = {GPU: {"throttle": {"power limit": 0.4}, "processes_seen": 2, "samples": 10}}
    account = make_account(record(tmp_path, conditions=conditions, busy_at_start={GPU: "30 % utilised"}), 2.0, 12.0)
    text = printed(account, width=120)
    assert "throttling: power limit in 40 % of samples" in text
    assert "foreign processes: at the start: 30 % utilised; at most 2 on it at once" in text
    assert "idle power: unknown, it was not idle before the run" in text


def test_a_terminal_that_knows_ascii_alone_gets_ascii(tmp_path: Path) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    screen = Terminal.of(stream)
    assert not screen.unicode
    screen.say(*account_lines(make_account(record(tmp_path), 2.0, 12.0), "sleep", Rates(), screen))
    stream.seek(0)
    assert "+- " in stream.read()


def test_nobody_there_to_read_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    Terminal(stream).say("text")
    Terminal.of(None).say("text")


def test_bars_start_at_zero_and_a_hole_is_blank() -> None:
    assert bars([0.0, 50.0, 100.0, None], 100.0, 1, BLOCKS) == ["▁▄█ "]
    assert bars([50.0, 100.0], 100.0, 2, BLOCKS) == [" █", "██"]
    points = [(0.1 * number, 10.0) for number in range(20)] + [(8.0 + 0.1 * number, 20.0) for number in range(20)]
    values = columns(points, 0.0, 10.0, 20)
    assert values[0] == 10.0
    assert values[-1] == 20.0
    assert None in values[6:15]


@pytest.mark.parametrize(
    ("value", "text"), [(0.00006767, "0.00006767"), (12.3456, "12.35"), (0.0, "0"), (98765.4, "98765")]
)
def test_amounts_have_no_exponent(value: float, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(("text", "seconds"), [("50ms", 0.05), ("0.1s", 0.1), ("2", 2.0), (" 10 ms ", 0.01)])
def test_intervals(text: str, seconds: float) -> None:
    assert any_command.parse_interval(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--interval", "1ms", "true"], "the nearest is 10ms"),
        (["--interval", "2h", "true"], "such as 50ms"),
        (["--readers", "nvida", "true"], "did you mean 'nvidia'?"),
        (["--intervall=5", "true"], "did you mean --interval?"),
        (["--price", "0,3", "true"], "did you mean 0.3?"),
        ([], "no command"),
        (["--"], "no command"),
        (["--watch", "--", "true"], "runs no command"),
        (["--json", "/nowhere/at/all.json", "true"], "there is no folder"),
    ],
)
def test_a_wrong_request_is_a_sentence_before_anything_starts(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any_command.main(words) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert not out


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    check_out(tmp_path)
    (tmp_path / files.POWER).touch()
    with pytest.raises(RequestError, match="holds a measurement already"):
        check_out(tmp_path)


@given(st.lists(st.sampled_from(["--out", "x", "--", "--watch", "--json=f", "-v", "cmd", "", "-"]), max_size=8))
def test_no_word_of_a_command_is_lost(words: list[str]) -> None:
    own, command = any_command.split(words)
    assert [*own, *command] == words or [*own, "--", *command] == words


def test_what_a_shell_would_not_find_has_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    for name, code in (
        ("absent", 127),
        ("plain", 126),
        (str(tmp_path / "absent"), 127),
        (str(tmp_path), 126),
        ("", 127),
    ):
        with pytest.raises(NotStarted) as no:
            check_command([name])
        assert no.value.code == code, name
    (tmp_path / "plain").chmod(0o755)
    check_command(["plain"])


def test_how_a_command_ended_in_words() -> None:
    assert str(CommandEnd(3, None, 0.0, 1.0)) == "exit 3"
    assert str(CommandEnd(None, 15, 0.0, 1.0)) == "ended by SIGTERM"
    assert str(CommandEnd(None, 40, 0.0, 1.0)) == "ended by signal 40"

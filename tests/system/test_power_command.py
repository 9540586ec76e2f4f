"""`prony power -- COMMAND` for real: the command is as if nobody stood before it, and no sampler stays behind.

The machine is a recording of a made-up GPU, synthesised here.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from power_place import PATIENCE_S, PRONY, Place, wait_for


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_bytes_pass_unchanged_and_nothing_of_ours_is_among_them(place: Place) -> None:
    data = bytes(range(256)) * 500
    done = place.power("--json", "figures.json", "--", sys.executable, "-c", COPY, input=data)
    assert done.returncode == 0
    assert done.stdout == data
    assert done.stderr.startswith(b"its own words\n")
    is_short = json.loads((place.here / "figures.json").read_text())["seconds"] < 2.0  # else the machine was held up
    assert (b"under 2 s there is no energy figure" in done.stderr) == is_short


COPY = "import sys; sys.stderr.write('its own words\\n'); sys.stdout.buffer.write(sys.stdin.buffer.read())"


def test_the_figures_on_stderr_and_in_files(place: Place) -> None:
    more = ("--out", "kept", "--json", "figures.json", "--carbon", "380", "--price", "0.31EUR")
    done = place.power(*more, "sleep", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    text = done.stderr.decode()
    for expected in ("Made GPU", "lower bound", "ticks: ", "covers ", "g CO2e", "EUR", "█"):
        assert expected in text
    document = json.loads((place.here / "figures.json").read_text())
    assert document == json.loads((place.here / "kept" / "energy.json").read_text())
    assert document["schema"] == "prony.energy/1"
    assert document["command"] == ["sleep", "5"]
    assert document["exit"] == {"code": 0, "signal": None}
    node = document["node"]
    assert 2.0 <= node["seconds"] <= document["seconds"]
    # A sampler that is held up reads late: then the uncertainty says so.
    assert abs(node["energy_j"] - 200.0 * node["seconds"]) <= max(1.5 * node["uncertainty_j"], 0.06 * node["energy_j"])
    assert document["carbon"]["value_g"] == pytest.approx(node["energy_j"] / 3.6e6 * 380)
    assert {"power.json", "power.csv", "energy.json"} <= {path.name for path in (place.here / "kept").iterdir()}
    again = place.power("--out", "kept", "touch", "ran")
    assert again.returncode == 2
    assert not (place.here / "ran").exists(), "a wrong request starts nothing"


def test_exit_codes_are_those_of_the_command_or_of_a_shell(place: Place) -> None:
    done = place.power("--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    kept = list((place.here / "runs").glob("power-*/energy.json"))
    assert json.loads(kept[0].read_text())["exit"]["code"] == 3
    done = place.power("--", "no-such-command")
    assert done.returncode == 127
    assert b"no such command" in done.stderr
    (place.here / "plain").touch()
    assert place.power("./plain").returncode == 126
    (place.here / "script").write_text("exit 5\n")
    (place.here / "script").chmod(0o755)
    assert place.power("./script").returncode == 5, "a script without a first line, as a shell runs it"


def test_the_command_gets_the_environment_and_the_open_files_that_we_were_given(place: Place) -> None:
    show = "import os; print(sorted(os.environ.items())); print(os.read(int(os.environ['EXTRA']), 9))"
    results = []
    ours, theirs = os.pipe()
    place.environment["EXTRA"] = str(ours)
    for words in ([sys.executable], [*PRONY, "--", sys.executable]):
        os.write(theirs, b"extra fd")
        results.append(place.run([*words, "-c", show], pass_fds=[ours]).stdout)
    os.close(ours)
    os.close(theirs)
    assert b"extra fd" in results[0]
    assert results[0] == results[1]


def test_a_signal_is_handed_on_and_death_by_one_is_seen(place: Place) -> None:
    trap = "trap 'echo got it; exit 9' TERM; echo up; while :; do sleep 0.05; done"
    with place.start("--", "sh", "-c", trap) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.stdout.read() == b"got it\n"
    assert process.returncode == 9
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGKILL):
        with place.start("--", "sh", "-c", f"echo up; kill -{number.value} $$; sleep 30") as process:
            process.communicate(timeout=60)
        assert process.returncode == -number
    with place.start("--", "sh", "-c", "echo up; exec sleep 30") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGHUP
    assert b"ended by SIGHUP" in err


COUNTING = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("up", flush=True)
end = time.monotonic() + 20
while not seen and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1.0)
print("interrupted", len(seen), flush=True)
sys.exit(4)
"""


def test_control_c_reaches_the_command_once_and_it_decides(place: Place) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place.here)
        os.execve(PRONY[0], [*PRONY, "--", sys.executable, "-c", COUNTING], place.environment)
    text, is_sent = b"", False
    while select.select([terminal], [], [], PATIENCE_S)[0]:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the terminal is gone with its last process
            break
        text += piece
        if not piece:
            break
        if b"up" in text and not is_sent:
            is_sent = True
            os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert b"interrupted 1\r\n" in text
    assert b"exit 4" in text


def test_an_interrupt_of_the_whole_group_ends_both(place: Place) -> None:
    with place.start("--", "sh", "-c", "echo up; exec sleep 30") as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert wait_for(lambda: not place.samplers())


def test_without_a_sensor_the_command_runs_and_why_is_said(place: Place) -> None:
    place.without_sensor()
    done = place.power("--json", "figures.json", "sh", "-c", "echo done; exit 6")
    assert (done.returncode, done.stdout) == (6, b"done\n")
    assert b"no power sensor answers here" in done.stderr
    assert not (place.here / "runs").exists() or not list((place.here / "runs").iterdir())
    document = json.loads((place.here / "figures.json").read_text())
    assert document["node"]["energy_j"] is None
    assert document["node"]["reason"] == "no power sensor answers here"


def test_a_folder_that_cannot_be_written_costs_the_samples_alone(place: Place) -> None:
    (place.here / "file").touch()
    done = place.power("--out", "file/below", "sh", "-c", "sleep 5; exit 3")
    assert done.returncode == 3
    assert b"the samples are not kept" in done.stderr
    assert b" J " in done.stderr, "the figures are there all the same"
    assert list(place.tmp.iterdir()) == []


def test_a_full_disk_costs_no_exit_code(place: Place) -> None:
    """A limit on the size of files stands for the disk: the sampler's file cannot grow any more."""
    limited = f"ulimit -f 4; exec {shlex.join([*PRONY, '--out', 'full', 'sh', '-c', 'sleep 5; exit 3'])}"
    done = place.run(["sh", "-c", limited])
    assert done.returncode == 3
    assert b"cannot be written: File too large" in done.stderr
    with Path("/dev/full").open("wb") as nowhere:
        assert place.power("sh", "-c", "exit 4", stderr=nowhere).returncode == 4


def test_killed_without_mercy_it_leaves_no_sampler(place: Place) -> None:
    with place.start("--", "sh", "-c", "echo up; exec sleep 30") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(place.samplers()) == 1
        process.kill()
        process.wait(30)
        assert wait_for(lambda: not place.samplers())
        os.killpg(process.pid, signal.SIGKILL)  # the command, an orphan now


def test_interrupted_before_the_command_began_nothing_is_left(place: Place) -> None:
    """An idle device is looked at for a second first; whoever gives up then finds no trace."""
    described = Path(place.environment["PRONY_POWER_REPLAY"]) / "power.json"
    described.write_text(described.read_text().replace("90 % utilised", ""))
    for _ in range(5):
        shutil.rmtree(place.here / "runs", ignore_errors=True)
        with place.start("--", "touch", "ran") as process:
            assert wait_for(lambda: bool(list(place.here.glob("runs/*/power.csv"))))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        if process.returncode:
            break
        (place.here / "ran").unlink()  # we were held up for longer than that second: it began, and ended well
    assert process.returncode == -signal.SIGINT
    assert not (place.here / "ran").exists()
    assert list((place.here / "runs").iterdir()) == []
    assert wait_for(lambda: not place.samplers())

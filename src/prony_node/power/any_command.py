"""`prony power`: the energy of any command in the foreground, or live power of this machine's devices."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import resource
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from prony_node.contract import files
from prony_node.contract.cache import private_folder
from prony_node.contract.errors import RequestError, nearest, signal_name, unknown
from prony_node.contract.metrics import Rates, find_rates
from prony_node.contract.safe_files import NotPlain, is_in_shared, redacted_command, who_can_replace, write_alone
from prony_node.power.account import (
    BLOCKS,
    ENERGY,
    LETTERS,
    SILENT,
    Account,
    Terminal,
    account_json,
    account_lines,
    bars,
    columns,
    make_account,
    reason_lines,
)
from prony_node.power.figures import ORDER
from prony_node.power.recording import SamplerProcess
from prony_node.power.sampler import ReaderThread
from prony_node.power.sensor import PowerReader, Reading, Sensor, open_readers, reader_names

# Live power of this machine's devices: a line each, in place on a terminal, a line a second elsewhere.


REFRESH_S, LINE_EVERY_S = 0.5, 1.0
MEMORY_S = 60.0  # of the small curve
CURVE = 24
UP, CLEAR = "\x1b[{}A", "\x1b[2K"


@dataclass
class LivePart:
    """What is known of one part now."""

    name: str
    sensor: Sensor
    limit_w: float | None = None
    points: deque[tuple[float, float]] = field(default_factory=deque)
    counted: Reading | None = None
    lost: str = ""

    def add(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            if self.sensor.kind != "counter":
                self.points.append((reading.after_s, reading.value))
            else:
                self._tick(reading)
        while self.points and self.points[0][0] < self.points[-1][0] - MEMORY_S:
            self.points.popleft()
        self.lost = ""

    def _tick(self, reading: Reading) -> None:
        """The mean power since the counter last moved on; after a reset it begins anew."""
        last = self.counted
        if last is None or reading.value < last.value:
            self.counted = reading
        elif reading.value > last.value and reading.after_s - last.after_s >= (self.sensor.period_s or 0.0):
            watts = (reading.value - last.value) / (reading.after_s - last.after_s)
            self.points.append((reading.after_s, watts))
            self.counted = reading


class Live:
    """Keeps the newest readings of the best sensor of each part."""

    def __init__(self, readers: list[PowerReader]) -> None:
        self.parts: dict[str, LivePart] = {}
        self.shown = 0  # lines on the terminal
        for reader in readers:
            limit = getattr(reader, "limit_w", None)
            for sensor in reader.sensors:
                known = self.parts.get(sensor.part)
                if known is None or _rank(sensor) < _rank(known.sensor):
                    limit_w = limit(sensor.part) if limit else None
                    self.parts[sensor.part] = LivePart(_name(sensor), sensor, limit_w)

    def add(self, sensor: Sensor, readings: Iterable[Reading]) -> None:
        part = self.parts[sensor.part]
        if part.sensor == sensor:
            part.add(readings)

    def note(self, sensor: Sensor, at_s: float, text: str) -> None:
        part = self.parts[sensor.part]
        if part.sensor == sensor:
            part.lost = text if text.startswith("it does not") else ""


def _rank(sensor: Sensor) -> tuple[int, float]:
    """A quick power sensor before a slow one, and a counter last."""
    return ORDER.get(sensor.kind, len(ORDER)), sensor.period_s or 0.1


def _name(sensor: Sensor) -> str:
    label = sensor.label.partition(",")[0]
    short = sensor.part if len(sensor.part) <= 16 else sensor.part[:12]
    return label if sensor.part in label or sensor.scope == "node" else f"{label} {short}"


def watch(names: list[str], interval_s: float) -> int:
    """Show until interrupted. The exit code: 1 when there is nothing to show."""
    try:
        opened = open_readers(names)
        if opened.readers:
            return _watch(opened.readers, interval_s)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # whoever read it has seen enough
        sys.stdout = None
        return 0
    screen = Terminal.of(sys.stderr)
    reasons = {name: why for name, why in opened.reasons.items() if name not in SILENT or name in names}
    screen.say(*reason_lines("prony power: no power sensor answers here", reasons, screen))
    return 1


def _watch(readers: list[PowerReader], interval_s: float) -> int:
    live, lock = Live(readers), threading.Lock()
    threads = [ReaderThread(reader, live, lock, interval_s) for reader in readers]
    for thread in threads:
        thread.start()
    in_place = sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
    try:
        while True:
            _show(live, lock, in_place=in_place)
    finally:
        for thread in threads:
            thread.stop.set()


def _show(live: Live, lock: threading.Lock, *, in_place: bool) -> None:
    time.sleep(REFRESH_S if in_place else LINE_EVERY_S)
    screen = Terminal.of(sys.stdout)  # the window may have another size by now
    with lock:
        lines = [line(part, screen, time.monotonic(), curve=in_place) for part in live.parts.values()]
    if in_place:
        sys.stdout.write(UP.format(live.shown) if live.shown else "")
        sys.stdout.write("".join(f"{CLEAR}{one[: screen.width - 1]}\n" for one in lines))
        live.shown = len(lines)
    else:
        moment = datetime.now().strftime("%H:%M:%S")
        sys.stdout.write("".join(f"{moment}  {one}\n" for one in lines))
    sys.stdout.flush()


def line(part: LivePart, screen: Terminal, now_s: float, *, curve: bool) -> str:
    """One part now: its power, where that stands, and on a terminal what it was in the last minute."""
    if part.lost or not part.points:
        return f"{part.name}  {part.lost or 'no reading yet'}"
    values = [power_w for _, power_w in part.points]
    text = f"{part.name}  {values[-1]:7.1f} W"
    if part.limit_w:
        text += f" of {part.limit_w:.0f} W"
    if curve and len(values) >= 2:
        marks = BLOCKS if screen.unicode else LETTERS
        recent = columns(list(part.points), now_s - MEMORY_S, now_s, CURVE)
        drawn = bars(recent, part.limit_w or max(values), 1, marks)[0]
        return f"{text}  {drawn}  {min(values):.0f} to {max(values):.0f} W in 60 s"
    return f"{text}  ({part.sensor.id.partition(' ')[0]})"


# `prony power -- COMMAND`: its options, the command in the foreground, and its energy.
#
# The command keeps its streams, files, terminal, signals and exit code, as if it ran alone. It stays in our process
# group, so that it gets what the terminal sends (Ctrl-C, Ctrl-Z, a new window size). Signals that another process
# sends to us are passed on, as sudo does. A signal sent to the whole group then arrives twice, which is better than
# not at all.


NOT_EXECUTABLE, NOT_FOUND = 126, 127
# What a fault raises is about ourselves, and the others stop us by default, as the terminal means it.
OUR_OWN = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS,
    signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE,
}  # fmt: skip
HANDED_ON = signal.valid_signals() - OUR_OWN - {signal.SIGCHLD}
IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]


class NotStarted(Exception):
    """The command cannot be had; a shell has an exit code for it."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended, and when it ran, by the monotonic clock."""

    code: int | None  # None when a signal ended it
    signal: int | None
    start_s: float
    end_s: float

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit {self.code}"
        return f"ended by {signal_name(self.signal)}"


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that a shell would not find, before anything is started for it."""
    name = words[0]
    if "/" in name:
        path = Path(name)
        if not path.exists():
            raise NotStarted(NOT_FOUND, f"{name}: there is no such file")
        if path.is_dir() or not os.access(path, os.X_OK):
            raise NotStarted(NOT_EXECUTABLE, f"{name}: it is {'a folder' if path.is_dir() else 'not executable'}")
    elif shutil.which(name) is None:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        if any((Path(folder) / name).is_file() for folder in folders if folder and name):
            raise NotStarted(NOT_EXECUTABLE, f"{name}: it is on the PATH, but not executable")
        raise NotStarted(NOT_FOUND, f"{name or repr(name)}: there is no such command on the PATH")


def run_in_foreground(words: Sequence[str]) -> CommandEnd:
    """Run the command to its end. Signals stay blocked for us afterwards: what remains to be done takes a moment."""
    waited = HANDED_ON | {signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored no child can be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        start_s = time.monotonic()
        child = _start(words, before)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    while True:
        sent = signal.sigwaitinfo(waited)
        if sent.si_signo != signal.SIGCHLD:
            if sent.si_code <= 0 and sent.si_pid != child:  # from a process, and not from the command itself
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, sent.si_signo)
            continue
        done, status = os.waitpid(child, os.WNOHANG)
        if done == child:
            code = os.waitstatus_to_exitcode(status)
            return CommandEnd(code if code >= 0 else None, -code if code < 0 else None, start_s, time.monotonic())


def _start(words: Sequence[str], mask: set[signal.Signals] | set[int]) -> int:
    """The pid of the command. posix_spawn leaves open what the caller left open for it, as exec would."""
    try:
        return _spawn(words, mask)
    except FileNotFoundError as error:
        raise NotStarted(NOT_FOUND, f"{words[0]}: it, or what its first line names, does not exist") from error
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without a first line that names its shell
            with contextlib.suppress(OSError):
                return _spawn(["/bin/sh", shutil.which(words[0]) or words[0], *words[1:]], mask)
        raise NotStarted(NOT_EXECUTABLE, f"{words[0]} cannot be started: {error.strerror or error}") from error
    except ValueError as error:
        raise NotStarted(NOT_EXECUTABLE, f"{words[0]!r} cannot be started: {error}") from error


def _spawn(words: Sequence[str], mask: set[signal.Signals] | set[int]) -> int:
    return os.posix_spawnp(words[0], list(words), os.environ, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON)


def end_like(ended: CommandEnd) -> int:
    """Our exit code; where a signal ended the command, the same one ends us here, without a second core file."""
    if ended.signal is None:
        return ended.code or 0
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if ended.signal not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(ended.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ended.signal})
        os.kill(os.getpid(), ended.signal)
        time.sleep(1.0)  # it arrives at once, except where we are the first process of a container
    return 128 + ended.signal


NO_RATES = Rates()
IDLE_S = 1.3  # before the command, where a device is idle: a second of readings, and the first of them


@dataclass(frozen=True)
class CommandOptions:
    """What was asked for beside the command."""

    interval_s: float | None = None
    readers: list[str] = field(default_factory=list)
    out: Path | None = None
    json_file: Path | None = None
    rates: Rates = NO_RATES


def run_command(words: list[str], request: CommandOptions) -> int:
    """Run the command, measured; the exit code is its own. Where a signal ended it, this does not return."""
    screen = Terminal.of(sys.stderr)
    try:
        check_command(words)
    except NotStarted as no:
        screen.say(f"prony power: {no}")
        return no.code
    places = ExitStack()
    folder, is_kept = _folder(request, screen, places)
    started = datetime.now(UTC)
    sampler = None
    try:
        sampler = _start_sampler(folder, request, screen)
        ended = run_in_foreground(words)
        _end(sampler)
        _report(words, request, screen, ended, started, folder, is_kept)
    except (NotStarted, KeyboardInterrupt) as no:  # there was no command, or none yet
        _end(sampler)
        is_kept = is_kept and request.out is not None
        if isinstance(no, NotStarted):
            screen.say(f"prony power: {no}")
            return no.code
        ended = CommandEnd(None, signal.SIGINT, 0.0, 0.0)
    finally:
        if folder is not None and not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
        places.close()
    return end_like(ended)


def _folder(request: CommandOptions, screen: Terminal, places: ExitStack) -> tuple[Path | None, bool]:
    """Where to sample, and whether it is kept; a folder that cannot be had costs the samples, not the figures."""
    folder = request.out.resolve() if request.out else _new_folder()
    try:
        if request.out is None and (who := who_can_replace(folder.parent)):
            raise NotPlain(folder, f"{who} can replace folders in {folder.parent}; --out names another place")
        files.make_folders(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            if os.fstat(file.fileno()).st_uid != folder.stat().st_uid:
                raise NotPlain(folder, "it belongs to another user")
            return folder, True
    except OSError as error:
        screen.say(f"prony power: the samples are not kept in {folder}: {error.strerror or error}")
    try:
        return places.enter_context(private_folder("prony-samples-")), False
    except OSError:
        return None, False


def _new_folder() -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path(os.environ.get("PRONY_RUNS") or "runs") / f"power-{moment}-{secrets.token_hex(3)}"


def check_out(folder: Path | None) -> None:
    """Nothing is overwritten."""
    taken = [name for name in (files.POWER, ENERGY) if folder is not None and (folder / name).exists()]
    if taken:
        raise RequestError(f"--out {folder} holds a measurement already ({taken[0]}): give a new folder")


def _start_sampler(folder: Path | None, request: CommandOptions, screen: Terminal) -> SamplerProcess | None:
    """A sampler that samples, and has seen what is idle; None when there is none, which costs no command."""
    if folder is None:
        screen.say("prony power: nothing is measured: no folder can be written, not even a temporary one")
        return None
    try:
        sampler = SamplerProcess(folder, interval_s=request.interval_s, readers=request.readers)
    except OSError as error:
        screen.say(f"prony power: nothing is measured: the sampler does not start: {error.strerror or error}")
        return None
    try:
        if sampler.wait_ready():
            document = files.read_json(folder / files.POWER) or {}
            if any(busy == "" for busy in (document.get("busy_at_start") or {}).values()):
                time.sleep(IDLE_S)
    except BaseException:
        sampler.end()
        raise
    return sampler


def _end(sampler: SamplerProcess | None) -> None:
    if sampler is not None:
        sampler.end()


def _report(
    words: list[str],
    request: CommandOptions,
    screen: Terminal,
    ended: CommandEnd,
    started: datetime,
    folder: Path | None,
    is_kept: bool,
) -> None:
    """The figures on stderr and in files; whatever fails here is a sentence."""
    if folder is None:
        account = Account(ended.start_s, ended.end_s, reason="there was no folder to sample into")
    else:
        account = make_account(folder, ended.start_s, ended.end_s)
    words = redacted_command(words)  # this goes to files, and what is printed often does
    title = f"{shlex.join(words)}: {ended.end_s - ended.start_s:.2f} s, {ended}"
    screen.say("", *account_lines(account, title, request.rates, screen))
    about = {
        "command": words,
        "exit": {"code": ended.code, "signal": ended.signal},
        "started": started.isoformat(timespec="milliseconds"),
        "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "samples": str(folder) if is_kept else None,
    }
    document = account_json(account, about, request.rates)
    if folder is not None and is_kept:
        if not account.parts and request.out is None:  # nothing in it that anyone asked for
            shutil.rmtree(folder, ignore_errors=True)
            document["samples"] = None
        elif _write(folder / ENERGY, document, screen):
            screen.say(f"samples: {folder}")
    if request.json_file is not None:
        _write(request.json_file, document, screen)


def _write(path: Path, document: dict[str, Any], screen: Terminal) -> bool:
    try:
        _write_own(path, document)
    except (OSError, ValueError) as error:
        screen.say(f"prony power: {path} cannot be written: {getattr(error, 'strerror', None) or error}")
        return False
    return True


def _write_own(path: Path, document: dict[str, Any]) -> None:
    """Replace `path`, whole, by a file that others could never read: a command line may hold secrets.

    In a root that was shared with a group, the group may read it.
    """
    mode = 0o640 if is_in_shared(path.parent) else 0o600
    write_alone(path, files.to_json(document).encode(), mode)


UNITS_S = {"": 1.0, "s": 1.0, "ms": 1e-3}
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.01, 60.0
USAGE = """\
usage: prony power [--interval 50ms] [--readers NAMES] [--out DIR] [--json FILE]
                   [--carbon G_PER_KWH] [--price AMOUNT_PER_KWH] -- COMMAND ...
       prony power --watch [--interval 50ms] [--readers NAMES]
       prony power --list-readers
"""


class Parser(argparse.ArgumentParser):
    """Argparse that says what is wrong as we do."""

    def error(self, message: str) -> NoReturn:
        word = message.rpartition(" ")[2]
        options = [name for action in self._actions for name in action.option_strings]
        guess = nearest(word.partition("=")[0], options) if "unrecognized" in message else None
        raise RequestError(message + (f"; did you mean {guess}?" if guess else ""))


def make_parser() -> Parser:
    parser = Parser(prog="prony power", add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--interval", default="50ms")
    parser.add_argument("--readers", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--carbon")
    parser.add_argument("--price")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--list-readers", action="store_true")
    return parser


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Our options, and the command: from `--` on, or from the first word that is neither an option nor its value."""
    flags = ("-h", "--help", "--watch", "--list-readers")
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return words[:place], words[place + 1 :]
        if not word.startswith("-"):
            return words[:place], words[place:]
        place += 1 if word in flags or "=" in word else 2
    return words, []


def parse_interval(text: str) -> float:
    """`50ms`, `0.05s`, or a bare number of seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text)
    if match is None or match.group(2) not in UNITS_S:
        raise RequestError(f"--interval {text} is no time: give one such as 50ms or 0.1s")
    interval_s = float(match.group(1)) * UNITS_S[match.group(2)]
    if not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S:
        near = "10ms" if interval_s < LEAST_INTERVAL_S else "60s"
        raise RequestError(f"--interval {text} is not possible: it is from 10ms to 60s; the nearest is {near}")
    return interval_s


def parse_readers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in reader_names():
            raise unknown("reader", name, reader_names())
    return names


def main(words: list[str]) -> int:
    """The exit code: the command's, or 2 with a sentence when the request was wrong and nothing was started."""
    try:
        return _main(words)
    except RequestError as error:
        print(f"prony: {error}", file=sys.stderr)
        return 2


def _answer(text: str) -> int:
    """Print what was asked about, also to a reader who has seen enough, as `head` has."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        sys.stdout = None
    return 0


def _main(words: list[str]) -> int:
    own, command = split(words)
    options = make_parser().parse_args(own)
    if options.help:
        return _answer(USAGE)
    interval_s, readers = parse_interval(options.interval), parse_readers(options.readers)
    if options.list_readers:
        names = reader_names()
        longest = max(map(len, names))
        return _answer("".join(f"{name:<{longest}}  {what}\n" for name, what in names.items()))
    if options.watch:
        if command:
            raise RequestError(f"--watch shows this machine and runs no command; leave {command[0]!r} out")

        return watch(readers, interval_s)
    if not command:
        raise RequestError("there is no command to measure: prony power -- COMMAND ..., or prony power --watch")

    rates = find_rates(options.carbon, options.price, os.environ)
    check_out(options.out)
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise RequestError(f"--json {options.json}: there is no folder {options.json.absolute().parent}")
    return run_command(command, CommandOptions(interval_s, readers, options.out, options.json, rates))

"""The script of a job on this node: its logs kept small and, in a pod, its files sent back as frames of the log."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import BinaryIO

from prony_node.contract import files
from prony_node.contract.files import PART_BYTES, Frame, encode, in_parts, limit_logs, logs_of_job, plain, read_new
from prony_node.contract.safe_files import open_alone, open_in_run, open_own_folder, read_in_run, read_plain, walk_run

LIMIT_LOGS_EVERY_S = 0.5
LOOK_EVERY_S = 1.0  # at what is to be sent
SMALL_BYTES = 65536  # of a JSON file that goes back as soon as it is there
LARGEST_BYTES = 32 << 20  # of a file that goes back at all
KILL_S = 60.0  # for a script that was ended to end
OUT_OF_TIME = 124  # as `timeout` has it
LEFT_OUT = "left-out.txt"  # names of the larger ones


def run_script(folder: Path) -> int:
    """Run the script that comes on standard input, of the job in this folder; its exit code.

    It comes there and not by its name: where others may write to the root, they could put another in its place.
    """
    script = os.dup(0)
    with open_own_folder(folder.parents[1], folder.parent.name, folder.name) as own:
        argv = ["bash", f"/dev/fd/{script}", str(folder / "job.sh")]  # the name shows in lists of processes
        # All of a job is one process group. The script handles SIGTERM, and this process waits for it.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[script])
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_LOGS_EVERY_S)
            limit_logs(logs_of_job(own))
        return process.returncode


class Sender:
    """What of the run folders was sent so far."""

    def __init__(self, root: Path, out: BinaryIO) -> None:
        self._root, self._out = root, out
        self._lock = threading.Lock()
        self._sent_bytes: dict[Path, int] = {}
        self._sent_whole: dict[Path, tuple[int, int]] = {}
        self._bundled: set[str] = set()

    def write(self, line: bytes) -> None:
        with self._lock:  # a line is whole or not there
            self._out.write(line)
            self._out.flush()

    def look(self, *, last: bool = False) -> None:
        """Send what is new; of a folder that has its manifest, or at the end, everything."""
        for folder in self._folders():
            if folder.name in self._bundled:
                continue
            if last or (folder / files.MANIFEST).exists() or (folder / files.NODE).exists():
                self._bundled.add(folder.name)
                for frame in in_parts(folder.name, bundle(folder)):
                    self.write(encode(frame))
            else:
                self._send_small(folder)
                self._send_progress(folder / files.PROGRESS)

    def end(self, code: int) -> None:
        self.look(last=True)
        self.write(encode(Frame({"end": code, "bundles": sorted(self._bundled)})))

    def _folders(self) -> list[Path]:
        found = [path for path in self._root.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return sorted(found)

    def _send_small(self, folder: Path) -> None:
        # The plan last: a folder with a plan and nobody who is responsible would be taken for lost.
        # The record goes with all other files: whoever sees it must see them.
        small = [path for path in folder.glob("*.json") if path.name not in (files.RECORD, files.MANIFEST)]
        for path in sorted(small, key=lambda path: (path.name == files.PLAN, path)):
            with contextlib.suppress(OSError):  # it is being replaced: next time
                status = path.stat()
                mark = (status.st_mtime_ns, status.st_size)
                if self._sent_whole.get(path) == mark or status.st_size > SMALL_BYTES:
                    continue
                name = f"{folder.name}/{path.name}"
                for frame in in_parts(name, read_in_run(path)):
                    self.write(encode(Frame({**frame.header, "file": True}, frame.body)))
                self._sent_whole[path] = mark

    def _send_progress(self, path: Path) -> None:
        try:
            with os.fdopen(open_in_run(path), "rb") as file:
                file.seek(self._sent_bytes.get(path, 0))
                new = file.read()
        except OSError:
            return
        for at in range(0, len(new), PART_BYTES):
            where = self._sent_bytes.get(path, 0)
            part = new[at : at + PART_BYTES]
            self.write(encode(Frame({"append": f"{path.parent.name}/{path.name}", "at": where}, part)))
            self._sent_bytes[path] = where + len(part)


def bundle(folder: Path) -> bytes:
    """The plain files of a run folder as a compressed archive; what is too large is named in it instead."""
    stream, left_out = io.BytesIO(), []
    with tarfile.open(fileobj=stream, mode="w:xz", preset=2) as archive:
        with contextlib.suppress(OSError):  # the folder is gone
            for found in walk_run(folder):
                if not stat.S_ISREG(found.status.st_mode):
                    continue
                if found.status.st_size > LARGEST_BYTES:
                    left_out.append(f"{found.status.st_size} {found.name}\n")
                    continue
                with contextlib.suppress(OSError):
                    _add(archive, found.name, read_plain(found.name, LARGEST_BYTES, found.folder))
        if left_out:
            _add(archive, LEFT_OUT, "".join(left_out).encode())
    return stream.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


class Script:
    """The job's script, from our standard input, in a group of its own; signals to us are for all of it."""

    def __init__(self, folder: Path) -> None:
        script = os.dup(0)
        self.process = subprocess.Popen(
            ["bash", f"/dev/fd/{script}"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[script],
        )  # fmt: skip

    def end(self, number: int, frame: object = None) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def warn(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR2)


class ScriptDeadlines:
    """What happens to the script by the clock: a warning, its end, and soon after that the end of all of it."""

    def __init__(self, script: Script, warn_after_s: float, end_after_s: float) -> None:
        begun_s = time.monotonic()
        acts = ((warn_after_s, script.warn), (end_after_s, self._end), (end_after_s + KILL_S, script.kill))
        self._acts = [(begun_s + after_s, act) for after_s, act in acts if after_s and end_after_s]
        self._script, self.ended = script, False

    def look(self) -> None:
        while self._acts and time.monotonic() >= self._acts[0][0]:
            self._acts.pop(0)[1]()

    def _end(self) -> None:
        self.ended = True
        self._script.end(signal.SIGTERM)


def run_job_script(words: list[str]) -> int:
    """Run the job of a folder; the exit code of its script."""
    options = _options().parse_args(words)
    folder = Path(options.job)
    shared = options.inputs is None
    files.make_folders(folder)
    if not shared:
        for path in sorted(Path(options.inputs).iterdir()):
            if path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, folder / path.name)
    script = Script(folder.parents[1])
    signal.signal(signal.SIGTERM, script.end)
    signal.signal(signal.SIGINT, script.end)
    sender = Sender(folder.parents[1], sys.stdout.buffer)
    reader = threading.Thread(target=_pass_on, args=(script, folder / options.log, sender), daemon=True)
    reader.start()
    due = ScriptDeadlines(script, options.warn_after_s, options.end_after_s)
    while script.process.poll() is None:
        due.look()
        limit_logs(logs_of_job(folder))
        if not shared:
            sender.look()
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.process.wait(LOOK_EVERY_S)
    reader.join(LOOK_EVERY_S)  # what it left running may hold the pipe open
    limit_logs(logs_of_job(folder))
    code = script.process.returncode
    code = OUT_OF_TIME if due.ended else 128 - code if code < 0 else code
    if not shared:
        for name in ("pruned", *sorted(path.name for path in folder.glob("run-*.log")), "answer", "surroundings"):
            _send_of_job(sender, folder, name)
        sender.end(code)
    return code


def _send_of_job(sender: Sender, folder: Path, name: str) -> None:
    """What the script wrote of itself."""
    with contextlib.suppress(OSError):
        content = read_new(folder / name, most_bytes=LARGEST_BYTES).text
        for frame in in_parts(f"{folder.name}/{name}", content):
            sender.write(encode(Frame({**frame.header, "file": True, "of_job": True}, frame.body)))


def _pass_on(script: Script, log: Path, sender: Sender) -> None:
    """The script's own words into its log and into ours, where they are never taken for a frame."""
    stream = script.process.stdout
    assert stream is not None
    with os.fdopen(open_alone(log), "ab") as copy:
        for line in iter(lambda: stream.readline(PART_BYTES), b""):
            copy.write(line)
            copy.flush()
            sender.write(plain(line if line.endswith(b"\n") else line + b"\n"))


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("prony_node carry")
    parser.add_argument("--job", required=True, help="the job's folder, which becomes ROOT/.jobs/ID")
    parser.add_argument("--inputs", help="where its files lie; without it they are in its folder already")
    parser.add_argument("--warn-after-s", type=float, default=0.0, help="when the script is told that its time ends")
    parser.add_argument("--end-after-s", type=float, default=0.0, help="when it is ended; the exit code is then 124")
    parser.add_argument("--log", default="job.log", help="the name of the script's log in the job's folder")
    return parser

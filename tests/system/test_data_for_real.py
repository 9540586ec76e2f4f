"""`prony data` for real: generated, killed, gone on with, shown, verified; and no process of it stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import need_proc
from prony_node.contract.files import read_json
from prony_node.data.dataset import FILES, LOCK, MANIFEST, REQUEST, finished_parts

SRC = Path(__file__).parents[2] / "src"
PATIENCE_S = 120.0
REQUESTED = ("imagenet", "--samples", "260")  # a part of 250, and two small ones that are there before it
ALL = 273


class Place:
    """Where generated data goes, and `prony data` there."""

    def __init__(self, root: Path) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(SRC), "PRONY_DATA": str(root / "data")}
        self.folder = root / "data" / "imagenet-files-260-seed0"

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "prony", "data", *words]
        return subprocess.Popen(
            argv,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def ask(self, *words: str) -> tuple[int, str, str]:
        with self.start(*words) as process:
            out, said = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, said

    def there(self) -> int:
        """Images that are listed as finished."""
        return sum(len(files) for files in finished_parts(self.folder).values())

    def at_work(self) -> list[int]:
        """Processes that have this place in their environment, ourselves apart."""
        need_proc()
        mark = f"PRONY_DATA={self.environment['PRONY_DATA']}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


def wait_for(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def begin_and_kill(place: Place) -> None:
    """Generated in part: where we were held up until all of it was there, once more."""
    for _ in range(5):
        shutil.rmtree(place.folder, ignore_errors=True)
        with place.start("generate", *REQUESTED) as process:
            assert wait_for(lambda process=process: place.there() > 0 or process.poll() is not None)
            process.kill()
            process.communicate()
        assert wait_for(lambda: not place.at_work())
        if place.there() < ALL:
            break
    assert process.returncode == -signal.SIGKILL
    assert read_json(place.folder / MANIFEST) is None


@pytest.mark.slow
def test_generated_killed_gone_on_with_shown_and_verified(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for _ in range(5):
        begin_and_kill(place)
        with place.start("generate", *REQUESTED) as process:
            assert process.stderr is not None
            assert f"; {place.there()} of {ALL} are there" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=PATIENCE_S)
        if place.there() < ALL:
            break
    assert (process.returncode, out) == (130, "")
    assert "the same command goes on with it" in said
    assert "Traceback" not in said
    assert wait_for(lambda: not place.at_work())

    code, out, said = place.ask("generate", *REQUESTED)
    assert code == 0, said
    assert f"generating imagenet: {ALL} of {ALL} samples" in said
    assert out.splitlines()[-1] == f"to use it: data={place.folder}"
    assert {path.name for path in place.folder.rglob(".*")} == {MANIFEST, FILES, REQUEST, LOCK}  # no half file stays

    code, out, said = place.ask("show", str(place.folder), "--json")
    assert code == 0, said
    assert {split: found["samples"] for split, found in json.loads(out)["splits"].items()} == {"train": 260, "test": 13}
    image = next(place.folder.glob("val/*/*.JPEG"))
    image.write_bytes(image.read_bytes()[:-1] + b"x")
    code, out, _ = place.ask("verify", str(place.folder))
    assert code == 1
    assert out == f"{image.relative_to(place.folder)}: its content differs\n"
    assert place.at_work() == []

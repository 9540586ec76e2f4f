"""Attacks, each as it was carried out once. Some need a second user: a user id that nobody has, which root may take."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src"
STRANGER = 61234  # an id without an entry in passwd
# The tests' Python may lie in root's own home. To read it, a second user keeps one right of root's: reading and
# entering any folder. What may be written, changed or owned is as for anybody. So what such a Python can read proves
# nothing; `User.reads` asks without this right.
READ_ANYWHERE = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


@dataclass(frozen=True)
class User:
    """A user of this machine, who may run Python with Prony."""

    uid: int
    gid: int
    home: Path
    groups: tuple[int, ...] = field(default=())

    def run(
        self, arguments: Sequence[str | Path], environment: Mapping[str, str] | None = None, timeout_s: float = 120,
        without: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a program as this user, in their home; `without` names variables that they do not have."""
        own = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), **(environment or {})}
        own = {name: value for name, value in own.items() if name not in without}
        return subprocess.run([*self._become(), *READ_ANYWHERE, *(str(one) for one in arguments)], env=own,
                              cwd=self.home, text=True, capture_output=True, timeout=timeout_s,
                              check=False)  # fmt: skip

    def python(self, code: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-c", code], **options)

    def prony(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None, timeout_s: float = 120,
        without: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        return self.run([sys.executable, "-m", "prony", *arguments], environment, timeout_s, without)

    def reads(self, paths: Iterable[Path]) -> set[Path]:
        """Those of these files that this user, with no right of root's, has read to the end."""
        script = 'for path; do cat "$path" >/dev/null 2>&1 && printf "%s\\0" "$path"; done; true'
        argv = [*self._become(), "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs", "sh", "-c", script, "sh"]
        done = subprocess.run([*argv, *map(str, paths)], cwd=self.home, text=True, capture_output=True, timeout=60,
                              check=True)  # fmt: skip
        return {Path(path) for path in done.stdout.split("\0") if path}

    def _become(self) -> list[str]:
        groups = ["--groups", ",".join(map(str, self.groups))] if self.groups else ["--clear-groups"]
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", *groups]


@pytest.fixture
def commons() -> Iterator[Path]:
    """A folder that any user can enter; the tests' own temporary folders let only their user pass."""
    with tempfile.TemporaryDirectory(prefix="prony-attack-") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.fixture
def make_user(tmp_path: Path) -> Callable[..., User]:
    """Make users, each with a home that nobody else can enter; skips where this process may not become another."""
    if os.geteuid() != 0:
        pytest.skip("only root can run a program as a second user")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not there, which starts a program as a second user")

    def make(uid: int = STRANGER, groups: tuple[int, ...] = ()) -> User:
        home = tmp_path / f"home-{uid}"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        user = User(uid, uid, home, groups)
        tried = user.python("import sys")
        if tried.returncode:
            last = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"another user cannot run this Python: {last}")
        tried = user.python("import prony")
        if tried.returncode:  # a fault of ours, which a skip would hide
            pytest.fail(f"another user cannot import prony: {tried.stderr}")
        return user

    return make


@pytest.fixture
def stranger(make_user: Callable[..., User]) -> User:
    """Another user of the machine."""
    return make_user()

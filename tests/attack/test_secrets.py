"""A command line's secrets do not end up in a file, and the file is its owner's alone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract.safe_files import SHARED_MARK, SHARED_TEXT, redacted_command
from prony_node.power import any_command

if TYPE_CHECKING:
    from conftest import User

COMMON = 61300  # a group that some users have in common
SECRET = "hunter2SECRETvalue"
LEAKING = [
    ["run", f"--password={SECRET}"],
    ["run", "--password", SECRET],
    ["run", "--password", f"-{SECRET}"],
    ["run", f"--db-passwd={SECRET}"],
    ["run", f"--api-key={SECRET}"],
    ["run", "--api_key", SECRET],
    ["run", f"--apiToken={SECRET}"],
    ["run", f"--hf-token={SECRET}"],
    ["run", f"--auth={SECRET}"],
    ["run", f"--client.secret={SECRET}"],
    ["run", f"-Dpassword={SECRET}"],
    ["env", f"HF_TOKEN={SECRET}", "python"],
    ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}", "python"],
    ["env", f"PGPASSWORD={SECRET}", "psql"],
    ["run", f"trainer.wandb_api_key={SECRET}"],
    ["git", "clone", f"https://me:{SECRET}@example.org/x"],
    ["curl", f"https://example.org/x?sig={SECRET}"],
    ["curl", "-H", f"Authorization: Bearer {SECRET}"],
    ["curl", "-u", f"me:{SECRET}"],
    ["sh", "-c", f"HF_TOKEN={SECRET} python train.py"],
    ["sh", "-c", f"python train.py --password {SECRET} --steps 3"],
    ["sh", "-c", f"python train.py --password '{SECRET} and more {SECRET}'"],
    ["run", json.dumps({"password": SECRET})],
    ["run", f"--pw={SECRET}"],
    ["run", "--passcode", SECRET],
    ["mysql", f"-p{SECRET}"],
    ["sshpass", "-p", SECRET, "ssh", "host"],
    ["ipmitool", "-U", "admin", "-P", SECRET],
    ["curl", f"-ume:{SECRET}"],
    ["curl", f"--user=me:{SECRET}"],
    ["curl", f"-HAuthorization: Token {SECRET}"],
    ["curl", "-H", f"Cookie: a=b; c={SECRET}"],
    ["openssl", "x", "-passin", f"pass:{SECRET}"],
    ["run", json.dumps({"password": f'a"{SECRET}'})],
    ["sh", "-c", f"export DB_PASS={SECRET}; x"],
    ["sh", "-c", f"x --pass {SECRET}"],
    ["sh", "-c", f"curl -u me:{SECRET} x"],
    ["sh", "-c", f"mysql -p{SECRET} shop"],
    ["login", "hf_abcdefghijklmnopqrstuvwxyz"],
]
HARMLESS = ["python", "train.py", "--tokenizer", "gpt2", "--max-tokens", "512", "--lr=0.1", "-p", "8080", "--steps",
            "3", "https://example.org/model", "data.keys=3,4", "--monitor", "loss", "a=b", "--user-agent"]  # fmt: skip


@pytest.mark.parametrize("words", LEAKING, ids=" ".join)
def test_the_value_of_a_secret_looking_option_is_removed(words: list[str]) -> None:
    kept = redacted_command(words)
    assert SECRET not in " ".join(kept)
    assert "abcdefghijkl" not in " ".join(kept)
    assert len(kept) == len(words), "how many words a command had is no secret"


def test_what_follows_a_secret_stays() -> None:
    assert redacted_command(["run", "--use-auth-token", "--steps", "3"]) == ["run", "--use-auth-token", "--steps", "3"]
    text = redacted_command(["sh", "-c", "x --password abc --steps 3"])[2]
    assert text == "x --password *** --steps 3"


def test_an_ordinary_command_is_kept_as_it_is() -> None:
    assert redacted_command(HARMLESS) == HARMLESS


@given(st.lists(st.text(max_size=40), max_size=12))
def test_any_words_give_as_many_words(words: list[str]) -> None:
    assert len(redacted_command(words)) == len(words)


def measure(folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "prony_node", "power", "--readers=replay", f"--out={folder}", *options, "--"]
    done = subprocess.run([*command, "true", f"--password={SECRET}"], capture_output=True, text=True, check=False,
                          umask=0o022)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stderr


def test_energy_json_holds_no_password_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    folder, figures = tmp_path / "measured", tmp_path / "figures.json"
    measure(folder, f"--json={figures}")
    for path in (folder / "energy.json", figures):
        text = path.read_text()
        assert SECRET not in text
        assert json.loads(text)["command"] == ["true", "--password=***"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "only setgid"])
def test_the_group_reads_energy_json_in_a_root_that_was_shared_with_it_alone(tmp_path: Path, shared: bool) -> None:
    """A folder of a group that nobody shared through Prony may be a home on a system that makes them so."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o3770)
    if not root.stat().st_mode & stat.S_ISGID:
        pytest.skip("this file system does not keep the setgid bit")
    if shared:
        (root / SHARED_MARK).write_text(SHARED_TEXT)
    measure(root / "measured", f"--json={root / 'figures.json'}")
    for path in (root / "measured" / "energy.json", root / "figures.json"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o640 if shared else 0o600)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "only setgid"])
def test_only_who_may_read_energy_json_reads_it(make_user: Callable[..., User], commons: Path, shared: bool) -> None:
    member, outsider = make_user(61001, (COMMON,)), make_user(61002)
    root = commons / "root"
    root.mkdir()
    os.chown(root, -1, COMMON)
    root.chmod(0o3775)
    if shared:
        (root / SHARED_MARK).write_text(SHARED_TEXT)
    measure(root / "measured", f"--json={root / 'figures.json'}")
    tried = {root / "measured" / "energy.json", root / "figures.json"}
    assert member.reads(tried) == (tried if shared else set())
    assert outsider.reads(tried) == set()
    for path in tried:
        path.chmod(0o644)
    assert outsider.reads(tried) == tried, "nothing but the files' own permissions kept them out"


def test_nobody_can_read_a_command_line_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is made for all to read and closed to them later can be opened in between."""
    modes = []
    replace = Path.replace

    def look(self: Path, target: Path) -> Path:
        modes.append(stat.S_IMODE(self.stat().st_mode))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look)
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("too late"))
    assert any_command._write(tmp_path / "figures.json", {"command": []}, any_command.Terminal.of(sys.stderr))
    assert modes == [0o600]
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


@pytest.mark.parametrize("word", ["--token" * 30_000, "a" * 200_000, 'password="' + "\\" * 200_000, "mysql -" * 30_000])
def test_a_long_word_takes_no_time(word: str) -> None:
    begin_s = time.process_time()
    assert len(redacted_command(["run", word])) == 2
    assert time.process_time() - begin_s < 20, "it took minutes"

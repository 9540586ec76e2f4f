"""The help of every verb, held against tests/golden/help. PRONY_GOLDEN=write renews the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from prony.cli.main import VERBS, make_app

GOLDEN = Path(__file__).parents[3] / "golden" / "help"


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_the_help_of_a_verb_is_what_it_was(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app(verb)
    command = typer.main.get_command(app)
    inner = getattr(getattr(command, "commands", {}).get(verb), "commands", {})
    asked = [[verb, "--help"] if verb else ["--help"], *([verb, name, "--help"] for name in inner)]
    texts = []
    for words in asked:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        texts.append(f"$ prony {' '.join(words)}\n{done.stdout}")
    shown = "\n".join(line.rstrip() for line in "\n".join(texts).splitlines()) + "\n"
    path = GOLDEN / f"{verb or 'prony'}.txt"
    if os.environ.get("PRONY_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8"), f"{path} differs; PRONY_GOLDEN=write renews it"

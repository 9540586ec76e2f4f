"""The site is built without a warning, and what is built loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: make setup-dev")
    out = tmp_path_factory.mktemp("docs")
    argv = [sys.executable, str(ROOT / "scripts" / "build_docs.py"), "--out", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "site"


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert [page for page in pages if not (site / page).is_file()] == []


def test_a_built_page_loads_nothing_from_elsewhere(site: Path) -> None:
    """No fonts, scripts or pictures of other hosts; and no Mermaid, whose program the theme would fetch."""
    loads = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="?(?:https?:)?//|<link[^>]*\shref="?(?:https?:)?//')
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert loads.search(text) is None, path
        assert 'class="mermaid"' not in text, path
    for path in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_a_page_that_is_opened_as_a_file_can_be_searched(site: Path) -> None:
    page = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    assert 'src="../assets/iframe-worker.js"' in page
    assert (site / "assets" / "iframe-worker.js").is_file()
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    assert (site / "search.js").is_file()
    assert any("memory_cap" in item["text"] for item in index["items"])
    assert not any("changelog" in item["location"] for item in index["items"]), "what was once true is found first"


def test_a_page_has_a_switch_between_light_and_dark(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'data-md-color-scheme="?(\w+)', page)) == {"default", "slate"}


@pytest.mark.parametrize(
    ("link", "repository", "there"),
    [
        ("[a](energy.md#x)", None, "[a](energy.md#x)"),
        ("[a](../../ARCHITECTURE.md)", None, "[a](../developers/architecture.md)"),
        ("[a](../../results/h200/steps.json)", None, "a (`results/h200/steps.json`)"),
        ("[results/h200](../../results/h200)", None, "results/h200"),
        ("[a](../../results/h200)", "https://example.com/tree", "[a](https://example.com/tree/results/h200)"),
        ("[a](#x)", None, "[a](#x)"),
        ("`[a](../../LICENSE)`", None, "`[a](../../LICENSE)`"),
    ],
)
def test_a_link_of_the_repository_leads_somewhere_on_the_site(link: str, repository: str | None, there: str) -> None:
    assert BUILD["for_site"](link, "docs/how-to/x.md", "docs/how-to/x.md", repository) == there


def test_a_page_from_elsewhere_keeps_its_links() -> None:
    text = "[how](docs/how-to/own-model.md) [read](README.md)"
    made = BUILD["for_site"](text, "ARCHITECTURE.md", "docs/developers/architecture.md", None)
    assert made == "[how](../how-to/own-model.md) [read](../index.md)"

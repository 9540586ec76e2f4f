"""Build the documentation site with Zensical: OUT/site, from copies of the pages in OUT/pages.

    python scripts/build_docs.py [--out build/docs] [--repository URL]

The pages are read in two places: in the repository, where a relative link may lead to any file, and on the site, which
has docs/ and the few pages of ELSEWHERE. So links are rewritten in the copies: to a page of ELSEWHERE, to where it is
on the site; to any other file of the repository, to URL/FILE, or without --repository to nothing: the file's path then
stands behind the link's text. A warning of Zensical, such as of a link to a heading that is not there, ends the build.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
ELSEWHERE = {  # what is a page of the site but lies elsewhere in the repository
    "ARCHITECTURE.md": "docs/developers/architecture.md",
    "CONTRIBUTING.md": "docs/developers/contributing.md",
    "CHANGELOG.md": "docs/developers/changelog.md",
    "results/README.md": "docs/results/records.md",
    "README.md": "docs/index.md",  # for links alone: the site has a first page of its own
}
NOT_SEARCHED = ("docs/developers/changelog.md",)  # what was once true would be found before what is
SEARCH_OFF = "---\nsearch:\n  exclude: true\n---\n\n"
FENCE = re.compile(r"(^```.*?^```[^\n]*$|`[^`\n]+`(?!\]))", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    parser.add_argument("--repository", default=os.environ.get("PRONY_DOCS_REPOSITORY"), help="where files are shown")
    options = parser.parse_args(arguments)
    copy_pages(options.out, options.repository)
    # As a module of this Python, so that no other installation is taken; the cache would keep pages that have gone.
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=options.out, check=False
    ).returncode


def copy_pages(out: Path, repository: str | None = None) -> None:
    pages = out / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.rmtree(out / "site", ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    shutil.copy(ROOT / "zensical.toml", out)
    sources = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix() for path in docs_pages()}
    sources |= {source: page for source, page in ELSEWHERE.items() if page not in sources.values()}
    for source, page in sources.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        made = (SEARCH_OFF if page in NOT_SEARCHED else "") + for_site(text, source, page, repository)
        (out / page.replace("docs/", "pages/", 1)).write_text(made, encoding="utf-8")


def docs_pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def for_site(text: str, source: str, page: str, repository: str | None) -> str:
    """The text of the file `source` with its links as they must be on `page`."""

    def moved(match: re.Match[str]) -> str:
        return new_link(match[1], match[2], source, page, repository)

    return outside_code(text, lambda prose: LINK.sub(moved, prose))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    parts = FENCE.split(text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def new_link(words: str, target: str, source: str, page: str, repository: str | None) -> str:
    name, hash_mark, anchor = target.partition("#")
    if not name or re.match(r"[a-z]+:", target):
        return f"[{words}]({target})"
    path = os.path.normpath(Path(source).parent / name)
    path = ELSEWHERE.get(path, path)
    if path.startswith("docs/"):
        return f"[{words}]({os.path.relpath(path, Path(page).parent)}{hash_mark}{anchor})"
    if repository:
        return f"[{words}]({repository.rstrip('/')}/{path})"
    return words if path in words else f"{words} (`{path}`)"


if __name__ == "__main__":
    sys.exit(main())

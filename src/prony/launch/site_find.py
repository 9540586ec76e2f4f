"""Finding the file of a site by its name: the user's own, one shipped as an example, or a path."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from prony.launch.site import LOCAL, Site
from prony.launch.site_file import parse_site
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError, unknown

MOST_BYTES = 256 * 1024


def sites_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's site files lie: $PRONY_SITES, else the configuration folder of this account."""
    named = environment.get("PRONY_SITES")
    if named:
        return Path(named)
    return expand(environment.get("XDG_CONFIG_HOME") or "~/.config") / "prony" / "sites"


@cache
def example_sites() -> dict[str, str]:
    """Site files that Prony ships, by name."""
    folder = resources.files("prony.catalog") / "sites"
    return {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".yaml")
    }


def find_site(name: str) -> Site:
    return load_site(name, example_sites())


def load_site(name: str, examples: Mapping[str, str], folder: Path | None = None) -> Site:
    """The site of a name, or of a path to a file: the user's own, then `local`, then one shipped as an example."""
    path = Path(name)
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return read_site(path)
    own = user_sites(folder)
    if name in own:
        return replace(read_site(own[name]), found_as=name)
    if name == "local":
        return LOCAL
    if name in examples:
        return parse_site(examples[name], f"{name}.yaml", name)
    raise unknown("site", name, {*own, *examples, "local"})


def user_sites(folder: Path | None = None) -> dict[str, Path]:
    """Files of the user's own sites by name."""
    where = sites_folder() if folder is None else folder
    return {path.stem: path for path in sorted(where.glob("*.yaml"))} if where.is_dir() else {}


def read_site(path: Path) -> Site:
    """The site of a file."""
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{path} is no regular file, so it is no site")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise RequestError(f"{path} has more than the {MOST_BYTES:,} bytes that a site file may have")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip(".-_") or "site"
    return replace(_parsed(text, str(path), name[:63]), found_as=str(path.absolute()))


@cache  # a job that is followed looks its site up several times a second
def _parsed(text: str, where: str, name: str) -> Site:
    return parse_site(text, where, name)

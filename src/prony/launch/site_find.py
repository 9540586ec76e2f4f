"""Finding the file of a site by its name: the user's own, one shipped as an example, or a path."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from prony.launch.site import LOCAL, Site
from prony.launch.site_file import parse_site
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.plain import others_may

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


def find_site_of_job(name: str) -> Site:
    """The site that a job names. What a file says is executed, so nobody else may have written one that is a path."""
    return read_site(Path(name), own=True) if _is_path(name) else find_site(name)


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def load_site(name: str, examples: Mapping[str, str], folder: Path | None = None) -> Site:
    """The site of a name, or of a path to a file: the user's own, then `local`, then one shipped as an example."""
    if _is_path(name):
        return read_site(Path(name))
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


def read_site(path: Path, own: bool = False) -> Site:
    """The site of a file; `own`: of one that only this user or root can have written."""
    try:
        text = _read(path, own)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip(".-_") or "site"
    return replace(_parsed(text, str(path), name[:63]), found_as=str(path.absolute()))


def _read(path: Path, own: bool) -> str:
    """The text of a regular file of bounded size. A link to it is followed: the user named it."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise RequestError(f"{path} is no regular file, so it is no site")
        if own and (found.st_uid not in (os.geteuid(), 0) or others_may(found, os.W_OK)):
            raise RequestError(
                f"the site file {path} is another user's, or others can write to it, and it says what a job executes; "
                "use a copy of your own, with `chmod go-w`"
            )
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise RequestError(f"{path} has more than the {MOST_BYTES:,} bytes that a site file may have")
    return content.decode("utf-8")


@cache  # a job that is followed looks its site up several times a second
def _parsed(text: str, where: str, name: str) -> Site:
    return parse_site(text, where, name)

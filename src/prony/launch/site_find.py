"""Finding the file of a site by its name: the user's own, one shipped as an example, or a path."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from prony.launch.site import LOCAL, Site
from prony.launch.site_file import keep_text, parse_site
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError, unknown


def sites_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's site files lie: $PRONY_SITES, else the configuration folder of this account."""
    named = environment.get("PRONY_SITES")
    if named:
        return Path(named)
    return expand(environment.get("XDG_CONFIG_HOME") or "~/.config") / "prony" / "sites"


def load_site(name: str, examples: Mapping[str, str], folder: Path | None = None) -> Site:
    """The site of a name, or of a path to a file: the user's own, then `local`, then one shipped as an example."""
    path = Path(name)
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return read_site(path)
    own = user_sites(folder)
    if name in own:
        return read_site(own[name])
    if name == "local":
        return LOCAL
    if name in examples:
        return keep_text(parse_site(examples[name], f"{name}.yaml", name), examples[name])
    raise unknown("site", name, {*own, *examples, "local"})


def user_sites(folder: Path | None = None) -> dict[str, Path]:
    """Files of the user's own sites by name."""
    where = sites_folder() if folder is None else folder
    return {path.stem: path for path in sorted(where.glob("*.yaml"))} if where.is_dir() else {}


def read_site(path: Path) -> Site:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip(".-_") or "site"
    return keep_text(parse_site(text, str(path), name[:63]), text)

"""Finding a study: a file of a person's, or one that ships with Prony."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

from prony.plan.document import MOST_BYTES
from prony.plan.study import Study
from prony.plan.study_file import Reading, parse_study
from prony_node.contract.cache import expand
from prony_node.contract.errors import RequestError, unknown
from prony_node.workloads.config import Workload

ENDINGS = (".yaml", ".yml")


def shipped_studies() -> dict[str, str]:
    """The text of every study in the catalog, by name."""
    folder = resources.files("prony.catalog") / "studies"
    if not folder.is_dir():
        return {}
    files = sorted((file for file in folder.iterdir() if file.name.endswith(ENDINGS)), key=lambda file: file.name)
    return {Path(file.name).stem: file.read_text(encoding="utf-8") for file in files}


def load_study(
    target: str,
    size: str | None,
    words: tuple[str, ...],
    find: Callable[[str], Workload],
    parts: tuple[str, ...] = (),
) -> Study:
    """The study that a word means: a file where it looks like one, else a shipped study of that name."""
    if target.endswith(ENDINGS) or "/" in target:
        path = expand(target)
        text = _read(path)
        return replace(parse_study(text, target, Reading(path.absolute().parent, size, words, parts), find), file=path)
    shipped = shipped_studies()
    if target not in shipped:
        hint = "" if shipped else "; Prony ships none"
        raise RequestError(f"{unknown('study', target, shipped)}{hint}; a file of yours ends in .yaml")
    return parse_study(shipped[target], f"{target}.yaml", Reading(None, size, words, parts), find)


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise RequestError(f"{path} is no regular file, so it is no study")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is no text in UTF-8, so it is no study") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error

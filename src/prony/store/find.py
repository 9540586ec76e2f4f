"""Which run a person means by a few characters."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import ColumnElement, Connection, or_, select

from prony.store.rows import Run
from prony.store.tables import run_table
from prony_node.contract.errors import RequestError, nearest

SHOWN = 5


def may_stand_for(text: str) -> ColumnElement[bool]:
    """The SQL of all runs among which `find_run` looks for a text, and perhaps of a few more."""
    ends = (run_table.c.id.startswith(text, autoescape=True), run_table.c.id.endswith(text, autoescape=True))
    return or_(run_table.c.folder == text, *ends)


def find_run(text: str, runs: list[Run], root: Path) -> Run:
    """The one run that `text` stands for among `runs`, newest first."""
    if not runs:
        raise RequestError(f"there are no runs in {root}; --runs DIR or PRONY_RUNS names another place")
    if text == "latest":
        return runs[0]
    for matches in (
        [run for run in runs if text in (run.id, run.folder.name)],
        [run for run in runs if text and run.id.startswith(text)],
        [run for run in runs if text and run.id.endswith(text)],
    ):
        ids = list(dict.fromkeys(run.id for run in matches))
        if len(ids) == 1:
            return matches[0]
        if ids:
            raise _ambiguous(text, ids)
    guess = nearest(text, [run.id for run in runs])
    hint = f"; did you mean {guess!r}?" if guess else f"; the newest is {runs[0].id!r}"
    raise RequestError(f"no run {text!r} in {root}{hint}")


def elsewhere(connection: Connection, text: str) -> RequestError | None:
    """Of a team's run that is not here: where it is, and how to bring it."""
    query = select(run_table.c.id, run_table.c.place).where(run_table.c.id.endswith(text, autoescape=True)).limit(2)
    found = list(connection.execute(query)) if text else []
    if len(found) != 1:
        return None
    return RequestError(
        f"{found[0][0]} was made at {found[0][1]}; `prony store pull {text}` brings it here, once pushed"
    )


def _ambiguous(text: str, ids: list[str]) -> RequestError:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return RequestError(f"{text!r} stands for {len(ids)} runs: {', '.join(ids[:SHOWN])}{more}; say more of one")

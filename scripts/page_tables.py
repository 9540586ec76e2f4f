"""Put tables into pages between `<!-- NAME -->` and `<!-- /NAME -->`; what is around them is written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def table_lines(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]


def put_table(page: Path, name: str, head: list[str], rows: Iterable[list[str]]) -> None:
    put_lines(page, name, table_lines(head, rows))


def put_lines(page: Path, name: str, lines: Iterable[str]) -> None:
    before, start, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not start or not end:
        raise SystemExit(f"{page} has no <!-- {name} --> ... <!-- /{name} -->")
    page.write_text(before + start + "".join(f"{line}\n" for line in lines) + end + after, encoding="utf-8")

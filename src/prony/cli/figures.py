"""`prony figures`: the plots of the publication that a study repeats, ours in front, as files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from prony import api
from prony.cli.options import RUNS_HELP
from prony.cli.present import report
from prony.cli.study import PartsOption, SizeOption, Target, Words, open_study
from prony.engine.history import runs_root
from prony_node.contract import files
from prony_node.contract.errors import RequestError, unknown
from prony_node.contract.safe_files import write_alone

FORMATS = ("svg", "pdf", "png", "json")
LONGEST_NAME = 80


def figures(
    target: Target,
    settings: Words = None,
    size: SizeOption = None,
    part: PartsOption = None,
    kind: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="Format; json is Vega-Lite.")
    ] = FORMATS[0],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write.")] = Path("figures"),
    runs: Annotated[Path | None, typer.Option(help=RUNS_HELP)] = None,
) -> None:
    """Draw the plots of a repeated publication, as files with captions."""
    from prony.report.drawing import require_plots

    require_plots()
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    opened = open_study(target, size, settings, parts=part)
    study = opened.study
    if not study.plots:
        raise RequestError(f"{study.name} has no plots of a publication; `prony report` shows what was run")
    if out.exists() and not out.is_dir():
        raise RequestError(f"{out} is no folder, so no figures can be written there; --out names another")
    root = runs_root(runs)
    if runs is not None and not runs.exists():
        raise RequestError(f"there is no folder {runs}")
    shown = api.show_study(opened, runs=root, progress=report)
    print(f"{study.name}: {shown.machine()}")
    if not shown.records:
        print(f"no runs of it in {root}: the published series are drawn alone")
    drawn = [one for one in shown.plots if one.plot.panels]
    names = file_names([one.plot.spec.title for one in drawn], study.name)
    from prony.report.plots import NotDrawn  # a second to import
    from prony.report.published_plots import plot_file

    contents: dict[str, bytes] = {}
    for number, (name, one) in enumerate(zip(names, drawn, strict=True), start=1):
        print(f"prony: drawing {number} of {len(drawn)}: {one.plot.spec.title}", file=sys.stderr)
        try:
            contents[f"{name}.{kind}"] = plot_file(one, kind)
        except NotDrawn as error:
            raise RequestError(f"the plot {one.plot.spec.title!r} cannot be drawn: {error}") from error
        contents[f"{name}.txt"] = ("\n".join(one.caption) + "\n").encode(errors="replace")
    files.make_folders(out)
    for name, content in contents.items():  # after all are drawn, so that a plot that cannot be leaves no half of a set
        write_alone(out / name, content)
        print(out / name)
    for one in shown.plots:
        if not one.plot.panels:
            print(f"not drawn, since it has no published numbers and no runs: {one.plot.spec.title}")


def file_names(titles: Iterable[str], study: str) -> list[str]:
    """A name for each title, of letters, digits and dashes alone; no two are the same."""
    found: list[str] = []
    for title in titles:
        words = re.sub(r"[^a-z0-9]+", "-", f"{study} {title}".lower()).strip("-")[:LONGEST_NAME].rstrip("-") or "plot"
        several = (f"{words}-{number}" for number in count(2))
        found.append(words if words not in found else next(name for name in several if name not in found))
    return found

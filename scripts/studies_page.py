"""Write the tables, figures and claims of the shipped studies into docs/published-h200.md, from archives of their runs.

    python scripts/studies_page.py [--results results/h200] [--page docs/published-h200.md] [--figures docs/figures]

RESULTS/studies-NAME.tar.gz holds the runs that `prony study run NAME --size quick` made on a device. What they give
goes between `<!-- NAME -->` and `<!-- /NAME -->` of PAGE; what is around it is written by hand. Tables, figures and
claims without a run are left out, and counted. The page names figures in `figures` beside it; with --figures they are
drawn.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from page_tables import put_lines

from prony.analysis.claims import UNTESTED
from prony.cli.figures import file_names
from prony.cli.study_tables import Shown, show_study
from prony.plan.studies import load_study
from prony.report.claim_lines import TITLE, claim_lines
from prony.report.drawing import require_plots
from prony.report.published_lines import Captioned, published_lines
from prony.store.archive import unpacked
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload

SIZE = "quick"
PREFIX, SUFFIX = "studies-", ".tar.gz"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/h200"))
    parser.add_argument("--page", type=Path, default=Path("docs/published-h200.md"))
    parser.add_argument("--figures", type=Path)
    options = parser.parse_args(arguments)
    os.environ.pop("PRONY_STORE", None)  # these runs are no news to a team
    try:
        if options.figures:
            require_plots()
        for archive in sorted(options.results.glob(f"{PREFIX}*{SUFFIX}")):
            name = archive.name.removeprefix(PREFIX).removesuffix(SUFFIX)
            with (
                tempfile.TemporaryDirectory(prefix="prony-study-") as place,
                archive.open("rb") as file,
                unpacked(file, Path(place), str(archive)) as found,
            ):
                shown = show_study(load_study(name, SIZE, (), find_workload), found.folders[0].parent)
            put_lines(options.page, name, lines_of(shown))
            if options.figures:
                draw(shown, options.figures)
    except (RequestError, OSError) as error:
        print(f"studies_page.py: {error}", file=sys.stderr)
        return 2
    return 0


def lines_of(shown: Shown) -> list[str]:
    """The tables, figures and claims that have something of ours."""
    lines = [f"Ours: {shown.machine()}."]
    for table in shown.tables:
        if table.has_ours:
            title, *rest = published_lines(table)
            lines += ["", f"### {title}", *rest]
    for name, one in figures_of(shown).items():
        title, *caption = one.caption
        notes = [line for line in caption if str(shown.study.source) not in line and shown.machine() not in line]
        lines += ["", f"![{title}](figures/{name}.svg)", "", " ".join([f"**{title}**", *notes])]
    tested = [one for one in shown.claims if one.verdict != UNTESTED]
    contradicted = [one for one in shown.claims if one.verdict == UNTESTED and one.contradicted]
    lines += ["", f"### {TITLE}", *claim_lines([*tested, *contradicted])[1:]]
    return [*lines, "", *left_out(shown)]


def figures_of(shown: Shown) -> dict[str, Captioned]:
    """The plots with something of ours, by the names that `prony figures` gives them."""
    drawn = [one for one in shown.plots if one.plot.panels]
    names = file_names([one.plot.spec.title for one in drawn], shown.study.name)
    return {name: one for name, one in zip(names, drawn, strict=True) if one.plot.has_ours}


def left_out(shown: Shown) -> list[str]:
    untested = sum(one.verdict == UNTESTED and not one.contradicted for one in shown.claims)
    tables = [table.spec.title for table in shown.tables if not table.has_ours]
    found = [f"{untested} more claims cannot be tested with these runs."] if untested else []
    found += [f"No run here stands in: {'; '.join(tables)}."] if tables else []
    return [*found, f"`prony study show {shown.study.name}` prints them all."] if found else []


def draw(shown: Shown, folder: Path) -> None:
    from prony.report.published_plots import plot_file

    folder.mkdir(parents=True, exist_ok=True)
    for name, one in figures_of(shown).items():
        (folder / f"{name}.svg").write_bytes(plot_file(one, "svg"))
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    sys.exit(main())

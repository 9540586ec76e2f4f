"""Write the tables of the shipped studies into docs/published-h200.md, from their run folders alone.

    python scripts/studies_page.py [--results results/h200/studies] [--page docs/published-h200.md]

A study is a folder of RESULTS by its name, with the runs that `prony study run NAME --size quick` made on a device, and
a place of PAGE between `<!-- NAME -->` and `<!-- /NAME -->`. What is around it is written by hand.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from results_table import put_lines

from prony.cli.study_tables import Shown, show_study
from prony.plan.studies import load_study
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload

SIZE = "quick"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/h200/studies"))
    parser.add_argument("--page", type=Path, default=Path("docs/published-h200.md"))
    options = parser.parse_args(arguments)
    os.environ.pop("PRONY_STORE", None)  # these runs are no news to a team
    try:
        for folder in sorted(path for path in options.results.iterdir() if path.is_dir()):
            put_lines(options.page, folder.name, lines_of(show(folder)))
    except (RequestError, OSError) as error:
        print(f"studies_page.py: {error}", file=sys.stderr)
        return 2
    return 0


def show(folder: Path) -> Shown:
    """The study of a folder with its runs, from a copy: an index is made beside run folders."""
    study = load_study(folder.name, SIZE, (), find_workload)
    with tempfile.TemporaryDirectory(prefix="prony-study-") as place:
        root = Path(shutil.copytree(folder, Path(place) / folder.name))
        return show_study(study, root)


def lines_of(shown: Shown) -> list[str]:
    """As `prony study show` prints them, each table under a title of its own."""
    titles = {table.spec.title for table in shown.tables}
    return [f"### {line}" if line in titles else line for line in shown.lines()]


if __name__ == "__main__":
    sys.exit(main())

"""Write the tables of the shipped studies into docs/published-h200.md, from an archive of their runs alone.

    python scripts/studies_page.py [--archive results/h200/unverified.tar.gz] [--page docs/published-h200.md]

The group studies-NAME of the archive holds the runs that `prony study run NAME --size quick` made on a device. Its
tables go between `<!-- NAME -->` and `<!-- /NAME -->` of PAGE. What is around them is written by hand.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from page_tables import put_lines
from results_records import read_runs, unpack_group

from prony.cli.study_tables import Shown, show_study
from prony.plan.studies import load_study
from prony.report.claim_lines import TITLE
from prony_node.contract.errors import RequestError
from prony_node.workloads import find_workload

SIZE = "quick"
PREFIX = "studies-"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=Path, default=Path("results/h200/unverified.tar.gz"))
    parser.add_argument("--page", type=Path, default=Path("docs/published-h200.md"))
    options = parser.parse_args(arguments)
    os.environ.pop("PRONY_STORE", None)  # these runs are no news to a team
    try:
        groups = {run.group for run in read_runs(options.archive)}
        for group in sorted(group for group in groups if group.startswith(PREFIX)):
            name = group.removeprefix(PREFIX)
            put_lines(options.page, name, lines_of(show(name, options.archive, group)))
    except (RequestError, OSError) as error:
        print(f"studies_page.py: {error}", file=sys.stderr)
        return 2
    return 0


def show(name: str, archive: Path, group: str) -> Shown:
    """A study with the runs of its group, unpacked for as long as it is read."""
    study = load_study(name, SIZE, (), find_workload)
    with tempfile.TemporaryDirectory(prefix="prony-study-") as place:
        unpack_group(archive, group, Path(place))
        return show_study(study, Path(place))


def lines_of(shown: Shown) -> list[str]:
    """As `prony study show` prints them, tables and claims under titles of their own."""
    titles = {TITLE, *(table.spec.title for table in shown.tables)}
    return [f"### {line}" if line in titles else line for line in shown.lines()]


if __name__ == "__main__":
    sys.exit(main())

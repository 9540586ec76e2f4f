"""Make docs/img/report.png: a report of runs on an H200, as a browser shows it. `make screenshots` calls it.

    python scripts/report_picture.py [--out docs/img/report.png] [--browser chromium]

It imports results/h200/headline-20261118c.tar.gz into a temporary store, writes the report of five of its runs, and
takes a picture of the top of the page with headless Chromium or Chrome, which must be installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT / "results" / "h200" / "headline-20261118c.tar.gz"
# One of the three runs of each workload. The first is unfolded: its step series shows a transient that is cut.
RUNS = ("dd885c", "b5803f", "baafd1", "39b3ca", "fee177")
WIDTH, HEIGHT = 1360, 1320  # down to the phases of the first run
# Wider than the page is on a screen, so that the table of results needs no scroll bar.
WIDE = "main { max-width: 1340px }</style>"
MOST_BYTES = 300_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img" / "report.png")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    options = parser.parse_args()
    if options.browser is None:
        print(f"report_picture.py: no browser found ({', '.join(BROWSERS)}); name one with --browser", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        prony("store", "import", str(ARCHIVE), "--runs", folder)
        prony("report", *RUNS, "--runs", folder, "--out", str(page))
        page.write_text(page.read_text(encoding="utf-8").replace("</style>", WIDE, 1), encoding="utf-8")
        picture = Path(folder) / "report.png"
        argv = [options.browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        argv += [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)
        if picture.stat().st_size > MOST_BYTES:
            print(f"report_picture.py: the picture has {picture.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
            return 1
        shutil.copyfile(picture, options.out)
    return 0


def prony(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "prony", *words], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())

"""Several controllers share a root: no row is lost, none is doubled, nobody fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from prony.store import Store

PROCESSES, FOLDERS = 4, 50
INGEST = """
import sys
from pathlib import Path
from prony.store import Store
root, number = Path(sys.argv[1]), int(sys.argv[2])
store = Store(root)
for folder in sorted(root.glob(f"run-{number}-*")):
    store.ingest(folder)
    if folder.name.endswith("25"):
        store.rebuild()
"""


def test_processes_ingest_side_by_side(tmp_path: Path, get_record: object) -> None:
    record = get_record("d00001")  # type: ignore[operator]
    for number in range(PROCESSES):
        for position in range(FOLDERS):
            record["id"] = f"run-{number}-{position:02}"
            folder = tmp_path / record["id"]
            folder.mkdir()
            (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")
    started = [
        subprocess.Popen([sys.executable, "-c", INGEST, str(tmp_path), str(number)], stderr=subprocess.PIPE)
        for number in range(PROCESSES)
    ]
    said = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * PROCESSES, said
    found = [run.id for run in Store(tmp_path).runs()]
    assert len(found) == len(set(found)) == PROCESSES * FOLDERS

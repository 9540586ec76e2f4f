"""Results of others, as lines of `workload TAB device TAB images per second`."""

from __future__ import annotations

from prony.store.anchors import Anchor
from prony.store.foreign import ImportOptions
from prony_node.contract.errors import RequestError

FORM = "example-tsv"


def parse(text: str, given: ImportOptions) -> list[Anchor]:
    """A throughput for each line; a line that is none is refused with its number."""
    anchors = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 3:
            raise RequestError(f"line {number} has {len(cells)} cells, not workload, device and rate")
        found = {"workload": cells[0], "device": cells[1], "value": cells[2]}
        anchors.append(given.anchor(FORM, {**found, "metric": "throughput", "unit": "images/s"}))
    return anchors

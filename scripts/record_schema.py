"""Writes docs/reference/record.schema.json, the JSON Schema of a record, from the dataclasses that read it.

python scripts/record_schema.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prony_node.contract.record import RECORD_SCHEMA, Record
from prony_node.contract.typed import json_schema

PATH = Path(__file__).parents[1] / "docs" / "reference" / "record.schema.json"


def schema_text() -> str:
    schema = json_schema(Record, title=f"A record of Prony, {RECORD_SCHEMA}", address=f"urn:{RECORD_SCHEMA}")
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def write_schema(path: Path = PATH) -> None:
    path.write_text(schema_text(), encoding="utf-8")


def main() -> int:
    write_schema()
    return 0


if __name__ == "__main__":
    sys.exit(main())

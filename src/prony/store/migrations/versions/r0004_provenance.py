"""Which node program made a run, and whether its record agrees with the files beside it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for name in ("node_source", "verified"):
        op.add_column("run", sa.Column(name, sa.String))

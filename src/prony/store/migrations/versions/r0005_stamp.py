"""Which file a row was read from, so that a record that was edited since is read again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("run", sa.Column("stamp", sa.BigInteger))

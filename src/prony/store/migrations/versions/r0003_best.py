"""An index in the order of the rate, so that the best few of many are found without looking at all of them."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

FILTERED = ("workload", "status", "mode", "precision", "batch_size", "devices", "device")


def upgrade() -> None:
    op.drop_index("ix_run_asked", "run")
    op.create_index("ix_run_asked", "run", [*FILTERED, "rate", "started", "mfu", "energy_per_sample"])
    if op.get_bind().dialect.name == "sqlite":
        op.create_index("ix_run_best", "run", ["rate", *FILTERED])

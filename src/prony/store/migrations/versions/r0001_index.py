"""The index of Prony 0.1: one table of runs beside a number for the version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table("version", sa.Column("version", sa.Integer, nullable=False))
    op.create_table(
        "run",
        sa.Column("folder", sa.String, primary_key=True),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("workload", sa.String, nullable=False),
        sa.Column("trial_hash", sa.String, nullable=False),
        sa.Column("effective_hash", sa.String),
        sa.Column("repeat", sa.Integer, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("failure_kind", sa.String),
        sa.Column("failure_message", sa.String),
        sa.Column("started", sa.String, nullable=False),
        sa.Column("ended", sa.String, nullable=False),
        sa.Column("machine", sa.String),
        sa.Column("software", sa.String),
        sa.Column("device", sa.String),
        sa.Column("unit", sa.String),
        sa.Column("rate", sa.Float),
        sa.Column("rate_low", sa.Float),
        sa.Column("rate_high", sa.Float),
        sa.Column("score", sa.String),
        sa.Column("quality", sa.Float),
        sa.Column("time_to_quality_s", sa.Float),
        sa.Column("worst", sa.String, nullable=False),
        sa.Column("settings", sa.String, nullable=False),
        sa.Column("effective", sa.String, nullable=False),
    )
    for name in ("id", "trial_hash", "started"):
        op.create_index(f"ix_run_{name}", "run", [name])

"""Short rows with settings and metrics as columns, the long texts apart; anchors; packed folders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

TEXTS = ("host", "place", "preset", "mode", "data", "precision", "compile")
COUNTS = ("devices", "batch_size", "workers")
METRICS = (
    "throughput_per_device", "step_time", "latency_p50", "latency_p90", "latency_p99", "time_to_first_token",
    "cold_start", "data_wait_share", "flops_per_sample", "recomputed_flops_per_sample", "mfu", "peak_memory",
    "peak_memory_reserved", "peak_memory_host", "cpu_utilisation", "energy", "energy_per_sample", "samples_per_wh",
    "power", "power_peak", "power_idle", "node_energy", "node_power", "loss_first", "loss_last", "energy_to_quality",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "run_detail",
        sa.Column("folder", sa.String, primary_key=True),
        sa.Column("failure_message", sa.String),
        sa.Column("settings", sa.String, nullable=False),
        sa.Column("effective", sa.String, nullable=False),
        sa.Column("metrics", sa.String, nullable=False, server_default="{}"),
    )
    op.execute(
        "INSERT INTO run_detail (folder, failure_message, settings, effective) "
        "SELECT folder, failure_message, settings, effective FROM run"
    )
    with op.batch_alter_table("run") as run:
        for name in ("failure_message", "settings", "effective"):
            run.drop_column(name)
        for name in TEXTS:
            run.add_column(sa.Column(name, sa.String))
        for name in COUNTS:
            run.add_column(sa.Column(name, sa.BigInteger))
        for name in METRICS:
            run.add_column(sa.Column(name, sa.Float))
        run.add_column(sa.Column("row_version", sa.Integer, nullable=False, server_default="0"))
    asked = ["workload", "status", "mode", "precision", "batch_size", "devices", "device", "rate", "started"]
    op.create_index("ix_run_asked", "run", asked)
    _create_anchor()
    op.create_table(
        "packed",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("record_sha256", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.drop_table("version")


def _create_anchor() -> None:
    op.create_table(
        "anchor",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("format", sa.String, nullable=False),
        sa.Column("position", sa.String),
        sa.Column("workload", sa.String),
        sa.Column("mode", sa.String),
        sa.Column("data", sa.String),
        sa.Column("system", sa.String),
        sa.Column("device", sa.String),
        sa.Column("devices", sa.BigInteger),
        sa.Column("precision", sa.String),
        sa.Column("batch_size", sa.BigInteger),
        sa.Column("metric", sa.String, nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("unit", sa.String),
        sa.Column("note", sa.String),
        sa.Column("more", sa.String, nullable=False, server_default="{}"),
    )
    op.create_index("ix_anchor_workload", "anchor", ["workload"])

"""The tables of a store, and the version of their schema. A change here needs a migration (migrations/versions)."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table

from prony.store.rows import METRIC_COLUMNS, NUMBER_SETTINGS, TEXT_SETTINGS

HEAD = "0005"  # the newest revision in migrations/versions; a test holds the two together
VERSION_TABLE = "prony_version"

metadata = MetaData()

version_table = Table(VERSION_TABLE, metadata, Column("version_num", String(32), primary_key=True))

# Short rows: a query reads all of them. What is long, or asked for by few, is in run_detail.
run_table = Table(
    "run",
    metadata,
    Column("folder", String, primary_key=True),  # its name inside the root; in a team's store the run's id
    Column("id", String, nullable=False, index=True),
    Column("workload", String, nullable=False),
    Column("trial_hash", String, nullable=False, index=True),
    Column("effective_hash", String),
    Column("repeat", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("failure_kind", String),
    Column("started", String, nullable=False, index=True),
    Column("ended", String, nullable=False),
    Column("machine", String),
    Column("software", String),
    Column("node_source", String),
    Column("verified", String),
    Column("device", String),
    Column("devices", BigInteger),
    Column("host", String),
    Column("place", String),  # of a team's store: where the folder was when it was indexed
    Column("unit", String),
    Column("rate", Float),
    Column("rate_low", Float),
    Column("rate_high", Float),
    Column("score", String),
    Column("quality", Float),
    Column("time_to_quality_s", Float),
    Column("worst", String, nullable=False),
    Column("row_version", Integer, nullable=False, server_default="0"),
    Column("stamp", BigInteger),  # of the record's file when it was read, so that an edit is noticed
    *(Column(name, String) for name in TEXT_SETTINGS),
    *(Column(name, BigInteger) for name in NUMBER_SETTINGS),
    *(Column(name, Float) for name in METRIC_COLUMNS),
)

# What is asked most, side by side: a query that needs no more than these reads a third of the bytes.
FILTERED = tuple(
    run_table.c[name] for name in ("workload", "status", "mode", "precision", "batch_size", "devices", "device")
)
SORTED = tuple(run_table.c[name] for name in ("rate", "started", "mfu", "energy_per_sample"))
Index("ix_run_asked", *FILTERED, *SORTED)
# And in the order of the rate, so that the best 50 of a million are found at the top. PostgreSQL would not walk it in
# this order (what has no rate comes last), and has no need to.
Index("ix_run_best", run_table.c.rate, *FILTERED).ddl_if(dialect="sqlite")

detail_table = Table(
    "run_detail",
    metadata,
    Column("folder", String, primary_key=True),
    Column("failure_message", String),
    Column("settings", String, nullable=False),  # JSON, as requested
    Column("effective", String, nullable=False),  # JSON
    Column("metrics", String, nullable=False, server_default="{}"),  # JSON, name to value
)

anchor_table = Table(
    "anchor",
    metadata,
    Column("key", String, primary_key=True),  # of its content, so that a second import changes nothing
    Column("source", String, nullable=False),
    Column("format", String, nullable=False),
    Column("position", String),  # where in the source
    Column("workload", String, index=True),
    Column("mode", String),
    Column("data", String),
    Column("system", String),
    Column("device", String),
    Column("devices", BigInteger),
    Column("precision", String),
    Column("batch_size", BigInteger),
    Column("metric", String, nullable=False),
    Column("value", Float, nullable=False),
    Column("unit", String),
    Column("note", String),
    Column("more", String, nullable=False, server_default="{}"),  # JSON: what has no column of its own
)

# A team's store keeps whole run folders, packed, for whoever wants to pull them.
packed_table = Table(
    "packed",
    metadata,
    Column("id", String, primary_key=True),
    Column("record_sha256", String, nullable=False),  # of the record in its canonical form
    Column("sha256", String, nullable=False),  # of the packed bytes
    Column("content", LargeBinary, nullable=False),
)

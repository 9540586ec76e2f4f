"""The schema of a store: made where there is none, upgraded when it is older, refused when it is newer."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, MetaData, insert, inspect, text

from prony.store.sqlite_file import MARK, TABLES, Foreign
from prony.store.tables import HEAD, VERSION_TABLE, metadata, version_table
from prony_node.contract.digits import is_digits
from prony_node.contract.errors import RequestError

LEGACY_VERSION = 2  # of the table `version`, before there were migrations: revision 0001
MIGRATIONS = Path(__file__).parent / "migrations"
# How much is in an SQLite file that no Prony has put there; a trigger or a view would run by itself.
UNKNOWN = (
    "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index') OR (type = 'table' "
    f"AND name NOT LIKE 'sqlite%' AND name NOT IN ({', '.join(repr(name) for name in sorted(TABLES))}))"
)
LOCK = 0x50726F6E79  # of PostgreSQL's advisory locks: one process changes the schema at a time


def found_revision(connection: Connection) -> str | None:
    """The revision of the tables here: None where there are none, or only someone else's."""
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE in names:
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
        known = len(found) == 1 and is_digits(str(found[0])) and int(found[0]) > 0
        return str(found[0]) if known else None
    if "version" in names and "run" in names and connection.dialect.name == "sqlite":
        versions = connection.execute(text("SELECT version FROM version")).scalars().all()
        if len(versions) == 1 and isinstance(versions[0], int):
            if versions[0] > LEGACY_VERSION:
                return f"{versions[0]:04}"  # a newer one than was ever made this way
            return "0001" if versions[0] == LEGACY_VERSION else None
    return None


def is_newer(revision: str) -> bool:
    return is_digits(revision) and int(revision) > int(HEAD)


def newer(where: str, revision: str) -> RequestError:
    return RequestError(
        f"{where} was written by a newer Prony (its schema is {revision}, this Prony knows up to {HEAD}): "
        "upgrade Prony to use it"
    )


def create(connection: Connection, where: str) -> None:
    """Make the tables, in place of what an index beside run folders held, which is ours; others' on a server stay."""
    if connection.dialect.name == "sqlite":
        check_ours(connection, where)
        stale = MetaData()
        stale.reflect(connection)
        stale.drop_all(connection)
        mark(connection)
    else:
        taken = set(inspect(connection).get_table_names()) & set(metadata.tables)
        if taken:
            raise RequestError(
                f"{where} holds tables that are not Prony's ({', '.join(sorted(taken))}): "
                "give Prony a database, or a schema, of its own"
            )
    metadata.create_all(connection)
    connection.execute(insert(version_table).values(version_num=HEAD))


def check_ours(connection: Connection, where: str) -> None:
    """Refuse an index with tables, views or triggers that no Prony made, whatever mark it carries."""
    if connection.dialect.name == "sqlite" and connection.exec_driver_sql(UNKNOWN).scalar():
        raise Foreign(where, "holds tables, views or triggers that Prony did not make")


def mark(connection: Connection) -> None:
    """Say in an index, as of an earlier Prony, that it is ours."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id={MARK}")


def upgrade(connection: Connection, found: str) -> None:
    """Take tables of an older revision to this one, in the transaction that is open."""
    import logging

    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if VERSION_TABLE not in inspect(connection).get_table_names():
        command.stamp(config, found)
    command.upgrade(config, HEAD)
    mark(connection)


def lock(connection: Connection) -> None:
    """Keep others from changing the schema until this transaction ends; SQLite's own lock does that already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": LOCK})

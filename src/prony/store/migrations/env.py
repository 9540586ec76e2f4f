"""What Alembic asks for: it runs the steps on the connection, and in the transaction, that it is handed."""

from alembic import context

from prony.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()

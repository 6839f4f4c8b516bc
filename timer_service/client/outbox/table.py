"""The table of an outbox: one row for each command that waits to be sent, or that the broker refused for ever."""

from collections.abc import Mapping, Sequence

from timer_service.client.user_tables import scripts

_COLUMNS = """(
    id {id} PRIMARY KEY,
    tenant TEXT NOT NULL,
    message TEXT NOT NULL,
    command_id TEXT NOT NULL,
    size BIGINT NOT NULL,
    stored_at {stored_at} NOT NULL,
    error TEXT,
    traceparent TEXT,
    body TEXT NOT NULL
)"""
_ENGINES = {
    "sqlite": {"id": "INTEGER", "stored_at": "TEXT DEFAULT CURRENT_TIMESTAMP"},
    "postgresql": {"id": "BIGINT GENERATED ALWAYS AS IDENTITY", "stored_at": "TIMESTAMPTZ DEFAULT now()"},
}


def definition(table: str) -> Mapping[str, Sequence[str]]:
    """Return the statements that create the table of an outbox, for each engine."""
    index = f"CREATE INDEX IF NOT EXISTS {table}_waiting ON {table} (id) WHERE error IS NULL"
    return {
        engine: (f"CREATE TABLE IF NOT EXISTS {table} {_COLUMNS.format(**types)}", index)
        for engine, types in _ENGINES.items()
    }


def creation(table: str) -> Mapping[str, Sequence[str]]:
    """Return the statements that create the table if it is missing, for each engine."""
    return scripts(table, definition(table))

"""The statements on a table of commands that a worker handles bit by bit, such as cancellations and backfills.

Its key is the tenant and the position of the command. `available_at` says when the worker goes on; it is NULL if the
command has ended. The commands of a tenant follow each other, oldest first.
"""

from collections.abc import Sequence

from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.core.due", "unfinished_commands.sql")


def statements_of(table: str, columns: Sequence[str]) -> dict[str, str]:
    """Return the statements for a table. `lock_due` returns the columns. `TenantTurns` takes `due_tenants`."""
    return {name: sql.format(table=table, columns=", ".join(columns)) for name, sql in _SQL.items()}

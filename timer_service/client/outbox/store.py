"""The table of an outbox, as its relay sees it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timer_service.client.checks import check_identifier, check_name, check_tenant, check_type
from timer_service.client.own_database import OwnDatabase

MOST_ROWS = 1_000
MOST_BYTES = 8 * 1024 * 1024
_MOST_REFUSED = 1_000


class OutboxRow(NamedTuple):
    """A command that waits to be sent."""

    row_id: int
    tenant: str
    message: str
    command_id: str
    body: str
    traceparent: str | None = None


def problem_of(row: OutboxRow) -> str | None:
    """Return why a row cannot be sent, or None. Such a row was not written by `Outbox`."""
    try:
        check_tenant(row.tenant)
        check_name("message", row.message)
        check_identifier("command_id", row.command_id)
        check_type("body", row.body, str, "text").encode()
    except ValueError as error:  # also a character that UTF-8 cannot have
        return str(error)
    return None


class RefusedCommand(NamedTuple):
    """A command that the broker can never store. Its row stays in the table."""

    row_id: int
    tenant: str
    message: str
    """The type of the command as in its subject, such as `schedule-timer`."""
    command_id: str
    error: str


class OutboxStore:
    """The rows of an outbox."""

    def __init__(self, database: OwnDatabase, table: str) -> None:
        self._database = database
        self._table = table

    async def exists(self) -> bool:
        """Return whether the table exists."""
        queries = {
            "sqlite": "SELECT 1 FROM sqlite_master WHERE name = :table",
            "postgresql": "SELECT 1 WHERE to_regclass(:table) IS NOT NULL",
        }
        return bool(await self._database.fetch(queries[self._database.engine], {"table": self._table}))

    async def lock(self) -> bool:
        """Return whether this session is the one that sends the commands of the table. SQLite has no such lock."""
        if self._database.engine == "sqlite":
            return True
        # The key is that of this table: another schema may have one of the same name.
        key = "hashtextextended('timer_service outbox ' || CAST(CAST(to_regclass(:table) AS oid) AS text), 0)"
        ((locked,),) = await self._database.fetch(f"SELECT pg_try_advisory_lock({key})", {"table": self._table})
        return bool(locked)

    async def read(self, without: Sequence[str]) -> list[OutboxRow]:
        """Return the oldest rows of all tenants except some: at most 1,000, and one more than fit in 8 MiB."""
        tenants = {f"tenant_{number}": tenant for number, tenant in enumerate(without)}
        others = f"AND tenant NOT IN ({', '.join(f':{name}' for name in tenants)})" if tenants else ""
        oldest = f"SELECT id, size FROM {self._table} WHERE error IS NULL {others} ORDER BY id LIMIT {MOST_ROWS}"  # noqa: S608
        sizes = f"SELECT id, SUM(size) OVER (ORDER BY id) - size AS bytes_before FROM ({oldest}) AS oldest"  # noqa: S608
        page = f"SELECT id FROM ({sizes}) AS sizes WHERE bytes_before < {MOST_BYTES}"  # noqa: S608
        columns = "id, tenant, message, command_id, body, traceparent"
        rows = f"SELECT {columns} FROM {self._table} WHERE id IN ({page}) ORDER BY id"  # noqa: S608
        return [OutboxRow(*row) for row in await self._database.fetch(rows, tenants)]

    async def settle(self, rows: Sequence[OutboxRow], endings: Mapping[str, str | None]) -> None:
        """Delete the rows that the broker has stored, and mark those that it can never store, by their command ids.

        Only these rows: a row with a smaller id may have been committed after them.
        """
        ended = [(row.row_id, endings[row.command_id]) for row in rows if row.command_id in endings]
        sent = [{"id": row_id} for row_id, error in ended if error is None]
        refused = [{"id": row_id, "error": error} for row_id, error in ended if error is not None]
        if sent:
            await self._database.run(f"DELETE FROM {self._table} WHERE id = :id", sent)  # noqa: S608
        if refused:
            await self._database.run(f"UPDATE {self._table} SET error = :error WHERE id = :id", refused)  # noqa: S608

    async def refused(self) -> list[RefusedCommand]:
        """Return the oldest 1,000 rows that the broker refused for ever."""
        columns = "id, tenant, message, command_id, error"
        query = f"SELECT {columns} FROM {self._table} WHERE error IS NOT NULL ORDER BY id LIMIT {_MOST_REFUSED}"  # noqa: S608
        return [RefusedCommand(*row) for row in await self._database.fetch(query, {})]

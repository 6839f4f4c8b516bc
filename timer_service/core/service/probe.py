"""The probe: finds out whether a database that failed can be written again."""

import secrets

from timer_service.core.due.loop import Pass
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction

_SQL = load_sql("timer_service.core.service", "probe.sql")


class DatabaseProbe:
    """A worker that writes to the database while its last write failed.

    Only a commit that wrote shows that the database can be written, and an idle service writes nothing by itself.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tick(self, now: int) -> Pass:  # noqa: ARG002 - part of the protocol
        """Write once if the last write failed."""
        if not self._database.health.usable:
            await in_transaction(self._database, _write)
        return Pass(0)


async def _write(tx: Transaction) -> None:
    await tx.execute(_SQL["write"], {"database_id": secrets.token_hex(16)})

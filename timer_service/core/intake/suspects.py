"""Commands that may have ended the process of the service.

The database counts how often the handling of such a command has begun and not ended: a process that dies cannot count.
"""

from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position

_SQL = load_sql("timer_service.core.intake", "suspects.sql")

MOST_DEATHS = 3
"""A command is rejected if the process dies this many times while it handles this command alone."""


class Suspects:
    """The suspects in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begun_here: set[Position] = set()
        """The commands that this process has begun to handle and could not end, because the database was away."""

    async def begin(self, suspect: Delivery) -> int:
        """Record that the handling begins. Return how many processes have died during it."""
        at = suspect.position
        parameters = {**at._asdict(), "more": int(at not in self._begun_here)}
        self._begun_here.add(at)

        async def begin(tx: Transaction) -> int:
            (row,) = await tx.fetch(_SQL["begin"], parameters)
            begun: int = row["begun"]
            return begun - 1

        return await in_transaction(self._database, begin)

    async def end(self, suspect: Delivery) -> None:
        """Record that the process has survived the handling."""

        async def end(tx: Transaction) -> None:
            await tx.execute(_SQL["end"], suspect.position._asdict())

        await in_transaction(self._database, end)
        self._begun_here.discard(suspect.position)

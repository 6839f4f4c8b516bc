"""The database itself: its identity, and from when on its commands must be read again."""

import secrets
from typing import NamedTuple

from timer_service.core.database import Transaction
from timer_service.core.sql import load_sql

_SQL = load_sql("timer_service.core", "installation.sql")


class Installation(NamedTuple):
    """What a database knows about itself."""

    database_id: str
    """Chosen at random when the database is first used."""
    replay_since: int | None
    """The instant from which the service must read the commands again when it starts; None if it need not."""


async def read_or_create(tx: Transaction) -> Installation:
    """Return the installation. The first call chooses the identifier."""
    await tx.execute(_SQL["create"], {"database_id": secrets.token_hex(16)})
    (row,) = await tx.fetch(_SQL["find"])
    return Installation(row["database_id"], row["replay_since"])


async def set_replay_since(tx: Transaction, at: int | None) -> None:
    """Set the instant from which commands are read again at the next start."""
    await tx.execute(_SQL["set_replay_since"], {"at": at})

"""The database itself: its identity, and from when on its commands must be read again."""

import secrets
from typing import NamedTuple

from timer_service.core.ports.database import Reader, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.message import Position

_SQL = load_sql("timer_service.core.intake", "installation.sql")


class Replay(NamedTuple):
    """A request to read the commands of the stream again."""

    since: int
    """The instant from which the service reads them when it starts."""
    id: str
    """Another one for each request, also if the instant is the same."""


class Installation(NamedTuple):
    """What a database knows about itself."""

    database_id: str
    """Chosen at random when the database is first used."""
    replay: Replay | None
    """The replay that the service must do when it starts."""
    unsettled_since: int | None
    """When the broker stored the oldest command that was not settled at the last look; None if there was none."""


async def read_or_create(tx: Transaction) -> Installation:
    """Return the installation. The first call chooses the identifier."""
    await tx.execute(_SQL["create"], {"database_id": secrets.token_hex(16)})
    (row,) = await tx.fetch(_SQL["find"])
    replay = None if row["replay_since"] is None else Replay(row["replay_since"], row["replay_id"] or "")
    return Installation(row["database_id"], replay, row["unsettled_since"])


async def request_replay(tx: Transaction, since: int) -> None:
    """Make the service read the commands again from an instant when it starts."""
    await read_or_create(tx)
    await tx.execute(_SQL["set_replay"], {"since": since, "id": secrets.token_hex(8)})


async def forget_replay(tx: Transaction) -> None:
    """Record that no commands must be read again."""
    await tx.execute(_SQL["set_replay"], {"since": None, "id": None})


async def set_unsettled_since(tx: Transaction, at: int | None) -> None:
    """Record when the broker stored the oldest command that is not settled."""
    await tx.execute(_SQL["set_unsettled_since"], {"at": at})


async def exempt_until(tx: Transaction, position: Position) -> None:
    """Record that no limit refuses the commands up to a position, because they are handled again."""
    await read_or_create(tx)
    await tx.execute(_SQL["raise_exempt"], position._asdict())


async def read_exempt(reader: Reader) -> Position:
    """Return the position up to which no limit refuses a command."""
    rows = await reader.fetch(_SQL["find_exempt"])
    return Position(rows[0]["exempt_epoch"], rows[0]["exempt_sequence"]) if rows else Position(0, 0)

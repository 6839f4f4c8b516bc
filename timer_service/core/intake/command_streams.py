"""The history of the command stream in the database. `epochs` decides what is new about it."""

from collections.abc import Sequence

from timer_service.core.intake.epochs import Epochs, FindCommand, LookAtStream, Part, Received, recognize
from timer_service.core.intake.installation import Installation, exempt_until, forget_replay, read_or_create
from timer_service.core.ports.database import Database, Reader, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import ChangedStreamError
from timer_service.core.values.message import Position

_SQL = load_sql("timer_service.core.intake", "command_streams.sql")
_FIND_LOCKED = f"{_SQL['find']}\n/* for update */"


class CommandHistory:
    """The history of the command stream in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def installation(self) -> Installation:
        """Return the identity of the database, and from when on to read the stream again."""
        return await in_transaction(self._database, read_or_create)

    async def replay_ended(self) -> None:
        """Record that the commands since a restore are handled again, so that no further start delivers them."""
        await in_transaction(self._database, forget_replay)

    async def exempt_until(self, position: Position) -> None:
        """Record that no limit refuses the commands up to a position, because they are handled again."""
        await in_transaction(self._database, lambda tx: exempt_until(tx, position))

    async def recognize(self, look: LookAtStream, find: FindCommand, received: Received | None = None) -> Epochs:
        """Return the epochs of the commands of a stream, and store what is new about its history.

        The history is read first. Other instances handle commands meanwhile: a history that is newer than the state of
        the stream would name a command that the stream does not seem to have yet.
        """
        while True:
            before = await _load(self._database.reader)
            stream = await look()
            after = await recognize(before, stream, find, received)
            if after == before or await in_transaction(self._database, lambda tx: _save(tx, before, after)):  # noqa: B023
                return Epochs(tuple(part for part in after if part.created == stream.created))


async def advance(tx: Transaction, deliveries: Sequence[Delivery]) -> None:
    """Store the newest of the handled commands, in the transaction that handles them.

    Only one row of the newest part is written, so that a stream that was rolled back is recognized. Raises
    `ChangedStreamError` if the history has a part that the subscription did not know when it handed the commands out.
    """
    newest = max(deliveries, key=lambda delivery: delivery.position)
    values = {"epoch": newest.position.epoch, "sequence": newest.position.sequence, "stored_at": newest.stored_at}
    (row,) = await tx.fetch(_SQL["advance"], values) or await tx.fetch(_SQL["newest_epoch"])
    if row["epoch"] is not None and any(row["epoch"] > each.newest_epoch for each in deliveries):
        raise ChangedStreamError


async def _load(reader: Reader) -> list[Part]:
    return [_read(row) for row in await reader.fetch(_SQL["find"])]


def _read(row: Row) -> Part:
    return Part(*(row[column] for column in Part._fields))


async def _save(tx: Transaction, before: Sequence[Part], after: Sequence[Part]) -> bool:
    """Write what differs. Return False, and write nothing, if another instance has changed the history."""
    found = [_read(row) for row in await tx.fetch(_FIND_LOCKED)]
    known = {part.epoch: part for part in before}
    if [part.epoch for part in found] != list(known):
        return False
    renamed = [part for part in after if part.epoch in known and part.created != known[part.epoch].created]
    new = [part for part in after if part.epoch not in known]
    await tx.executemany(_SQL["rename"], [{"epoch": part.epoch, "created": part.created} for part in renamed])
    return await tx.executemany(_SQL["add"], [part._asdict() for part in new]) == len(new)

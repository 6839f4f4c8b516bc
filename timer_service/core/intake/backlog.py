"""The backlog: the commands that were in the log at one moment. Workers that decide by the time wait for them.

A command that was sent while the service or the broker was away shall count before what became due meanwhile.
"""

import logging

from timer_service.core.intake import cursor, waiting
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.database import Database
from timer_service.core.ports.log import LogCursor, LogUnavailableError
from timer_service.core.values.message import Position

log = logging.getLogger(__name__)

RECHECK_MS = 250
"""How often a closed gate is asked again."""
LONGEST_WAIT_MS = 60_000
"""How long the gate stays closed, so that one command that is tried again and again cannot stop everything."""


class Backlog:
    """The commands that were in the log when `begin` was called, and how far they are handled."""

    def __init__(self, broker: Broker, database: Database) -> None:
        self._broker = broker
        self._database = database
        self._end: LogCursor | None = None
        self._epoch: int | None = None
        """The epoch of the log when it was first looked how far it was read."""
        self._until: Position | None = None
        """How far the log was read when it was first seen that these commands were."""

    async def begin(self) -> bool:
        """Look where the log ends now. Return False if the broker does not say it."""
        self._end = self._epoch = self._until = None
        try:
            self._end = await self._broker.log.end()
        except LogUnavailableError as error:
            log.debug("the end of the command log is not known", extra={"reason": str(error)})
        return self._end is not None

    async def is_read(self) -> bool:
        """Return whether all these commands are applied, or wait in the database."""
        return await self._read_until() is not None

    async def is_applied(self, now: int) -> bool:
        """Return whether all these commands are applied, but for those behind a command that failed or is locked."""
        until = await self._read_until()
        return until is not None and not await waiting.is_ready(self._database.reader, until, now)

    async def _read_until(self) -> Position | None:
        """Return a position behind which none of these commands is, if the log was read so far.

        Commands of an older log may wait in the database, also if the log has none.
        """
        if self._end is None and not await self.begin():
            return None
        assert self._end is not None  # noqa: S101 - `begin` has set it
        if self._until is not None:
            return self._until
        reached = await cursor.find(self._database.reader)
        if reached is None:
            return None if self._end.sequence else Position(0, 0)
        if reached.epoch != (self._epoch or reached.epoch):  # the end was that of another log
            self._end = None
            return await self._read_until()
        self._epoch = reached.epoch
        if self._end.sequence and not await self._is_read_until(reached, self._end):
            return None
        self._until = Position(reached.epoch, reached.sequence)
        return self._until

    async def _is_read_until(self, reached: LogCursor, end: LogCursor) -> bool:
        """Return whether a cursor is at the end of the log or behind it."""
        if reached.log == end.log and reached.sequence == 0:  # older commands were read from another log
            return reached.stored_at >= end.stored_at
        if reached.log != end.log or reached.sequence < end.sequence:
            return False
        if reached.stored_at >= end.stored_at:
            return True
        # The log was rolled back and has other commands now, or the clock of the broker was set back.
        return await self.begin() and self._end is not None and self._end[2:] == reached[2:]


class BacklogGate:
    """Open after the commands have been applied that were stored before the start or before the last outage ended."""

    def __init__(self, broker: Broker, database: Database) -> None:
        self._broker = broker
        self._backlog = Backlog(broker, database)
        self._outages: int | None = None
        """The outages of the broker whose commands have been applied; None before the first ones were."""
        self._waits_for: int | None = None
        """The outages for whose commands the gate waits; None: it does not wait."""
        self._waited_ms = 0
        """How long the gate has waited since it was last open, while the broker could be used."""
        self._looked_at: int | None = None

    async def is_open(self, now: int) -> bool:
        """Return whether what is due at `now` may be decided. If not, ask again after `RECHECK_MS`."""
        if not self._broker.health.usable:
            self._waits_for = self._looked_at = None
            return False
        outages = self._broker.outages
        if outages == self._outages:
            return True
        if self._waits_for != outages and await self._backlog.begin():
            self._waits_for = outages
        self._waited_ms += 0 if self._looked_at is None else max(now - self._looked_at, 0)  # it may have been set back
        self._looked_at = now
        if self._waited_ms >= LONGEST_WAIT_MS:
            log.warning("commands from before the start or an outage are not handled; going on without them")
        elif not await self._backlog.is_applied(now):
            return False
        self._outages, self._waits_for, self._waited_ms, self._looked_at = outages, None, 0, None
        return True

"""The backlog: the commands that were in the log at one moment. Workers that decide by the time wait for them.

A command that was sent while the service or the broker was away shall count before what became due meanwhile.
"""

import logging

from timer_service.core.intake import cursor, waiting_rows
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
        self._until: Position | None = None
        """How far the log was read when these commands were first found to be read; None before."""

    async def begin(self) -> bool:
        """Look where the log ends now. Return False if that is not known: then the next question looks again."""
        self._until = None
        self._end = await self._find_end()
        return self._end is not None

    async def is_read(self) -> bool:
        """Return whether all these commands are applied, or wait in the database."""
        return await self._read_until() is not None

    async def is_applied(self, now: int) -> bool:
        """Return whether each of these commands is applied, or waits behind one that failed or is locked."""
        until = await self._read_until()
        if until is None:
            return False
        return not await waiting_rows.is_ready(self._database.reader, until, now)

    async def _read_until(self) -> Position | None:
        """Return a position behind which none of these commands is; None while not all of them are read.

        Commands of an older log may wait in the database, also if the log has none.
        """
        if self._until is None and (self._end is not None or await self.begin()):
            assert self._end is not None  # noqa: S101 - `begin` has set it
            reached = await cursor.find(self._database.reader)
            if not _is_at_end(reached, self._end):
                self._end = await self._find_changed_end(reached, self._end)
            if _is_at_end(reached, self._end):
                self._until = Position(0, 0) if reached is None else Position(reached.epoch, reached.sequence)
        return self._until

    async def _find_changed_end(self, reached: LogCursor | None, end: LogCursor) -> LogCursor:
        """Return where the log ends now if it was replaced or rolled back since `end`; else `end`.

        A log that was rolled back and has grown again was read as far as `end`, but `_is_at_end` finds other times.
        """
        found = await self._find_end()
        if found is None:
            return end
        is_shorter_or_other = found.log != end.log or found.sequence < end.sequence
        is_read_as_far = reached is not None and reached.log == end.log and reached.sequence >= end.sequence
        return found if is_shorter_or_other or is_read_as_far else end

    async def _find_end(self) -> LogCursor | None:
        """Return where the log ends now; None if the broker does not say it."""
        try:
            return await self._broker.log.end()
        except LogUnavailableError as error:
            log.debug("the end of the command log is not known", extra={"reason": str(error)})
            return None


def _is_at_end(reached: LogCursor | None, end: LogCursor) -> bool:
    """Return whether a log was read up to an end. If the times do not fit, the log was rolled back and has grown again.

    `reached`: how far a log was read; None if no log was.
    """
    if end.sequence == 0:
        return True
    if reached is None or reached.log != end.log:
        return False
    if reached.sequence == end.sequence:
        return reached.stored_at == end.stored_at
    is_behind = reached.sequence > end.sequence or reached.sequence == 0  # 0: older commands were read from another log
    return is_behind and reached.stored_at >= end.stored_at


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
        """Return whether what is due at `now` may be decided. If not, ask again after `RECHECK_MS`.

        Each call counts how long the gate has waited. An outage does not count, and closes the gate.
        """
        if not self._broker.health.usable:
            self._waits_for = self._looked_at = None
            return False
        outages = self._broker.outages
        if outages == self._outages:
            return True
        if self._waits_for != outages and await self._backlog.begin():
            self._waits_for = outages
        if self._looked_at is not None:
            self._waited_ms += max(now - self._looked_at, 0)  # the clock may have been set back
        self._looked_at = now
        if self._waited_ms >= LONGEST_WAIT_MS:
            log.warning("commands from before the start or an outage are not handled; going on without them")
        elif not await self._backlog.is_applied(now):
            return False
        self._outages, self._waits_for, self._waited_ms, self._looked_at = outages, None, 0, None
        return True

"""Clock repair: corrects rows that were written while the clock was ahead, after it was set back.

A retry is written for now plus a delay, and a claim for now plus the length of a lease. If the clock is ahead at that
moment, the row waits for as long as the clock was ahead. No index finds such rows: it would slow each claim down. So
this worker reads all rows that are available later, in pages, but only at the start and after the clock was set back.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.loop import Pass
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Row, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.delays import LONGEST_DELAY

log = logging.getLogger(__name__)

_SQL = load_sql("timer_service.core.service", "clock_repair.sql")
_PAGE = 2000
_PAUSE_MS = 50
_AGAIN_MS = 60_000
_SCANS = 2
_READING_MS = 500
_END = 2**63 - 1
SLACK_MS = 1000
"""How far apart the clocks of two instances may be. A clock that is set back by less does no harm."""


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Rows that wait for an instant, and how to find those whose instant no right clock can have written."""

    table: str
    instant: str
    """The column of the instant. It has an index."""
    is_wrong: str
    """The condition for a wrong instant. Its only parameter is `:now`."""
    repair: str
    """The assignments that correct a row. Their only parameter is `:now`."""

    def sql(self, name: str) -> str:
        """Return the named statement of `clock_repair.sql` for these rows."""
        return _SQL[name].format(
            table=self.table, instant=self.instant, is_wrong=self.is_wrong, repair=self.repair, page=_PAGE
        )


def leased_rows(table: LeasedTable, visibility_timeout: timedelta) -> TimedRows:
    """Return the rows of a leased table. A lease lasts for `visibility_timeout`.

    A row that was claimed or retried waits for the length of a lease or the longest delay, at most. A row that was not
    is available when it is due, which may be in a year; one that is due when it is written is not due later than now.
    """
    longest_ms = max(visibility_timeout, LONGEST_DELAY) // timedelta(milliseconds=1) + SLACK_MS
    due_at, due_at_once = table.oldest_first, table.due_at_once
    waits_too_long = f"available_at - {longest_ms} > :now AND (available_at > {due_at} OR {due_at_once})"
    is_due_too_late = f"{due_at_once} AND lease_token IS NULL AND {due_at} - {SLACK_MS} > :now"
    right_due_at = f"CASE WHEN {due_at_once} AND {due_at} > :now THEN :now ELSE {due_at} END"
    right_available_at = f"CASE WHEN {due_at} > :now AND NOT ({due_at_once}) THEN {due_at} ELSE :now END"
    return TimedRows(
        table=table.name,
        instant="available_at",
        is_wrong=f"({waits_too_long}) OR ({is_due_too_late})",
        repair=f"lease_token = NULL, {due_at} = {right_due_at}, available_at = {right_available_at}",
    )


class ClockRepair:
    """A worker that reads and repairs one page of rows per pass.

    It reads all rows at the start and after the clock was set back by a second or more, and again a minute later: a row
    may be locked, another instance may follow the clock later, and this one may write rows late, after an outage.
    """

    def __init__(self, database: Database, clock: Clock, timed: Sequence[TimedRows]) -> None:
        self._database = database
        self._clock = clock
        self._timed = timed
        self._known_set_back = clock.set_back_ms
        self._scans_left = _SCANS
        self._begin_at = 0
        self._left = list(timed)
        """The rows that the current scan has not finished."""
        self._after = 0
        """The instant up to which the first of these were read."""

    async def tick(self, now: int) -> Pass:
        """Read one page, if a scan is due, and repair its rows. Return how many were repaired.

        Each table is read from `now` on: rows that are available already wait for no wrong instant.
        """
        if self._clock.set_back_ms - self._known_set_back >= SLACK_MS:
            self._known_set_back = self._clock.set_back_ms
            self._scans_left = _SCANS
            self._begin(now)
        if not self._scans_left:
            return Pass(0)
        if now < self._begin_at:
            return Pass(0, self._begin_at)
        repaired, end = await self._repair_page(self._left[0], max(self._after, now))
        self._after = end
        if end == _END:
            self._left.pop(0)
            self._after = 0
        if self._left:
            return Pass(repaired, now + _PAUSE_MS)
        self._scans_left -= 1
        self._begin(now + _AGAIN_MS)
        return Pass(repaired, self._begin_at if self._scans_left else None)

    def _begin(self, at: int) -> None:
        """Let the next scan begin at an instant, with all rows."""
        self._begin_at = at
        self._left = list(self._timed)
        self._after = 0

    async def _repair_page(self, rows: TimedRows, after: int) -> tuple[int, int]:
        """Repair the rows of a page that are not locked. Return how many, and the instant at which the page ends.

        The time is read when the transaction begins: rows that are claimed while a pass waits for the database are not
        wrong.
        """
        reader = self._database.reader
        end = await reader.fetch(rows.sql("page_end"), {"after": after})
        page = {"after": after, "until": end[0]["at"] if end else _END}
        if not await reader.fetch(rows.sql("find_wrong"), page | {"now": self._clock.now()}):
            return 0, page["until"]

        async def repair(tx: Transaction) -> Sequence[Row]:
            return await tx.fetch(rows.sql("repair"), page | {"now": self._clock.now()})

        if repaired := len(await in_transaction(self._database, repair)):
            about = {"table": rows.table, "count": repaired}
            log.warning("rows waited for a wrong time, because the clock was ahead", extra=about)
        return repaired, page["until"]


@dataclass(eq=False)
class ClockReader:
    """A worker that reads the clock twice a second, so that an idle service notices a jump of it."""

    clock: Clock

    async def tick(self, now: int) -> Pass:  # noqa: ARG002 - part of the protocol
        """Read the clock once."""
        return Pass(0, self.clock.now() + _READING_MS)

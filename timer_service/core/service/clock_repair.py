"""Clock repair: corrects rows that were written while the clock was ahead, after it was set back.

A retry is written for now plus a delay, and a claim for now plus the length of a lease. If the clock is ahead at that
moment, the row waits for as long as the clock was ahead. No index finds such rows: it would have to contain the rows
that claims write, and would slow each claim down. So this worker reads all rows that are available later, in pages, but
only at the start and after the clock was set back.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from timer_service.core.due.lease import LeasedTable
from timer_service.core.due.loop import Pass
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Parameters, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.delays import LONGEST_DELAY

log = logging.getLogger(__name__)

_SQL = load_sql("timer_service.core.service", "clock_repair.sql")
_PAGE = 5000
"""How many rows are read at a time. On SQLite a page takes 10 to 30 ms, and 1,000,000 pending timers 2.5 s in total."""
_MOST_REPAIRED = 500
"""How many rows one transaction repairs, so that commands and claims hardly wait."""
_PAUSE_MS = 50
_AGAIN_MS = 60_000
_READING_MS = 500
_END = 2**63 - 1
SLACK_MS = 1000
"""How far apart the clocks of two instances may be. A clock that is set back by less does no harm."""
_LONGEST_MS = LONGEST_DELAY // timedelta(milliseconds=1)
_DOUBLINGS = (_LONGEST_MS // 1000).bit_length()
_LONGEST_RETRY = (
    f"({SLACK_MS} + CASE WHEN last_error IS NULL THEN 0 "
    f"WHEN attempt BETWEEN 1 AND {_DOUBLINGS} THEN 1000 << (attempt - 1) ELSE {_LONGEST_MS} END)"
)
"""How long the next attempt of a row can be away, as SQL. The delays of `Backoff` double.

A row without an error waits for nothing: a command has just added it or let it be tried again.

An attempt that does not count can be away for longer. If the row has other attempts that count, it can be repaired
although the clock was right. Then it is only tried early.
"""


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Rows that wait for an instant, and how to find those whose instant no right clock can have written."""

    table: str
    key: tuple[str, ...]
    instant: str
    """The column of the instant. It has an index."""
    is_wrong: str
    """The condition for a wrong instant. Its only parameter is `:now`."""
    repair: str
    """The assignments that correct a row. Their only parameter is `:now`."""
    ordinal: str | None = None
    """The column that orders rows with the same instant, if their order matters."""

    def sql(self, name: str) -> str:
        """Return the named statement of `clock_repair.sql` for these rows."""
        return _SQL[name].format(
            table=self.table,
            key=", ".join(self.key),
            key_is=" AND ".join(f"{column} = :{column}" for column in self.key),
            instant=self.instant,
            is_wrong=self.is_wrong,
            repair=self.repair,
            then="" if self.ordinal is None else f", {self.ordinal}",
            page=_PAGE,
        )


def leased_rows(table: LeasedTable, visibility_timeout: timedelta) -> TimedRows:
    """Return the rows of a leased table. A lease lasts for `visibility_timeout`.

    A row that was never claimed is available when it is due, which may be in a year. A row that was claimed or retried
    is available later than that. Rows that are due at once, like those of the outbox, are never due later than now.
    """
    hold_ms = visibility_timeout // timedelta(milliseconds=1) + SLACK_MS
    due_at, due_at_once = table.oldest_first, table.due_at_once
    return TimedRows(
        table=table.name,
        key=table.key,
        instant="available_at",
        is_wrong=f"(available_at - CASE WHEN lease_token IS NULL THEN {_LONGEST_RETRY} ELSE {hold_ms} END > :now "
        f"AND (available_at > {due_at} OR {due_at_once})) "
        f"OR ({due_at_once} AND lease_token IS NULL AND {due_at} - {SLACK_MS} > :now)",
        repair=f"{table.state} = '{table.waiting}', lease_token = NULL, "
        f"{due_at} = CASE WHEN {due_at_once} AND {due_at} > :now THEN :now ELSE {due_at} END, "
        f"available_at = CASE WHEN {due_at} > :now AND NOT ({due_at_once}) THEN {due_at} ELSE :now END",
        ordinal=table.ordinal,
    )


class ClockRepair:
    """A worker that repairs one page of rows per pass.

    It reads all rows once at the start, and twice after the clock was set back by a second or more. The second time is
    a minute later: another instance may have followed the clock later, or this one may have written rows late, after
    an outage of the database.
    """

    def __init__(self, database: Database, clock: Clock, timed: Sequence[TimedRows]) -> None:
        self._database = database
        self._clock = clock
        self._timed = timed
        self._known_set_back = clock.set_back_ms
        self._scans_left = 1
        self._begin_at = 0
        self._left = list(timed)
        """The rows that the current scan has not finished."""
        self._after = 0
        """The instant up to which the first of these were read."""

    async def tick(self, now: int) -> Pass:
        """Read one page, if a scan is due, and repair its rows. Return how many were repaired."""
        if self._clock.set_back_ms - self._known_set_back >= SLACK_MS:
            self._known_set_back = self._clock.set_back_ms
            self._scans_left = 2
            self._begin(now)
        if not self._scans_left or now < self._begin_at:
            return Pass(0, self._begin_at if self._scans_left else None)
        repaired = await self._repair_page(self._left[0], now)
        if self._left:
            return Pass(repaired, now + _PAUSE_MS)
        self._scans_left -= 1
        self._begin(now + _AGAIN_MS)
        return Pass(repaired, self._begin_at if self._scans_left else None)

    def _begin(self, at: int) -> None:
        self._begin_at = at
        self._left = list(self._timed)
        self._after = 0

    async def _repair_page(self, rows: TimedRows, now: int) -> int:
        """Repair the rows of a page that no other session has locked. Another scan repairs the others, in a minute."""
        reader = self._database.reader
        after = max(self._after, now)
        end = await reader.fetch(rows.sql("page_end"), {"after": after})
        until = end[0]["at"] if end else _END
        page = {"after": after, "until": until, "now": now, "limit": _MOST_REPAIRED}
        found = len(await reader.fetch(rows.sql("find_wrong"), page))
        repaired = await in_transaction(self._database, lambda tx: self._repair(tx, rows, page)) if found else 0
        if repaired:
            log.warning(
                "rows waited for a wrong time, because the clock was ahead",
                extra={"table": rows.table, "count": repaired},
            )
        if repaired < found:
            self._scans_left = max(self._scans_left, 2)
        if repaired < _MOST_REPAIRED:  # else this page may have more of them
            self._after = until
            if not end:
                self._left.pop(0)
                self._after = 0
        return repaired

    async def _repair(self, tx: Transaction, rows: TimedRows, page: Parameters) -> int:
        """Lock and repair wrong rows of a page that no other session has locked, up to the limit. Return how many.

        The time is read again when the rows are locked. If the database is slow, the pass began seconds ago, and rows
        that another instance has claimed since then look as if its clock was ahead.
        """
        wrong = await tx.fetch(f"{rows.sql('find_wrong')}\n/* skip locked */", page)
        now = {"now": self._clock.now()}
        each = [{column: row[column] for column in rows.key} | now for row in wrong]
        return await tx.executemany(rows.sql("repair"), each)


class ClockReader:
    """A worker that reads the clock twice a second.

    A jump of the clock is followed a second after a reading has shown it. Without readings, an idle service would
    notice it only with the next command, and fire this command's timer by the old time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def tick(self, now: int) -> Pass:  # noqa: ARG002 - part of the protocol
        """Read the clock once."""
        return Pass(0, self._clock.now() + _READING_MS)

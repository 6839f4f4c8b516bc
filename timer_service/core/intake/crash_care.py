"""Care after a crash: finds a command that ends the process, without blaming one that was only near.

After an unclean stop, the first commands are applied in small groups, each marked in the database before. If the
process dies again, the commands of the marked group are applied one by one. A command that was alone in its mark when
two processes died becomes a dead letter unread. So a command that always ends the process does so three times if few
others come with it, and four times otherwise.
"""

import time
from collections.abc import Sequence

from timer_service.core.intake.commit import Commits
from timer_service.core.intake.waiting_rows import WaitingRow
from timer_service.core.values.raw_command import RawCommand

_GROUP = 32
_MOST_DEATHS = 2
"""How many processes may die while they apply one command alone."""
_ROWS_SECONDS = 30
"""How long after the start waiting commands are applied with care. A process that does not survive them dies sooner."""


class CrashCare:
    """What a process that began after a crash knows about it. It is not needed after an orderly stop."""

    def __init__(self, commits: Commits, tried: int, batch_size: int) -> None:
        """`tried`: how many commands were marked when the process before died.

        `batch_size`: how many commands the transaction had at most that was not survived.
        """
        self._commits = commits
        self._left = batch_size
        """How many commands of the log are still applied in small groups."""
        self._alone = tried
        """How many of these are applied one by one."""
        self._rows_until = time.monotonic() + _ROWS_SECONDS
        self._alone_in_row: dict[str, int] = {}
        """How many waiting commands are applied one by one, by tenant."""

    async def limit(self, rest: Sequence[RawCommand], size: int) -> int:
        """Return how many of the next commands of the log one transaction may have. Mark them, if that is few."""
        if self._left <= 0:
            return size
        size = 1 if self._alone > 0 or len(rest) <= _GROUP else min(size, _GROUP)
        await self._commits.mark(size)
        self._left -= size
        self._alone -= size
        return size

    @property
    def gives_up_next(self) -> bool:
        """Whether the next command of the log has ended so many processes that it is not even read."""
        return self._commits.place.deaths >= _MOST_DEATHS

    async def choose(self, rows: Sequence[WaitingRow]) -> list[WaitingRow]:
        """Return the rows that one transaction may have. Mark their commands, if that is few."""
        if not rows or time.monotonic() > self._rows_until:
            return list(rows)
        row = rows[0]
        if (alone := self._alone_in_row.get(row.tenant)) is None:  # so the mark is that of a process that has died
            alone = row.tried
            row = row._replace(deaths=row.deaths + (row.tried == 1))
        row = row._replace(limit=1 if alone > 0 or len(row.next) <= _GROUP else _GROUP)
        self._alone_in_row[row.tenant] = max(alone - len(row.next), 0)
        await self._commits.mark_row(row, len(row.next))
        return [row]

    @staticmethod
    def gives_up(row: WaitingRow) -> bool:
        """Return whether the next command of a row has ended so many processes that it is not even read."""
        return row.deaths >= _MOST_DEATHS

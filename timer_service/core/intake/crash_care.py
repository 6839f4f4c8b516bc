"""Care after a crash: finds a command that ends the process, without blaming one that was only near.

After an unclean stop, the first commands of the log are stored as waiting ones. Waiting commands are applied in small
groups, each marked in its row before. If the process dies again, the commands of the marked group are applied one by
one. A command that was alone in its mark when two processes died becomes a dead letter unread. So a command that always
ends the process does so three times if few others come with it, and four times otherwise.

A process may also die at once, for another reason. So a command that was near a death is tried only after a second.
"""

from collections.abc import Sequence

from timer_service.core.intake import waiting_rows
from timer_service.core.intake.commit import Commits
from timer_service.core.intake.waiting_rows import WaitingRow
from timer_service.core.ports.clock import Clock

GROUP_COMMANDS = 32
FEW_COMMANDS = 8
"""A row with so few commands is applied one by one at once: a group would cost a command one death more."""
_MOST_DEATHS = 2
"""How many processes may die while they apply one command alone."""
SUSPECT_MS = 1000
"""How long after the start such a command is tried again."""
_ROWS_MS = 30_000
"""How long after the start waiting commands are applied with care. A process that does not survive them dies sooner."""


class CrashCare:
    """What a process that began after a crash knows about it. It is not needed after an orderly stop."""

    def __init__(self, commits: Commits, clock: Clock, batch_size: int) -> None:
        """`batch_size`: how many commands the transaction had at most that was not survived."""
        self._commits = commits
        self._clock = clock
        self._began = clock.now()
        self._batch_size = self._left = batch_size
        """How many commands of the log are still stored."""
        self._alone: dict[str, int] = {}
        """How many waiting commands are still applied one by one, for each tenant of which one was chosen."""
        self._survived: dict[str, int] = {}
        """How many waiting commands were chosen with care, by tenant."""

    def count_read(self, count: int) -> bool:
        """Count commands that were read from the log. Return whether they are stored, and not applied at once."""
        is_stored = self._left > 0
        self._left -= count
        return is_stored

    async def choose(self, rows: Sequence[WaitingRow]) -> list[WaitingRow]:
        """Return the rows that one transaction may have; none if it is too early for the first one.

        While care is necessary, this is one row with few commands, which are marked in the database before.
        """
        age = self._clock.now() - self._began
        if age > _ROWS_MS:
            return list(rows)
        row = rows[0]
        if self._is_over(row):
            return [each for each in rows if self._is_over(each)]
        is_first_choice = row.tenant not in self._alone  # so the mark is that of a process that has died
        if is_first_choice and row.tried == 1:
            row = row._replace(deaths=row.deaths + 1)
        if is_first_choice and row.deaths and 0 <= age < SUSPECT_MS:  # less than 0: the clock was set back
            return []
        alone = self._alone.get(row.tenant, row.tried)
        is_single = alone > 0 or len(row.next) <= FEW_COMMANDS
        chosen = 1 if is_single else min(len(row.next), GROUP_COMMANDS)
        row = row._replace(limit=chosen)
        self._alone[row.tenant] = max(alone - chosen, 0)
        self._survived[row.tenant] = self._survived.get(row.tenant, 0) + chosen
        await self._commits.change(lambda tx: waiting_rows.mark(tx, row, chosen))
        return [row]

    def _is_over(self, row: WaitingRow) -> bool:
        """Return whether the process has applied as many commands of the tenant with care as a transaction has."""
        return self._survived.get(row.tenant, 0) >= self._batch_size

    @staticmethod
    def gives_up(row: WaitingRow) -> bool:
        """Return whether the next command of a row has ended so many processes that it is not even read."""
        return row.deaths >= _MOST_DEATHS

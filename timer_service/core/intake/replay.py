"""Replay after a restore: from when on the broker must deliver the commands again.

A database that was restored from a copy lacks the commands that were handled after the copy was made. The broker
counts them as handled and does not deliver them. So the service reads the command stream again from an earlier instant.
This is always safe, because a command that was handled already changes nothing.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from timer_service.core.due.loop import Pass
from timer_service.core.intake.installation import read_or_create, request_replay, set_unsettled_since
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction

MARGIN = timedelta(hours=1)
"""How much older than the newest handled command and the oldest unsettled one a replay begins.

A command that is handled ahead of a backlog is new, so it does not show how old the backlog is. The oldest unsettled
command shows that, but the database learns it only once a minute.
"""

_SQL = load_sql("timer_service.core.intake", "replay.sql")
_NANOSECONDS_PER_MILLISECOND = 1_000_000
_MILLISECOND = timedelta(milliseconds=1)
_LOOK_MS = 60_000
"""How much the oldest unsettled command must differ from the recorded one to be recorded again."""


async def request_replay_of_later_commands(tx: Transaction) -> int:
    """Make a copy of the database replay every command that the copy may lack. Return the instant.

    The instant is an hour before the newest command that the database has handled, or before the oldest one that was
    not settled then, by the broker's clock. So it is right for a copy of any age, also if a backlog of commands waited
    when the copy was made. It is 0, for all commands that the broker still has, if the database has handled none. An
    earlier instant that was requested before stays.
    """
    known = await read_or_create(tx)
    rows = await tx.fetch(_SQL["newest_handled"])
    oldest = rows[0]["last_stored_at"] // _NANOSECONDS_PER_MILLISECOND if rows else 0
    if known.unsettled_since is not None:
        oldest = min(oldest, known.unsettled_since)
    since = max(oldest - MARGIN // _MILLISECOND, 0)
    if known.replay is not None:
        since = min(since, known.replay.since)
    await request_replay(tx, since)
    return since


class BacklogWatch:
    """A worker that records when the broker stored the oldest command that is not settled.

    A backup needs it: commands of a backlog are not in the database yet, and may be much older than the newest handled
    command.
    """

    def __init__(self, database: Database, oldest_unsettled: Callable[[], Awaitable[int | None]]) -> None:
        """`oldest_unsettled`: asks the broker for that instant; None: every command is settled.

        It raises `OSError` if the broker does not answer.
        """
        self._database = database
        self._oldest_unsettled = oldest_unsettled

    async def tick(self, now: int) -> Pass:
        """Record the instant, unless it is almost the same."""
        try:
            at = await self._oldest_unsettled()
        except OSError:
            return Pass(0)  # the broker is away, so the backlog does not change
        await in_transaction(self._database, lambda tx: _record(tx, at))
        return Pass(0, now + _LOOK_MS)


async def _record(tx: Transaction, at: int | None) -> None:
    known = (await read_or_create(tx)).unsettled_since
    if known == at or (known is not None and at is not None and abs(at - known) < _LOOK_MS):
        return
    await set_unsettled_since(tx, at)

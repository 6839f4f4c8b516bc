"""Replay after a restore: from when on the broker must deliver the commands again.

A database that was restored from a copy lacks the commands that were handled after the copy was made. The broker
counts them as handled and does not deliver them. So the service reads the command stream again from an earlier instant.
This is always safe, because a command that was handled already changes nothing.
"""

from datetime import timedelta

from timer_service.core.database import Transaction
from timer_service.core.installation import read_or_create, set_replay_since
from timer_service.core.sql import load_sql

MARGIN = timedelta(hours=1)
"""How much older than the newest handled command a command can be that waits for a retry when the copy is made."""

_SQL = load_sql("timer_service.core", "replay.sql")
_NANOSECONDS_PER_MILLISECOND = 1_000_000
_MILLISECOND = timedelta(milliseconds=1)


async def request_replay(tx: Transaction, since: int) -> None:
    """Make the service read the commands again from an instant when it starts."""
    await read_or_create(tx)
    await set_replay_since(tx, since)


async def request_replay_of_later_commands(tx: Transaction) -> int:
    """Make a copy of the database replay every command that the copy may lack. Return the instant.

    The instant is an hour before the newest command that the database has handled, by the broker's clock. So it is
    right for a copy of any age, also if a backlog of commands waited when the copy was made. It is 0, for all commands
    that the broker still has, if the database has handled none. An earlier instant that was requested before stays.
    """
    requested = (await read_or_create(tx)).replay_since
    rows = await tx.fetch(_SQL["newest_handled"])
    newest = rows[0]["last_stored_at"] // _NANOSECONDS_PER_MILLISECOND if rows else 0
    since = max(newest - MARGIN // _MILLISECOND, 0)
    if requested is not None:
        since = min(since, requested)
    await set_replay_since(tx, since)
    return since

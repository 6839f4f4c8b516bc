"""PORT: the command log. The service reads it from a cursor that the database keeps; the log remembers nothing.

Nothing is acknowledged. A command counts as handled when the transaction that applies it moves the cursor behind it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from timer_service.core.values.raw_command import RawCommand

_BODIES_AT_ONCE = 32


class LogCursor(NamedTuple):
    """How far a log was read. By it, the log is recognized when it is opened again."""

    log: str
    """The identity of the log, as its broker names it, such as the time of its creation."""
    epoch: int
    """Another log, or one that was rolled back, has a greater epoch than the log before."""
    sequence: int = 0
    """The last command that was read, or removed before the log was first opened. 0: none.

    Sequences rise in the order of reading, but need not follow each other without gaps.
    """
    stored_at: int = 0
    """When the broker stored the last command that was read, in nanoseconds of the broker's clock; 0 if none was.

    If `sequence` is 0, commands that were stored before are of another log, and were read from that one.
    """
    place: str = ""
    """Where the last command is, as the broker names it, if `sequence` does not say it. Only the log reads it."""


class Opening(NamedTuple):
    """What was found when a log was opened."""

    cursor: LogCursor
    """Where reading goes on."""
    is_other: bool = False
    """Whether it is another log than that of the cursor before, or the same one that was rolled back."""
    removed: int = 0
    """How many commands the broker has removed before they were read."""
    unread: int = 0
    """How many commands are stored behind the cursor, at most."""


class LogBatch(NamedTuple):
    """Commands in the order of the log."""

    commands: Sequence[RawCommand]
    behind: int
    """How many commands are stored behind these, at most."""


class LogUnavailableError(Exception):
    """The log cannot be read now, for example because the broker is away. Nothing is lost: open it again later."""


class CommandLog(Protocol):
    """The commands of every tenant, in the order in which the broker stored them."""

    async def open(self, cursor: LogCursor | None, owner: str) -> Opening:
        """Begin to read behind a cursor; None: at the first command of the log.

        If the log does not have the command of the cursor, it is another log, or was rolled back. Then reading begins
        in a new epoch at the first command that was stored after that of the cursor, or a little earlier. So a command
        can be read twice, but none is skipped.

        `owner`: the identity of the database. Raises `StartError` if the log belongs to another database or
        gets no commands, and `LogUnavailableError`.
        """

    async def read(self, limit: int, most_bytes: int, seconds: float) -> LogBatch:
        """Return the next commands: up to `limit` with at most `most_bytes` together. A single one may have more.

        Waits up to `seconds` for the first one, and returns no commands if there is none. Raises `LogUnavailableError`
        if a command could be missing or the connection was lost. Then the log must be opened again.

        The body of a large command may be left in the log (`RawCommand.left_bytes`), so that the commands behind it are
        read sooner.
        """

    async def body(self, raw: RawCommand) -> bytes | None:
        """Return the body of a command that was left in the log; None if the log does not have the command any more.

        Raises `LogUnavailableError`.
        """

    async def end(self) -> LogCursor:
        """Return a cursor at the last command of the log, also if the log is not open. Its epoch is 0.

        Raises `LogUnavailableError`.
        """

    async def has_others(self, tenant: str) -> bool:
        """Return whether the log may have commands of other tenants; True if that is not known."""

    async def close(self) -> None:
        """Stop reading. A `read` that waits returns no commands."""


async def read_left_bodies(log: CommandLog, commands: Iterable[RawCommand]) -> None:
    """Put the bodies that were left in the log into their commands. Those that the log has removed stay empty."""
    left = [each for each in commands if each.left_bytes]
    for at in range(0, len(left), _BODIES_AT_ONCE):
        some = left[at : at + _BODIES_AT_ONCE]
        for command, body in zip(some, await asyncio.gather(*map(log.body, some)), strict=True):
            if body is not None:
                command.body, command.left_bytes = body, 0

"""A caller of the command log: it reads as the service does, and keeps the cursor in memory."""

import asyncio
from datetime import timedelta

from timer_service.core.ports.log import CommandLog, LogBatch, LogCursor, LogUnavailableError, Opening
from timer_service.core.values.raw_command import RawCommand

PATIENCE_SECONDS = 30
OWNER = "ours"
MOST_BYTES = 1_000_000


class LogCaller:
    """Reads a log. After an error, it opens the log again at its cursor."""

    def __init__(self, log: CommandLog, cursor: LogCursor | None = None) -> None:
        self.log = log
        self.cursor = cursor
        self.commands: list[RawCommand] = []
        """All commands that were read."""
        self.openings: list[Opening] = []

    @property
    def bodies(self) -> list[str]:
        """The bodies of all commands that were read."""
        return [each.body.decode(errors="backslashreplace") for each in self.commands]

    async def open(self) -> Opening:
        """Open the log at the cursor. Wait until the broker is there."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    opening = await self.log.open(self.cursor, OWNER)
                except LogUnavailableError:
                    await asyncio.sleep(0.01)
                else:
                    self.cursor = opening.cursor
                    self.openings.append(opening)
                    return opening

    async def read(self, limit: int = 100, most_bytes: int = MOST_BYTES, seconds: float = PATIENCE_SECONDS) -> LogBatch:
        """Read a batch with all bodies, and move the cursor behind it."""
        assert self.cursor is not None
        batch = await self.log.read(limit, most_bytes, seconds)
        for each in batch.commands:
            if each.left_bytes:
                body = await self.log.body(each)
                assert body is not None
                each.body, each.left_bytes = body, 0
        if batch.commands:
            last = batch.commands[-1]
            self.cursor = self.cursor._replace(
                sequence=last.position.sequence, stored_at=last.stored_at, place=last.place
            )
            self.commands += batch.commands
        return batch

    async def read_until(self, body: str, limit: int = 100) -> list[str]:
        """Read until a command with this body was read. Return the bodies of all commands since the call."""
        before = len(self.commands)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while body not in self.bodies[before:]:
                try:
                    await self.read(limit)
                except LogUnavailableError:
                    await self.open()
        return self.bodies[before:]


def since(first: RawCommand, last: RawCommand) -> timedelta:
    """Return how much later a command was stored than another one, and some microseconds."""
    return timedelta(microseconds=(last.stored_at - first.stored_at) // 1000 + 3)

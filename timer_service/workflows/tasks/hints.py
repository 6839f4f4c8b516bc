"""Hints to other instances: their polls may take tasks that no poll of this instance takes."""

import asyncio
from collections.abc import Awaitable, Callable

_PAUSE_SECONDS = 0.01


class Hints:
    """Sends at most one hint every 10 ms. Those that are wanted meanwhile become one."""

    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._task: asyncio.Task[None] | None = None
        self._wanted = False

    def want(self) -> None:
        """Send a hint, at once or when the pause is over."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="hints")

    async def close(self) -> None:
        """Return when the last hint was sent."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        """Send hints and pause after each, until none is wanted."""
        while self._wanted:
            self._wanted = False
            await self._send()
            await asyncio.sleep(_PAUSE_SECONDS)

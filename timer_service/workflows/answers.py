"""The answers to polls that wait to be sent. One task sends them, so that who answers need not wait for the broker."""

import asyncio
from collections.abc import Iterable

from timer_service.core.ports.broker import QueryReply, Request, RequestSubscription

_MOST_WAITING = 1000
"""How many answers may wait. Then their senders wait until all are sent."""


class Answers:
    """Sends answers in order."""

    def __init__(self, subscription: RequestSubscription) -> None:
        self._subscription = subscription
        self._waiting: list[tuple[Request, QueryReply]] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, answers: Iterable[tuple[Request, QueryReply]]) -> None:
        """Send some answers soon."""
        self._waiting += answers
        if self._waiting and self._task is None:
            self._task = asyncio.create_task(self._run(), name="answers")

    async def until_few(self) -> None:
        """Wait while many answers wait: the broker takes them slowly."""
        if len(self._waiting) > _MOST_WAITING:
            await self.until_sent()

    async def until_sent(self) -> None:
        """Wait until all answers are sent."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                answers, self._waiting = self._waiting, []
                await self._subscription.reply(answers)
        finally:
            self._task = None

"""The recovery of commands that the server has dropped with the rest of a pull's answer, see `lost_answers`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

import nats.errors
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.inbox import PullInbox
from timer_service.adapters.nats.intake_client import IntakeClient
from timer_service.adapters.nats.lost_answers import LOOK_AGAIN_SECONDS, LostAnswers, Progress
from timer_service.adapters.nats.stored import Receipt
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

_ERRORS = (nats.errors.Error, JetStreamError, OSError, ValueError, KeyError)
"""What a look raises while JetStream does not answer, or answers with nonsense."""


class Recovery:
    """Makes the server forget the pull that was cut, and returns its lost commands. They come with the next pulls."""

    def __init__(
        self,
        client: IntakeClient,
        consumer: DurableConsumer,
        inbox: PullInbox,
        *,
        give_back: Callable[[Collection[str]], Awaitable[None]],
        is_joined: Callable[[], bool],
        on_found: Callable[[], None],
    ) -> None:
        """`give_back` returns the commands of reply subjects to the consumer. `is_joined`: whether it may be called.

        `on_found` is called after the first look: the server sends nothing more for the pull then.
        """
        self._client = client
        self._consumer = consumer
        self._inbox = inbox
        self._give_back = give_back
        self._is_joined = is_joined
        self._on_found = on_found
        self._lost: LostAnswers | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether lost commands are still looked for."""
        return self._lost is not None

    def begin(self, lost: LostAnswers) -> None:
        """Begin to look for the lost commands of another pull."""
        self._lost = lost
        self._task = asyncio.create_task(self._run(lost), name="recovery")

    def arrive(self, receipt: Receipt) -> None:
        """Record that a command has arrived."""
        if self._lost is not None:
            self._lost.arrive(receipt)

    def forget(self) -> None:
        """Forget the lost commands: the stream is another one now."""
        self._lost = None

    def cancel(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, lost: LostAnswers) -> None:
        await self._inbox.replace()
        await self._return_lost(lost)
        if lost is self._lost:
            self._on_found()
        while lost is self._lost and not self._client.is_closed:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            if await self._return_lost(lost):
                self._lost = None

    async def _return_lost(self, lost: LostAnswers) -> bool:
        """Return lost commands to the consumer. Return whether it worked."""
        try:
            progress = Progress.read(await self._consumer.info())
            await self._client.flush()  # commands that are on their way arrive first
        except _ERRORS as error:
            log.debug("could not look for lost commands", extra={"reason": error_text(error)})
            return False
        if not self._is_joined() or lost is not self._lost:
            return False
        await self._give_back(lost.find(progress))
        return True

"""The backlog: the commands that were in the stream at some moment, and are not settled yet."""

import logging
import time
from datetime import timedelta
from typing import NamedTuple

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.durable import DurableConsumer

log = logging.getLogger(__name__)

_SETTLED_BELIEF_SECONDS = 2
"""How long after a message was stored a consumer that counts nothing pending is not yet believed to know of it."""
_STUCK = timedelta(minutes=10)
"""How long commands may be tried over and over before the others no longer wait for them."""


class _Mark(NamedTuple):
    """The end of the backlog."""

    sequence: int
    consumer: str | None
    """When the consumer was created: another one counts from the start, and may belong to another stream."""
    taken_at: float


class _Standstill(NamedTuple):
    """Where handling stands, though everything was handed over."""

    floor: int
    since: float


class Backlog:
    """Whether the commands that were in the stream when this was first asked are handled; then it starts again.

    They are when the consumer has nothing unsettled up to the last sequence that the stream had. The consumer is asked,
    not counted here, because other instances handle commands too, or alone.
    """

    def __init__(self, consumer: DurableConsumer) -> None:
        self._consumer = consumer
        self._mark: _Mark | None = None
        self._standstill: _Standstill | None = None
        self._reason = ""

    async def handled(self, *, afresh: bool) -> bool:
        """Return whether every command is settled that was in the stream when this was first asked, or asked `afresh`.

        While JetStream does not answer it is not. A command that is tried over and over, such as one whose dead letter
        the broker never stores, is waited for ten minutes.
        """
        if afresh:
            self._mark = self._standstill = None
        try:
            handled = await self._ask()
        except (nats.errors.Error, JetStreamError, OSError) as error:
            self._note(repr(error))
            return False
        if handled:
            self._mark = self._standstill = None
        return handled

    async def _ask(self) -> bool:
        try:
            info = await self._consumer.info()
        except NotFoundError:  # so nothing was handled yet
            return not (await self._consumer.stream())["state"]["messages"]
        if self._mark is None or self._mark.consumer != info["created"]:
            self._mark = _Mark(await self._last_sequence(), info["created"], time.monotonic())
            info = await self._consumer.info()
        delivered, floor = info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]
        waiting, unsettled = info["num_pending"], info["num_ack_pending"]
        # The consumer's count of what waits may lag behind the stream, and its last sequence fall short of the stream's
        # (when the last messages are gone, or are no commands); so the count is believed after a moment only.
        all_known = time.monotonic() - self._mark.taken_at > _SETTLED_BELIEF_SECONDS
        handed_over = delivered >= self._mark.sequence or (waiting == 0 and all_known)
        if floor >= self._mark.sequence or (handed_over and unsettled == 0):
            return True
        return handed_over and self._stands_still(floor)

    async def _last_sequence(self) -> int:
        state = (await self._consumer.stream())["state"]
        last: int = state["last_seq"] if state["messages"] else 0
        return last

    def _stands_still(self, floor: int) -> bool:
        now = time.monotonic()
        if self._standstill is None or self._standstill.floor != floor:
            self._standstill = _Standstill(floor, now)
        if now - self._standstill.since < _STUCK.total_seconds():
            return False
        log.warning("commands are tried over and over; no longer waiting for them", extra={"after_sequence": floor})
        return True

    def _note(self, reason: str) -> None:
        if reason != self._reason:
            log.warning("JetStream does not say what is left of the backlog", extra={"reason": reason})
        self._reason = reason

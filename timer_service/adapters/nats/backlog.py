"""The backlog: the commands that were in the stream at one moment and are not settled yet."""

import asyncio
import logging
import time
from datetime import timedelta
from typing import NamedTuple

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.core.values.error_text import error_text

log = logging.getLogger(__name__)

_COUNT_LAG_SECONDS = 2
"""How long the consumer's count of undelivered messages may lag behind the stream."""
_STUCK_AFTER = timedelta(minutes=10)
"""How long to wait for commands that are retried without success."""


class _Mark(NamedTuple):
    """Where the backlog ends."""

    sequence: int
    consumer: str | None
    """When the consumer was created. A new consumer counts from the start, and may belong to another stream."""
    taken_at: float


class _Standstill(NamedTuple):
    """A time without progress although every command of the backlog was delivered."""

    floor: int
    """The sequence up to which every command is settled."""
    since: float


class Backlog:
    """A check whether the commands that were in the stream at one moment are settled.

    The first call sets the end of the backlog: the stream's last sequence. The backlog is settled when the consumer has
    nothing unsettled up to that sequence. The next call after that begins a new backlog. The consumer gives the answer
    because other instances settle commands too.
    """

    def __init__(self, consumer: DurableConsumer) -> None:
        self._consumer = consumer
        self._mark: _Mark | None = None
        self._standstill: _Standstill | None = None
        self._reason = ""
        self._lock = asyncio.Lock()
        """Several workers ask. Each answer clears or moves the mark, so they are given one after the other."""

    async def is_settled(self, *, restart: bool) -> bool:
        """Return whether every command of the backlog is settled. `restart`: begin a new backlog first.

        Returns False if JetStream does not answer. A command that is retried without success is ignored after ten
        minutes. For example, a rejected command stays unsettled while the broker does not store its dead letter.
        """
        async with self._lock:
            if restart:
                self._mark = self._standstill = None
            try:
                settled = await self._check()
            except (nats.errors.Error, JetStreamError, OSError) as error:
                self._log_outage(error_text(error))
                return False
            if settled:
                self._mark = self._standstill = None
            return settled

    async def _check(self) -> bool:
        try:
            info = await self._consumer.info()
        except NotFoundError:  # no instance has joined yet, so no command is settled
            return not (await self._consumer.stream())["state"]["messages"]
        if self._mark is None or self._mark.consumer != info["created"]:
            self._mark = _Mark(await self._last_sequence(), info["created"], time.monotonic())
            info = await self._consumer.info()
        delivered, floor = info["delivered"]["stream_seq"], info["ack_floor"]["stream_seq"]
        waiting, unsettled = info["num_pending"], info["num_ack_pending"]
        # The consumer may never reach the stream's last sequence: the last messages may be deleted, or be no commands.
        # Its count of waiting messages shows that, but the count may lag. So it is used only after a moment.
        count_is_current = time.monotonic() - self._mark.taken_at > _COUNT_LAG_SECONDS
        all_delivered = delivered >= self._mark.sequence or (waiting == 0 and count_is_current)
        if floor >= self._mark.sequence or (all_delivered and unsettled == 0):
            return True
        return all_delivered and self._is_stuck(floor)

    async def _last_sequence(self) -> int:
        state = (await self._consumer.stream())["state"]
        last: int = state["last_seq"] if state["messages"] else 0
        return last

    def _is_stuck(self, floor: int) -> bool:
        now = time.monotonic()
        if self._standstill is None or self._standstill.floor != floor:
            self._standstill = _Standstill(floor, now)
        if now - self._standstill.since < _STUCK_AFTER.total_seconds():
            return False
        log.warning("commands are retried without success; no longer waiting for them", extra={"after_sequence": floor})
        return True

    def _log_outage(self, reason: str) -> None:
        if reason != self._reason:
            log.warning("JetStream does not report how much of the backlog is left", extra={"reason": reason})
        self._reason = reason

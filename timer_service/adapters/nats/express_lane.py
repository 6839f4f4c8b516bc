"""The express lane: commands of tenants that wait behind a long backlog of other tenants.

The consumer delivers commands in the order of the stream, so 100,000 commands of one tenant would delay all others.
While commands wait longer than a moment, the express lane looks several times a second for tenants that the batches do
not reach. It reads some commands of each directly from the stream, ahead of the consumer. They need no settlement. When
the consumer delivers them later, they are acknowledged without being handled again. See docs/decisions/0022.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from datetime import timedelta

import nats.errors
from nats.js.errors import Error as JetStreamError

from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.returned import Returned
from timer_service.adapters.nats.stored import StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.broker import BATCH_BYTES, Delivery
from timer_service.core.epochs import Epochs
from timer_service.core.message import Kind

log = logging.getLogger(__name__)

_ROUND_SECONDS = 0.15
_BACKLOG_SECONDS = 0.25
"""How long the commands behind a batch must take to count as a backlog."""
_SERVED_SECONDS = 0.3
"""A tenant with a command in a batch of the last 300 ms need not be looked for."""
_TENANTS_AT_ONCE = 100
_COMMANDS_OF_TENANT = 10
_READS_AT_ONCE = 8  # a stored command may have a MiB
_MOST_HANDLED_AHEAD = 100_000
_FAR_BEHIND = 20_000
_ERRORS = (nats.errors.Error, JetStreamError, OSError, ValueError, KeyError, TypeError)
"""What a request may raise, and what an answer that nobody expects may cause."""


class ExpressLane:
    """The reads ahead of one consumer, within one epoch of joining it."""

    def __init__(
        self,
        consumer: DurableConsumer,
        subjects: Subjects,
        epochs: Epochs,
        messages: Collection[str],
        ready: asyncio.Event,
        *,
        returned: Returned,
    ) -> None:
        """`messages` are the types of commands to look for. `ready` is set when commands can be taken.

        Tenants with commands in `returned` are left out.
        Other subjects are not looked for: a tenant could publish to any number of them, and hide others behind them.
        """
        self._consumer = consumer
        self._subjects = subjects
        self._epochs = epochs
        self._messages = messages
        self._ready = ready
        self._returned = returned
        self._last_batch = (0.0, 0)
        self._read: list[Delivery] = []
        self._handled: set[int] = set()
        self._reached = 0
        self._served_at: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, None] = {}  # in the order in which they are served
        self._ahead: dict[str, int] = {}
        self._paused_until: dict[str, float] = {}
        self._room = 0
        self._next_round_at = 0.0
        self._round: asyncio.Task[None] | None = None
        self._free = asyncio.Semaphore(_READS_AT_ONCE)

    def observe(self, batch: Sequence[Delivery], *, behind: int) -> None:
        """Observe a batch of the consumer, and how many commands are behind it. Look for tenants that wait too long."""
        now = time.monotonic()
        began, size = self._last_batch
        self._last_batch = now, len(batch)
        is_backlog = behind * (now - began) > _BACKLOG_SECONDS * max(size, 1)  # at the speed of the last batch
        for delivery in batch:
            if delivery.handle is not None:  # else the consumer has not reached it
                self._reached = max(self._reached, delivery.position.sequence)
            self._served_at[delivery.address.tenant] = now
        if not is_backlog:
            self._forget_backlog()
        elif self._round is None and now >= self._next_round_at and len(self._handled) < _MOST_HANDLED_AHEAD:
            self._round = asyncio.create_task(self._run_round(), name="express-lane")

    def observe_rest(self, count: int) -> None:
        """Observe that `count` commands of the last batch were not handled."""
        began, size = self._last_batch
        self._last_batch = began, size - count

    def take(self, limit: int) -> list[Delivery]:
        """Remove and return commands that were read ahead of the consumer, at most `limit`."""
        ahead = [delivery for delivery in self._read if delivery.position.sequence > self._reached]
        ready = [delivery for delivery in ahead if not self._returned.holds(delivery.address.tenant)]
        self._read = [*ready[limit:], *(each for each in ahead if self._returned.holds(each.address.tenant))]
        return ready[:limit]

    def record_handled(self, deliveries: Collection[Delivery]) -> None:
        """Record that commands that were read ahead are settled."""
        self._handled.update(delivery.position.sequence for delivery in deliveries)

    def retry(self, deliveries: Collection[Delivery], delay: timedelta) -> None:
        """Read commands again, after a delay, that were read ahead and could not be handled."""
        for delivery in deliveries:
            self._paused_until[delivery.address.tenant] = time.monotonic() + delay.total_seconds()
            tenant, before = delivery.address.tenant, delivery.position.sequence - 1
            self._ahead[tenant] = min(before, self._ahead.get(tenant, before))
            self._waiting.setdefault(tenant)

    def forget_handled(self, sequence: int) -> bool:
        """Return whether a command was settled ahead, and forget it. The consumer delivers it now."""
        if sequence not in self._handled:
            return False
        self._handled.remove(sequence)
        return True

    def close(self) -> None:
        """Stop reading. Commands that were read and not taken are delivered by the consumer."""
        if self._round is not None:
            self._round.cancel()
        self._read.clear()

    def _forget_backlog(self) -> None:
        for each in (self._counts, self._waiting, self._served_at):
            each.clear()
        self._ahead = {tenant: sequence for tenant, sequence in self._ahead.items() if sequence > self._reached}
        self._handled = {sequence for sequence in self._handled if sequence > self._reached}

    async def _run_round(self) -> None:
        began = time.monotonic()
        self._room = BATCH_BYTES
        # Other instances were given what is far behind.
        self._handled = {sequence for sequence in self._handled if sequence > self._reached - _FAR_BEHIND}
        try:
            await self._find_waiting()
            tenants = self._pick_tenants(began)
            await asyncio.gather(*map(self._read_tenant, tenants))
        except _ERRORS as error:
            log.debug("could not look for waiting tenants", extra={"reason": repr(error)})
        finally:
            self._round = None
            # At most a quarter of the time is spent on looking.
            self._next_round_at = time.monotonic() + max(_ROUND_SECONDS, 3 * (time.monotonic() - began))
        if self._read:
            self._ready.set()

    async def _find_waiting(self) -> None:
        """Add the tenants that may have commands: those whose number of stored commands has changed."""
        patterns = (self._subjects.pattern(Kind.COMMAND, message) for message in self._messages)
        for found in await asyncio.gather(*map(self._consumer.subjects, patterns)):
            for subject, count in found.items():
                if self._counts.get(subject) != count:
                    self._waiting.setdefault(self._subjects.address(Kind.COMMAND, subject).tenant)
                    self._counts[subject] = count

    def _pick_tenants(self, now: float) -> list[str]:
        """Return the next tenants that no batch has reached lately, and move them to the end of the queue."""
        self._paused_until = {tenant: until for tenant, until in self._paused_until.items() if until > now}
        starved = [
            each
            for each in self._waiting
            if each not in self._paused_until
            and now - self._served_at.get(each, 0.0) > _SERVED_SECONDS
            and not self._returned.holds(each)
        ]
        picked = starved[:_TENANTS_AT_ONCE]
        for tenant in picked:
            self._waiting[tenant] = self._waiting.pop(tenant)
        return picked

    async def _read_tenant(self, tenant: str) -> None:
        """Read the next commands of a tenant that neither the consumer nor the express lane has reached."""
        subject = self._subjects.pattern_of_tenant(Kind.COMMAND, tenant)
        for _ in range(_COMMANDS_OF_TENANT):
            if self._room <= 0:
                return
            after = max(self._reached, self._ahead.get(tenant, 0))
            try:
                async with self._free:
                    stored = await self._consumer.read(after + 1, subject)
                if stored is None:
                    self._waiting.pop(tenant, None)
                    return
                delivery = StoredMessage.read(stored).delivery(self._epochs, self._subjects, None)
            except _ERRORS as error:
                log.debug("could not read a command ahead", extra={"tenant": tenant, "reason": repr(error)})
                return
            self._read.append(delivery)
            self._ahead[tenant] = delivery.position.sequence
            self._room -= len(delivery.body)

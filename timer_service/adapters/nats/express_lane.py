"""The express lane: commands of tenants that wait behind a long backlog of other tenants.

The consumer delivers commands in the order of the stream, so 100,000 commands of one tenant would delay all others.
While commands wait longer than a moment, the express lane looks several times a second for tenants that the batches do
not reach. It reads some commands of each directly from the stream, ahead of the consumer. They need no settlement. When
the consumer delivers them later, they are acknowledged without being handled again. See docs/decisions/0022.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from itertools import islice

from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.read_ahead import ReadAhead, reads_at_once
from timer_service.adapters.nats.returned import Returned
from timer_service.adapters.nats.stored import StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.adapters.nats.tenant_search import READ_ERRORS, TenantSearch
from timer_service.core.intake.epochs import Epochs, StoredCommand
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.error_text import error_text
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

_ROUND_SECONDS = 0.15
_BACKLOG_SECONDS = 0.25
"""How long the commands behind a batch must take to count as a backlog."""
_SERVED_SECONDS = 0.2
"""A tenant with a command in a batch of the last 200 ms need not be looked for.

That command may have waited as long as the backlog is, and so may the next one. So this is little more than a batch.
"""
_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 0.3
_TENANTS_AT_ONCE = 100
_COMMANDS_OF_TENANT = 10
_MOST_HANDLED_AHEAD = 100_000
_FAR_BEHIND = 20_000
_LONGEST_TENANT = 64
"""A command of a tenant with a longer name is not valid."""


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
        batch_bytes: int,
        returned: Returned,
        reached: int = 0,
    ) -> None:
        """`messages` are the types of commands to look for. `ready` is set when commands can be taken.

        A round reads about `batch_bytes`. Tenants with commands in `returned` are left out. `reached`: the last command
        that the consumer had delivered before. Those up to it are handled, or the consumer delivers them again.

        Other subjects are not looked for: a tenant could publish to any number of them, and hide others behind them.
        """
        self._consumer = consumer
        self._subjects = subjects
        self._epochs = epochs
        self._ready = ready
        self._returned = returned
        self._last_batch = (0.0, 0, 0)
        self._cut_after = 0.0
        """How many seconds the last batch took from which commands were put back; 0 if all of them have come again."""
        self._read = ReadAhead(batch_bytes)
        self._limit = _TENANTS_AT_ONCE * _COMMANDS_OF_TENANT
        """How many commands a batch may have. It is smaller while commands are slow."""
        self._handled: dict[int, int] = {}
        """The sequences of commands that were settled ahead, and when each was stored."""
        self._reached = reached
        """The last command of the consumer that was handed out in the order of the stream, or before this stay."""
        self._served_at: dict[str, float] = {}
        self._search = TenantSearch(consumer, subjects, tuple(messages))
        self._waiting: dict[str, None] = {}  # in the order in which they are served
        self._ahead: dict[str, int] = {}
        """The last command of each tenant that was read ahead, or that has overtaken others in the buffer."""
        self._paused_until: dict[str, float] = {}
        self._retries_until = 0.0
        self.newest: StoredCommand | None = None
        """The newest command that was ever read ahead."""
        self._next_round_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Learn in the background how many commands are stored, so that later ones are noticed."""
        self._start(self._search.list_while_idle)

    def hold(self, seconds: float) -> None:
        """Read nothing ahead for a time."""
        self._next_round_at = time.monotonic() + seconds

    def observe(self, batch: Sequence[Delivery], *, behind: int, end: int | None) -> None:
        """Observe a batch of the consumer, and how many commands are behind it. Look for tenants that wait too long.

        `end`: see `TenantSearch.stream_ends_at`.
        """
        now = time.monotonic()
        self._search.stream_ends_at(end)
        for delivery in batch:
            if len(delivery.address.tenant) <= _LONGEST_TENANT:
                self._served_at[delivery.address.tenant] = now
        if not self._returned:
            self._cut_after = 0.0  # all that was put back has come again
        is_backlog = self._is_backlog(now, len(batch), behind)
        if is_backlog is False:
            self._forget_backlog()
            if self._search.is_idle_listing_due(now):
                self._start(self._search.list_while_idle)
        elif is_backlog:
            self._start_round(now)

    def observe_rest(self, count: int) -> None:
        """Observe that `count` commands of the last batch were not handled. Look for tenants that wait too long."""
        self._search.stream_ends_at(None)
        now = time.monotonic()
        began, size, behind = self._last_batch
        self._last_batch = began, size - count, behind
        self._cut_after = now - began
        self._start_round(now)

    def observe_end(self, *, next_tenant: str) -> bool:
        """Observe that the last batch has been handled. If it took long, look for tenants that wait since.

        Return whether it took long. A batch of one slow command shows no backlog, and the next one may be as slow.
        `next_tenant` has the next command in the order of the stream, so it need not be looked for.
        """
        now = time.monotonic()
        began, *_ = self._last_batch
        took_long = bool(began) and now - began > _BACKLOG_SECONDS
        if took_long:
            self._served_at[next_tenant] = now
            self._search.stream_ends_at(None)
            self._start_round(now)
        return took_long

    @property
    def awaits_retries(self) -> bool:
        """Whether commands wait for their retry. They keep their place in the consumer, which may be full of them."""
        return time.monotonic() < self._retries_until

    def observe_silence(self) -> None:
        """Observe that no command arrives. If the consumer may be full of retries, look for tenants that wait."""
        if self.awaits_retries:
            self._search.stream_ends_at(None)
            self._start_round(time.monotonic())

    async def finish_round(self) -> None:
        """Wait for the commands that are being read, but not for long.

        What was put back may take as long again as the batch that it was in. So it waits up to half as long.
        """
        if self._task is not None:
            wait = min(max(_WAIT_SECONDS, self._cut_after / 2), _LONGEST_WAIT_SECONDS)
            await asyncio.wait([self._task], timeout=wait)

    def take(self, limit: int) -> list[Delivery]:
        """Remove and return commands that were read ahead of the consumer: at most `limit` that fit into a batch."""
        self._limit = limit
        return self._read.take(limit, after=self._reached, waits=self._returned.holds)

    def record_delivered(self, delivery: Delivery, *, overtakes: bool) -> None:
        """Record that a command of the consumer is handed out, so that it is not read ahead.

        `overtakes`: commands of other tenants that the consumer has delivered before it may still wait.
        """
        tenant, sequence = delivery.address.tenant, delivery.position.sequence
        if sequence <= self._reached:  # it was delivered before
            return
        self._search.count_delivered(delivery)
        if overtakes:
            self._read.remove(tenant, until=sequence)
            self._ahead[tenant] = max(sequence, self._ahead.get(tenant, 0))
        else:
            self._reached = sequence

    def record_handled(self, deliveries: Collection[Delivery]) -> None:
        """Record that commands that were read ahead are settled."""
        self._handled.update((delivery.position.sequence, delivery.stored_at) for delivery in deliveries)

    def retry(self, deliveries: Collection[Delivery], delay: timedelta) -> None:
        """Observe that commands could not be handled. Read those again, after the delay, that were read ahead."""
        self._retries_until = max(self._retries_until, time.monotonic() + delay.total_seconds())
        for delivery in deliveries:
            if delivery.handle is not None:
                continue
            self._paused_until[delivery.address.tenant] = time.monotonic() + delay.total_seconds()
            tenant, sequence = delivery.address.tenant, delivery.position.sequence
            self._read_again(tenant, min([sequence, *self._read.remove(tenant)]))  # all of them, in their order

    def forget_handled(self, sequence: int, stored_at: int) -> bool:
        """Return whether a command was settled ahead, and forget it. The consumer delivers it now.

        A command that was stored at another time is another one: the stream was replaced.
        """
        return self._handled.pop(sequence, None) == stored_at

    def close(self) -> None:
        """Stop reading. Commands that were read and not taken are delivered by the consumer."""
        if self._task is not None:
            self._task.cancel()
        self._read.clear()

    def _is_backlog(self, now: float, size: int, behind: int) -> bool | None:
        """Return whether the commands behind a batch wait long, at the speed of the last batch; None if not known."""
        began, last_size, last_behind = self._last_batch
        self._last_batch = now, size, behind
        if behind == 0:
            self._search.all_is_delivered()
            return False
        if last_behind == 0:
            return None  # the time since the last batch may be idle time
        return behind * (now - began) > _BACKLOG_SECONDS * max(last_size, 1)

    def _has_room(self) -> bool:
        if not self._read.has_room:
            self._drop_held()
        is_batch = self._read.count(waits=self._returned.holds) >= self._limit
        return self._read.has_room and not is_batch and len(self._handled) < _MOST_HANDLED_AHEAD

    def _drop_held(self) -> None:
        """Drop commands of tenants in `returned`. Others need the room now, and these are read again later."""
        for tenant in filter(self._returned.holds, self._read.tenants):
            self._read_again(tenant, min(self._read.remove(tenant)))

    def _read_again(self, tenant: str, first: int) -> None:
        """Read the commands of a tenant again, from a sequence on."""
        self._ahead[tenant] = min(first - 1, self._ahead.get(tenant, first - 1))
        self._waiting.setdefault(tenant)

    def _forget_backlog(self) -> None:
        self._search.forget_backlog()
        self._waiting.clear()
        self._served_at.clear()
        self._forget_positions()
        self._forget_until(self._reached)

    def _forget_positions(self) -> None:
        """Forget which commands were read ahead, or have overtaken others, that the batches have reached since."""
        self._ahead = {tenant: sequence for tenant, sequence in self._ahead.items() if sequence > self._reached}

    def _forget_until(self, sequence: int) -> None:
        """Forget which commands up to a sequence were settled ahead."""
        self._handled = {each: stored_at for each, stored_at in self._handled.items() if each > sequence}

    def _start_round(self, now: float) -> None:
        if now >= self._next_round_at and self._has_room():
            self._start(self._run_round)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work in the background, unless other work goes on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(work), name="express-lane")

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except READ_ERRORS as error:
            log.debug("could not look for waiting tenants", extra={"reason": error_text(error)})
        finally:
            self._task = None
            self._next_round_at = max(self._next_round_at, time.monotonic() + _ROUND_SECONDS)

    async def _run_round(self) -> None:
        now = time.monotonic()
        # Other instances were given what is far behind.
        self._forget_until(self._reached - _FAR_BEHIND)
        self._forget_positions()
        self._served_at = {tenant: at for tenant, at in self._served_at.items() if now - at <= _SERVED_SECONDS}

        def is_found_or_served(tenant: str) -> bool:
            return tenant in self._waiting or not self._is_starved(tenant, now)

        for tenant in await self._search.find(is_found_or_served, self._position):
            self._waiting.setdefault(tenant)
        await self._read_tenants(self._pick_tenants(now))
        if self._read:
            self._ready.set()

    def _pick_tenants(self, now: float) -> list[str]:
        """Return the next tenants that no batch has reached lately, in the order of the queue."""
        self._paused_until = {each: until for each, until in self._paused_until.items() if until > now}
        most = min(_TENANTS_AT_ONCE, self._limit)
        return list(islice((each for each in self._waiting if self._is_starved(each, now)), most))

    def _is_starved(self, tenant: str, now: float) -> bool:
        return now - self._served_at.get(tenant, 0.0) > _SERVED_SECONDS and not (
            self._returned.holds(tenant) or self._paused_until.get(tenant, 0.0) > now
        )

    async def _read_tenants(self, tenants: Collection[str]) -> None:
        """Read commands of the tenants, of several at a time. Those that are read go to the end of the queue.

        If the first ones have large commands, there is no room for the others. These are the first in the next round.
        The tenants share one batch: ten slow commands of each would take seconds, and another tenant waits for all.
        """
        queue = iter(tenants)
        share = min(max(self._limit // max(len(tenants), 1), 1), _COMMANDS_OF_TENANT)

        async def read_some() -> None:
            for tenant in queue:
                if not self._read.has_room:
                    return
                if tenant in self._waiting:  # the backlog may have ended meanwhile
                    self._waiting[tenant] = self._waiting.pop(tenant)
                try:
                    await self._read_tenant(tenant, share)
                except READ_ERRORS as error:
                    log.debug("could not read a command ahead", extra={"tenant": tenant, "reason": error_text(error)})

        await asyncio.gather(*(read_some() for _ in range(reads_at_once(self._consumer.largest_body))))

    async def _read_tenant(self, tenant: str, most: int) -> None:
        """Read the next commands of a tenant, at most `most`, that neither the consumer nor the lane has reached."""
        subject = self._subjects.pattern_of_tenant(Kind.COMMAND, tenant)
        for _ in range(most):
            if not self._read.has_room:
                return
            before = self._ahead.get(tenant)
            stored = await self._consumer.read(self._position(tenant) + 1, subject)
            if self._ahead.get(tenant) != before:  # a command of the tenant has failed, and is read again later
                return
            if stored is None:
                self._waiting.pop(tenant, None)
                return
            delivery = StoredMessage.read(stored).delivery(self._epochs, self._subjects, None)
            self._ahead[tenant] = delivery.position.sequence
            if self._handled.get(delivery.position.sequence) == delivery.stored_at:
                continue  # it is read again only because an earlier one of the tenant has failed
            self._read.append(delivery)
            if self.newest is None or delivery.position.sequence > self.newest.sequence:
                self.newest = StoredCommand(delivery.position.sequence, delivery.stored_at)

    def _position(self, tenant: str) -> int:
        """Return the sequence after which the next command of a tenant is read."""
        return max(self._reached, self._ahead.get(tenant, 0))

"""The deliveries of a durable consumer, which is a consumer group of the stream of its tenant.

The server remembers who has each event that is not settled, since when, and how often it was delivered. Consumers of
the group, as the server calls them, are here:

    <host>-<number>        a process, with the events that it has
    later                  nobody: the events that come again after a delay
    wants <type>[.topic]   nobody: it says that a version of the program wants such events

An event that no version wants is acknowledged unread. One that another version wants is delivered: its attempts go on
until they reach a process of this version. A process that has had it leaves it to others for five seconds when due.
"""

import asyncio
import logging
import random
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from timer_service.cancellation import keep_cancellation
from timer_service.client.errors import NoAnswerError
from timer_service.client.link import Link
from timer_service.client.receive.delivery import Delivery
from timer_service.client.receive.filters import Consumer, covers, subject_parts
from timer_service.client.receive.reading import read_delivered
from timer_service.client.redis.pipe import Call, Pipe
from timer_service.core.values.address import Kind
from timer_service.redis_client import ERRORS, Keys, RedisClient, instant_of, reason_of

log = logging.getLogger(__name__)

_LATER, _WANTS = "later", "wants "
_LONGEST = timedelta(days=7)
"""How long an event is in `later` until it is due. With a shorter delay, it begins as if it had been there before."""
_AGAIN_SECONDS = 0.2
_BLOCK_MS = 500
"""How long a read waits for events. A stop waits for it: what the server sends to a closed connection comes late."""
LOOK_SECONDS = 1.0
"""How often a process looks for events that come again."""
_MOST_READ = 100
"""The most events of one read: the server bounds it by no size, and an event can have 1 MiB."""
_PLACE_SECONDS = 10.0
ALIVE_SECONDS = 10.0
"""A process that has not read for so long has ended."""
_OTHERS_FIRST = timedelta(seconds=5)
_MOST_FOREIGN = 1_000
_FORGET_SECONDS = 24 * 3600.0
MOST_UNSETTLED = 10_000
"""Of all processes of a consumer. Events that wait for their next attempt count too."""
_CLOSED = "the connection to the broker is closed"

_NO_GROUP = ("NOGROUP", "no such key")

_Entry = tuple[bytes, Mapping[bytes, bytes], int]
"""The id and the fields of an event, and the number of the attempt."""


class _Member(NamedTuple):
    """A consumer of the group."""

    name: str
    pending: int
    idle: float
    """The seconds since it last asked for events."""

    @property
    def is_process(self) -> bool:
        return self.name != _LATER and not self.name.startswith(_WANTS)


class _Receipt:
    """The delivery of an event."""

    __slots__ = ("entry_id", "subscription")

    def __init__(self, subscription: "GroupSubscription", entry_id: bytes) -> None:
        self.subscription = subscription
        self.entry_id = entry_id

    async def ack(self) -> None:
        self.subscription.settle(self, None)

    async def retry(self, delay: timedelta) -> None:
        self.subscription.settle(self, delay)

    async def renew(self) -> None:
        self.subscription.renew(self)


class GroupSubscription:
    """See `Subscription`. `ahead` is how many deliveries wait here at most until `next` takes them."""

    def __init__(
        self, link: Link, client: RedisClient, pipe: Pipe, keys: Keys, *, consumer: Consumer, ahead: int
    ) -> None:
        self._link = link
        self._client = client
        self._pipe = pipe
        self._consumer = consumer
        self._ahead = ahead
        self._key = keys.stream(Kind.EVENT, consumer.tenant)
        self._group = consumer.name
        self._me = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._patterns = frozenset(tuple(each.split(".")) for each in subject_parts(consumer))
        self._waiting: deque[tuple[_Receipt, Delivery]] = deque()
        self._held: dict[bytes, _Receipt] = {}
        """The events that are not settled, by their ids."""
        self._foreign: dict[bytes, None] = {}
        """The ids of the newest events that came here, although only another version wants them."""
        self._floor: bytes | None = None
        """The id up to which all processes have settled everything. None if it is not known."""
        self._is_full = False
        """Whether the group has so many events that are not settled that it reads no new ones."""
        self._arrived, self._changed = asyncio.Event(), asyncio.Event()
        self._stopping = asyncio.Event()
        self._place_read_at = 0.0
        self._posted: set[asyncio.Future[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def __str__(self) -> str:
        return f"the consumer group {self._group} of the stream {self._key}"

    @property
    def addresses(self) -> Sequence[str]:
        """See `Subscription.addresses`."""
        return [f"{self._key} {'.'.join(each)}" for each in sorted(self._patterns)]

    async def open(self) -> None:
        """See `Subscription.open`."""
        if self._consumer.stream is not None:
            raise NoAnswerError("stream must be left out: each tenant has a stream of its own on Redis")
        self._link.check()
        try:
            await self._link.run(self._join())
        except ERRORS as error:
            if self._link.is_closed:
                raise NoAnswerError(_CLOSED) from error
            raise NoAnswerError(f"{self} cannot be created: {reason_of(error)}") from error
        self._link.on_lost.append(self._wake)
        works = (self._read, self._look, self._renew_waiting)
        self._tasks = [asyncio.create_task(self._repeat(each)) for each in works]

    async def stop(self) -> None:
        """See `Subscription.stop`."""
        self._stopping.set()
        self._wake()
        if self._link.problem is not None:
            for task in self._tasks:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while (delivery := self.next_waiting()) is not None:
            await delivery.retry()

    async def close(self) -> None:
        """See `Subscription.close`."""
        await self.stop()
        if self._wake in self._link.on_lost:
            self._link.on_lost.remove(self._wake)
        if self._posted:
            await asyncio.wait(self._posted)
        if self._link.problem is None:
            with suppress(*ERRORS):
                if any(each.name == self._me and not each.pending for each in await self._members()):
                    await self._client.xgroup_delconsumer(self._key, self._group, self._me)

    async def next(self) -> Delivery:
        """See `Subscription.next`."""
        while not self._link.is_closed:
            delivery = self.next_waiting()
            if delivery is not None:  # nothing is awaited after it was taken: it would be lost at a cancellation
                return delivery
            self._arrived.clear()
            await self._arrived.wait()
        raise NoAnswerError(_CLOSED)

    def next_waiting(self) -> Delivery | None:
        """See `Subscription.next_waiting`."""
        self._changed.set()
        return self._waiting.popleft()[1] if self._waiting else None

    def settle(self, receipt: _Receipt, delay: timedelta | None) -> None:
        """Settle a delivery, or let it come again after a delay. A second call has no effect."""
        if self._held.get(receipt.entry_id) is not receipt:
            return
        del self._held[receipt.entry_id]
        if delay is None:
            self._post(partial(_ack, self._key, self._group, receipt.entry_id))
        else:
            idle = _milliseconds(max(timedelta(0), _LONGEST - delay))
            self._claim(_LATER, receipt, idle)

    def renew(self, receipt: _Receipt) -> None:
        """Let `ack_wait` of a delivery begin anew."""
        if self._held.get(receipt.entry_id) is receipt:
            self._claim(self._me, receipt, 0)

    def _claim(self, name: str, receipt: _Receipt, idle: int) -> None:
        """Give an event to a consumer of the group, as if it had it for so many milliseconds."""
        ids = [receipt.entry_id]
        self._post(lambda pipeline: pipeline.xclaim(self._key, self._group, name, 0, ids, idle=idle, justid=True))

    def _post(self, call: Call) -> None:
        """Send a call. If it fails, the event comes again."""
        posted = self._pipe.send(call)
        self._posted.add(posted)
        posted.add_done_callback(self._end_post)

    def _end_post(self, posted: "asyncio.Future[Any]") -> None:
        self._posted.discard(posted)
        if not posted.cancelled():
            posted.exception()

    def _wake(self) -> None:
        """Let those that wait look whether the connection is closed or lost, or the stop has begun."""
        self._arrived.set()
        self._changed.set()

    async def _join(self) -> None:
        """Find or create the group, and add what this program wants.

        What it does not want is removed only if no other process lives or has events that are not settled. Otherwise
        events for another version, which may have more handlers, would be skipped.
        """
        with suppress(ResponseError):  # it exists
            await self._client.xgroup_create(self._key, self._group, await self._start(), mkstream=True)
        await self._client.xgroup_createconsumer(self._key, self._group, self._me)
        members = await self._members()
        found = {each.name for each in members}
        wanted = {_WANTS + ".".join(each) for each in self._patterns}
        for name in wanted - found:
            await self._client.xgroup_createconsumer(self._key, self._group, name)
        surplus = {each for each in found if each.startswith(_WANTS)} - wanted
        others = [each for each in members if each.name != self._me]
        is_shared = any(each.pending or (each.is_process and each.idle < ALIVE_SECONDS) for each in others)
        if self._floor is not None or is_shared:
            surplus = set()
        # A process that sleeps for a day could read in this moment and lose what it gets, so not earlier.
        ended = {each.name for each in others if each.is_process and not each.pending and each.idle > _FORGET_SECONDS}
        for name in surplus | ended:
            await self._client.xgroup_delconsumer(self._key, self._group, name)
        await self._remember_place()

    async def _start(self) -> bytes:
        """Return where a new group begins. One that was deleted begins where it was.

        A stream that was restored, or created again, has only events that the deleted group has not delivered.
        """
        if self._floor is None:
            return b"0" if self._consumer.from_start else b"$"
        log.warning("%s was deleted; it is created again", self)
        with suppress(ResponseError):  # there is no stream
            last = (await self._client.xinfo_stream(self._key))["last-generated-id"]
            if _place(last) >= _place(self._floor):
                return self._floor
        return b"0"

    async def _remember_place(self) -> None:
        """Read up to where everything is settled, so that the group can be created again at this place."""
        self._place_read_at = time.monotonic()
        first = await self._client.xpending_range(self._key, self._group, "-", "+", 1)
        if first:
            milliseconds, number = _place(first[0]["message_id"])
            before = (milliseconds, number - 1) if number else (milliseconds - 1, 2**64 - 1)
            self._floor = b"%d-%d" % before
            return
        for group in await self._client.xinfo_groups(self._key):
            if group["name"] == self._group.encode():
                self._floor = group["last-delivered-id"]

    async def _members(self) -> list[_Member]:
        """Return the consumers of the group."""
        found = await self._client.xinfo_consumers(self._key, self._group)
        return [_Member(each["name"].decode(errors="replace"), each["pending"], each["idle"] / 1000) for each in found]

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something again and again until the stop, also after errors of the server."""
        failed = False
        while not (self._stopping.is_set() or self._link.is_closed):
            try:
                with keep_cancellation():
                    await work()
            except ERRORS as error:
                if any(each in str(error) for each in _NO_GROUP):
                    with suppress(*ERRORS):
                        await self._join()
                elif self._link.problem is None and not failed:
                    log.warning("%s: %s; trying again", self, reason_of(error))
                failed = True
                await self._pause(_AGAIN_SECONDS)
            except Exception:
                log.exception("%s: an entry could not be read; trying again", self)
                failed = True
                await self._pause(_AGAIN_SECONDS)
            else:
                if failed:
                    log.info("%s: receiving again", self)
                failed = False

    async def _pause(self, seconds: float) -> None:
        """Wait, but not after the stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _read(self) -> None:
        """Take new events, if there is room."""
        self._changed.clear()
        room = self._ahead - len(self._waiting)
        if self._is_full or room * 2 < self._ahead:
            await self._changed.wait()
            return
        most, place = min(room, _MOST_READ), {self._key: ">"}
        for _, entries in await self._client.xreadgroup(self._group, self._me, place, most, _BLOCK_MS):
            await self._take([(entry_id, fields, 1) for entry_id, fields in entries])

    async def _look(self) -> None:
        """Take events that are due again, or whose process has ended, and look at the state of the group."""
        # Not in step with others: of two versions, one would always be the first to see that an event is due.
        await self._pause(LOOK_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        members = await self._members()
        is_full = sum(each.pending for each in members) >= MOST_UNSETTLED
        if is_full and not self._is_full:
            log.warning("%s has %d events that are not settled, so no other comes", self, MOST_UNSETTLED)
        self._is_full = is_full
        self._changed.set()
        for member in members:
            if member.pending:
                await self._take_over(member.name, _LONGEST if member.name == _LATER else self._consumer.ack_wait)
        if time.monotonic() - self._place_read_at > _PLACE_SECONDS:
            await self._remember_place()

    async def _take_over(self, name: str, wait: timedelta) -> None:
        """Take the events that a consumer of the group has for longer than `wait`, if there is room.

        Not those that are in progress here: this process has not renewed them, so others may take them.
        """
        room = min(self._ahead - len(self._waiting), _MOST_READ)
        if room <= 0:
            return
        idle = _milliseconds(wait)
        most = room + len(self._held) + len(self._foreign)
        found = await self._client.xpending_range(self._key, self._group, "-", "+", most, name, idle)
        later = idle + _milliseconds(_OTHERS_FIRST)
        waiting = [
            each
            for each in found
            if each["message_id"] not in self._held
            and (each["message_id"] not in self._foreign or each["time_since_delivered"] > later)
        ]
        attempts = {each["message_id"]: each["times_delivered"] + 1 for each in waiting[:room]}
        if attempts:  # of two processes that claim the same event, one gets it: then it is not idle any more
            entries = await self._client.xclaim(self._key, self._group, self._me, idle, [*attempts])
            await self._take([(*each, attempts[each[0]]) for each in entries if each[0] is not None])

    async def _take(self, entries: Sequence[_Entry]) -> None:
        """Let the events that a version of the program wants wait for `next`, and acknowledge the others."""
        wanted = self._patterns
        if not all(_matches(fields, wanted) for _, fields, _ in entries):
            # Asked now, after the events were read: a version that has started before an event counts.
            names = [each.name for each in await self._members() if each.name.startswith(_WANTS)]
            wanted = wanted | {tuple(each.removeprefix(_WANTS).split(".")) for each in names}
        for entry_id, fields, attempt in entries:
            if not _matches(fields, wanted):
                self._post(partial(_ack, self._key, self._group, entry_id))
                continue
            if not _matches(fields, self._patterns):
                self._foreign[entry_id] = None
                if len(self._foreign) > _MOST_FOREIGN:
                    del self._foreign[next(iter(self._foreign))]
            self._add(entry_id, fields, attempt)

    def _add(self, entry_id: bytes, fields: Mapping[bytes, bytes], attempt: int) -> None:
        """Let a delivery wait for `next`, unless the event is in progress here."""
        if entry_id in self._held:
            return
        body, message_id = fields.get(b"body", b""), fields.get(b"id", b"").decode(errors="replace")
        stored_at = instant_of(_place(entry_id)[0])
        event, problem = read_delivered(body, message_id, stored_at, self._consumer.tenant)
        receipt = self._held[entry_id] = _Receipt(self, entry_id)
        self._waiting.append((receipt, Delivery(event, attempt, receipt, size=len(body), problem=problem)))
        self._arrived.set()

    async def _renew_waiting(self) -> None:
        """Renew the deliveries that wait here."""
        await self._pause(self._consumer.ack_wait.total_seconds() / 3)
        for receipt, _ in self._waiting:
            self.renew(receipt)


def _ack(key: str, group: str, entry_id: bytes, pipeline: Any) -> None:
    pipeline.xack(key, group, entry_id)


def _matches(fields: Mapping[bytes, bytes], patterns: AbstractSet[tuple[str, ...]]) -> bool:
    """Return whether a pattern matches the type and the topic of an event."""
    address = tuple(fields[name].decode(errors="replace") for name in (b"type", b"topic") if name in fields)
    return any(covers(each, address) for each in patterns)


def _place(entry_id: bytes) -> tuple[int, int]:
    """Return the milliseconds and the number of an id."""
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number or 0)


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)

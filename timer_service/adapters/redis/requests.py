"""The queries and requests of tenants: streams that the instances share as a consumer group, unacknowledged."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from redis.exceptions import ResponseError

from timer_service.adapters.redis.connection import Connection
from timer_service.adapters.redis.streams import StreamUpkeep
from timer_service.core.intake.replies import may_reply_to
from timer_service.core.ports.broker import ReceiveRequest, Replies, Reply, Request
from timer_service.core.ports.health import HEALTHY, Health, worst
from timer_service.core.values.address import Kind
from timer_service.core.values.raw_command import decode_text
from timer_service.redis_client import ERRORS, Keys, reason_of

log = logging.getLogger(__name__)

_GROUP = "timer-service"
_AT_ONCE = 100
_BLOCK_MS = 1000
_AGAIN_SECONDS = 0.2

Fields = Mapping[bytes, bytes]


class Requests:
    """A `core.ports.broker.RequestSubscription` for the queries, or for the requests of workers."""

    def __init__(self, connection: Connection, keys: Keys, streams: StreamUpkeep, kind: Kind) -> None:
        self._connection = connection
        self._client = connection.client
        self._keys = keys
        self._streams = streams
        self._kind = kind
        self._reason: str | None = None
        self._groups: set[str] = set()
        """The streams whose group exists, as far as is known."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        """The driver can swallow the cancellation of the task."""

    @property
    def health(self) -> Health:
        """Down while the connection is lost, or the streams cannot be read."""
        return worst(self._connection.health, HEALTHY if self._reason is None else Health.down(self._reason))

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self._connection.outages

    async def serve(self, names: Sequence[str], receive: ReceiveRequest) -> None:
        """Start to receive the named queries or requests. The first time, begin with those from now on."""
        with contextlib.suppress(*ERRORS):  # it is tried again, and the health says why
            await self._prepare_groups()
        self._task = asyncio.create_task(self._receive(frozenset(names), receive), name=f"redis-{self._kind}")

    async def reply(self, replies: Replies) -> None:
        """Send replies. They are lost while the connection is lost."""
        await self._connection.reply([Reply(request.reply_to, reply.body) for request, reply in replies])

    async def close(self) -> None:
        """Stop taking requests."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _receive(self, names: frozenset[str], receive: ReceiveRequest) -> None:
        """Receive requests until this is closed."""
        while not self._closed:
            try:
                await self._prepare_groups()
                streams = dict.fromkeys(self._streams_of_kind(), ">")
                found = await self._client.xreadgroup(
                    _GROUP, "any", streams, count=_AT_ONCE, block=_BLOCK_MS, noack=True
                )
            except ERRORS as error:
                if isinstance(error, ResponseError) and "NOGROUP" in str(error):
                    self._groups.clear()
                self._reason = f"requests cannot be read: {reason_of(error)}"
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            self._reason = None
            for name, entries in found or ():
                tenant = decode_text(name).removeprefix(self._keys.stream(self._kind)).removeprefix(":")
                refused = [
                    reply
                    for entry, fields in entries
                    if (request := self._request(decode_text(entry), fields, tenant, names)) is not None
                    for reply in receive(request)
                ]
                await self.reply(refused)

    def _request(self, entry: str, fields: Fields, tenant: str, names: frozenset[str]) -> Request | None:
        """Return a request; None if nobody waits for its reply. `tenant`: whose stream it is; empty: that of all."""
        if self._streams.is_too_late(entry):
            return None
        reply_to = decode_text(fields.get(b"reply-to", b""))
        name = decode_text(fields.get(b"type", b""))
        if name not in names or not may_reply_to(reply_to, (self._keys.replies,)):
            log.debug("ignored a request", extra={"query": name, "reply_to": reply_to})
            return None
        tenant = tenant or decode_text(fields.get(b"tenant", b""))
        return Request(name, tenant, fields.get(b"body", b""), reply_to)

    def _streams_of_kind(self) -> list[str]:
        return [self._keys.stream(self._kind, tenant) for tenant in ("", *self._streams.tenants)]

    async def _prepare_groups(self) -> None:
        """Create the groups that are missing. They begin with the requests from now on."""
        for name in self._streams_of_kind():
            if name not in self._groups:
                try:
                    await self._client.xgroup_create(name, _GROUP, id="$", mkstream=True)
                except ResponseError as error:
                    if "BUSYGROUP" not in str(error):
                        raise
                self._groups.add(name)

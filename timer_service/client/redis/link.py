"""A connection to Redis, with the streams and channels of the contracts."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from redis.exceptions import NoPermissionError

from timer_service.client.commands import Command
from timer_service.client.errors import NoAnswerError
from timer_service.client.link import Subscription
from timer_service.client.lookup import Broker
from timer_service.client.models import DeadLetter
from timer_service.client.numbered_link import NumberedLink
from timer_service.client.receive.filters import Consumer
from timer_service.client.redis.dead_letters import DeadLetterStream
from timer_service.client.redis.groups import GroupSubscription
from timer_service.client.redis.pipe import Pipe
from timer_service.client.redis.watches import Watches
from timer_service.client.watches import Watch
from timer_service.core.values.address import Kind
from timer_service.redis_client import ERRORS, Keys, RedisClient, new_client, reason_of

_PING_SECONDS = 2
"""How long the channels of the replies may be silent before the server is asked whether it lives."""
_MOST_QUESTIONS = 10_000
"""The most queries that a stream keeps, about. The service deletes those that it has read or that are too old."""


class RedisLink(NumberedLink):
    """A connection to Redis. The replies come to a channel for each call, whose name ends with its number."""

    def __init__(self, client: RedisClient, keys: Keys, replies: str) -> None:
        """Use channels for replies whose names begin with `replies`."""
        super().__init__(ERRORS, reason_of)
        self._client = client
        self._keys = keys
        self._wide_pattern = f"{keys.replies}{replies}:*"
        """The channels of all clients that use `replies`: a login can allow these, but not those of one client."""
        self._replies = f"{keys.replies}{replies}:{secrets.token_hex(8)}:"
        self._pattern = f"{self._replies}*"
        self._fenced: set[tuple[Kind, str]] = set()
        """The kinds and tenants whose messages go to streams of these tenants."""
        self._pipe = Pipe(client)
        self._watches = Watches(client, self._pipe, keys)
        self._dead_letters = DeadLetterStream(client, keys)
        self.on_lost.append(self._watches.end)

    @property
    def command_log(self) -> str:
        """See `Link.command_log`."""
        return f"the stream {self._keys.stream(Kind.COMMAND)}"

    async def close(self) -> None:
        """See `Link.close`."""
        await super().close()
        await self._pipe.close()
        await self._client.aclose()

    async def join(self, watch: Watch) -> None:
        """See `Link.join`."""
        try:
            await self._watches.join(watch)
        except ERRORS as error:
            raise NoAnswerError(f"events cannot be watched: {reason_of(error)}") from error

    async def leave(self, watch: Watch) -> None:
        """See `Link.leave`."""
        await self._watches.leave(watch)

    async def dead_letters(self, tenant: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """See `Link.dead_letters`."""
        return await self._dead_letters.list(tenant, limit, before)

    async def dead_letter(self, sequence: int) -> DeadLetter | None:
        """See `Link.dead_letter`."""
        return await self._dead_letters.get(sequence)

    def consume(self, consumer: Consumer, ahead: int) -> Subscription:
        """See `Link.consume`."""
        return GroupSubscription(self, self._client, self._pipe, self._keys, consumer=consumer, ahead=ahead)

    async def _publish_command(self, command: Command, trace: Mapping[str, str], number: str | None) -> None:
        """See `NumberedLink._publish_command`."""
        reply_to = {} if number is None else {"reply-to": f"{self._replies}{number}"}
        fields = {"type": command.message, "body": command.body, "id": command.id, **command.trace, **trace, **reply_to}
        await self._add(Kind.COMMAND, command.tenant, fields)

    async def _publish_request(self, kind: Kind, tenant: str, name: str, body: bytes, number: str) -> None:
        """See `NumberedLink._publish_request`."""
        fields = {"type": name, "body": body, "reply-to": f"{self._replies}{number}"}
        await self._add(kind, tenant, fields, _MOST_QUESTIONS)

    async def _add(self, kind: Kind, tenant: str, fields: Mapping[str, Any], most: int | None = None) -> None:
        """Add a message to the stream of all tenants or, if this login may not, to the one of its tenant."""
        size = len(fields["body"])
        fields = {"tenant": tenant, **fields}

        def add(stream: str) -> "asyncio.Future[Any]":
            return self._pipe.send(lambda pipeline: pipeline.xadd(stream, fields, maxlen=most), size)

        if (kind, tenant) not in self._fenced:
            try:
                await add(self._keys.stream(kind))
            except NoPermissionError:
                pass
            else:
                return
        own = self._keys.stream(kind, tenant)
        try:
            await add(own)
        except NoPermissionError as error:
            text = f"this login may publish to neither {self._keys.stream(kind)} nor {own}: is {tenant} its tenant?"
            raise NoPermissionError(text) from error
        self._fenced.add((kind, tenant))

    async def _receive_replies(self) -> None:
        """See `NumberedLink._receive_replies`. The server compares a pattern with those of the login by its letters."""
        try:
            await self._receive()
        except NoPermissionError:
            self._pattern = self._wide_pattern
            try:
                await self._receive()
            except NoPermissionError as error:
                text = f"this login may not subscribe to {self._pattern}: is inbox_prefix its tenant?"
                raise NoPermissionError(text) from error

    async def _receive(self) -> None:
        """Receive replies until the connection is lost: without any message, the server must answer a ping."""
        async with self._client.pubsub() as subscription:
            await subscription.psubscribe(self._pattern)
            was_asked = False
            while not self.is_closed:  # the driver can swallow the cancellation of this task
                message = await subscription.get_message(timeout=_PING_SECONDS)
                if message is None:
                    if was_asked:
                        raise TimeoutError
                    await subscription.ping()
                was_asked = message is None
                if message is not None and message["type"] == "psubscribe":
                    self._set_connected()
                elif message is not None and message["type"] == "pmessage":
                    channel = message["channel"].decode()
                    if channel.startswith(self._replies):  # not one of another client
                        self._give(channel.removeprefix(self._replies), message["data"])


async def connect(broker: Broker, name: str, prefix: str, options: Mapping[str, Any]) -> RedisLink:
    """Connect to Redis. Raises `NoAnswerError`, and ValueError with the name of an option that Redis has not."""
    given = dict(options)
    replies, login = given.pop("inbox_prefix", "_INBOX"), given.pop("login", None)
    if login is None:
        login = partial(dict, user=given.pop("user", None), password=given.pop("password", None))
    for option in given:
        if not option.startswith("ssl_"):
            raise ValueError(f"{option} must be left out: a connection to Redis has user, password, login and ssl_...")
    client = await asyncio.to_thread(partial(new_client, broker.url, name, login=login, **given))
    link = RedisLink(client, Keys(prefix), replies)
    await link.open(broker.url)
    return link

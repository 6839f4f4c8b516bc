"""A connection to Redis, with the streams and channels of the contracts."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis.exceptions import NoPermissionError

from timer_service.cancellation import keep_cancellation
from timer_service.client.commands import Command, Exchange
from timer_service.client.errors import NoAnswerError, TimerServiceError
from timer_service.client.link import Link, Subscription
from timer_service.client.lookup import Broker, url_without_login
from timer_service.client.models import DeadLetter
from timer_service.client.receive.filters import Consumer
from timer_service.client.redis.dead_letters import DeadLetterStream
from timer_service.client.redis.groups import GroupSubscription
from timer_service.client.redis.pipe import Pipe
from timer_service.client.redis.watches import Watches
from timer_service.client.watches import Watch
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind
from timer_service.redis_client import ERRORS, Keys, RedisClient, new_client, reason_of

log = logging.getLogger(__name__)

_PING_SECONDS = 2
"""How long the channel of the replies may be silent before the server is asked whether it lives."""
_RECONNECT_SECONDS = 0.2
_MOST_QUESTIONS = 10_000
"""The most queries that a stream keeps, about. The service deletes those that it has read or that are too old."""


class RedisLink(Link):
    """A connection to Redis. It is lost while the connection for replies is, because no outcome can arrive."""

    def __init__(self, client: RedisClient, keys: Keys, replies: str) -> None:
        """Use channels for replies whose names begin with `replies`."""
        super().__init__()
        self._client = client
        self._keys = keys
        self._wide_pattern = f"{keys.replies}{replies}:*"
        """The channels of all clients that use `replies`: a login can allow these, but not those of one client."""
        self._replies = f"{keys.replies}{replies}:{secrets.token_hex(8)}:"
        self._numbers = itertools.count()
        self._takers: dict[str, Callable[[bytes], None]] = {}
        """Who gets what is published to a channel."""
        self._fenced: set[tuple[Kind, str]] = set()
        """The kinds and tenants whose messages go to streams of these tenants."""
        self._pipe = Pipe(client)
        self._watches = Watches(client, self._pipe, keys)
        self._dead_letters = DeadLetterStream(client, keys)
        self.on_lost.append(self._watches.end)
        self._problem: str | None = ""
        self._tried = asyncio.Event()
        self._receiving: asyncio.Task[None] | None = None

    @property
    def largest(self) -> int:
        """See `Link.largest`. The server allows more, but the service does not."""
        return MAX_MESSAGE_BYTES

    @property
    def command_log(self) -> str:
        """See `Link.command_log`."""
        return f"the stream {self._keys.stream(Kind.COMMAND)}"

    @property
    def problem(self) -> str | None:
        """See `Link.problem`."""
        return self._problem

    async def open(self) -> None:
        """Connect. Raises `NoAnswerError` with the reason if the first attempt fails."""
        self._receiving = asyncio.create_task(self._receive_for_ever())
        await self._tried.wait()
        if self._problem is not None:
            raise NoAnswerError(self._problem)

    async def close(self) -> None:
        """See `Link.close`."""
        self._problem = "it is closed"
        self.is_closed = True
        self.lose()
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait([self._receiving])
        await self._pipe.close()
        await self._client.aclose()

    async def exchange(self, exchange: Exchange) -> None:
        """See `Link.exchange`."""
        with self._channel(exchange.receive) as channel:
            headers = {**exchange.trace, "reply-to": channel}
            added = [self._add_command(each, headers) for each in exchange.commands]
            for command, refusal in zip(exchange.commands, await asyncio.gather(*added), strict=True):
                if refusal is not None:
                    exchange.refuse(command.id, refusal)
            await exchange.wait()

    async def store(self, commands: Sequence[Command], endings: dict[str, str | None]) -> None:
        """See `Link.store`."""

        async def store_one(command: Command) -> str | None:
            refusal = await self._add_command(command, {})
            if refusal is None:
                endings[command.id] = None
            return refusal

        refusals = [each for each in await asyncio.gather(*map(store_one, commands)) if each is not None]
        if refusals:
            raise NoAnswerError(refusals[0])

    async def request(self, kind: Kind, tenant: str, name: str, body: bytes, timeout_seconds: float) -> bytes:
        """See `Link.request`."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(found: bytes) -> None:
            if not answer.done():
                answer.set_result(found)

        try:
            async with asyncio.timeout(timeout_seconds):
                with self._channel(take) as channel:
                    await self._add(kind, tenant, {"type": name, "body": body, "reply-to": channel}, _MOST_QUESTIONS)
                    return await answer
        except TimeoutError as error:
            raise NoAnswerError(f"no answer within {timeout_seconds} s; is timer-service running?") from error
        except ERRORS as error:
            raise NoAnswerError(reason_of(error)) from error

    async def join(self, watch: Watch) -> None:
        """See `Link.join`."""
        try:
            await self._watches.join(watch)
        except ERRORS as error:
            raise NoAnswerError(reason_of(error)) from error

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

    async def _add_command(self, command: Command, headers: Mapping[str, str]) -> str | None:
        """Add a command to the log. Return why the server refused it, or None."""
        fields = {"type": command.message, "body": command.body, "id": command.id, **command.trace, **headers}
        try:
            await self._add(Kind.COMMAND, command.tenant, fields)
        except ERRORS as error:
            return f"the command may not be stored: {reason_of(error)}"
        return None

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
        await add(self._keys.stream(kind, tenant))
        self._fenced.add((kind, tenant))

    @contextmanager
    def _channel(self, take: Callable[[bytes], None]) -> Iterator[str]:
        """Give what is published to a new channel to a function, during the block."""
        channel = f"{self._replies}{next(self._numbers)}"
        self._takers[channel] = take
        try:
            yield channel
        finally:
            del self._takers[channel]

    async def _receive_for_ever(self) -> None:
        """Receive replies, and connect again whenever the connection is lost."""
        pattern = f"{self._replies}*"
        while True:
            try:
                with keep_cancellation():
                    await self._receive(pattern)
            except NoPermissionError as error:
                if pattern == self._wide_pattern:
                    self._record_lost(error)
                pattern = self._wide_pattern  # the server compares a pattern with those of the login letter by letter
            except Exception as error:  # noqa: BLE001 - whatever it is, only another attempt helps
                self._record_lost(error)
            if self._problem is not None and self._tried.is_set():
                await asyncio.sleep(_RECONNECT_SECONDS)

    def _record_lost(self, error: Exception) -> None:
        was_connected, self._problem = self._problem is None, reason_of(error)
        self._tried.set()
        if was_connected:
            self.lose()

    def _give(self, channel: str, body: bytes) -> None:
        """Give a reply to the call that waits for it. Anybody can publish to its channel, so it may be anything."""
        take = self._takers.get(channel)
        if take is not None:
            try:
                take(body)
            except TimerServiceError as error:
                log.warning("an outcome is ignored: %s", error)

    async def _receive(self, pattern: str) -> None:
        """Receive replies until the connection is lost: without any message, the server must answer a ping."""
        async with self._client.pubsub() as subscription:
            await subscription.psubscribe(pattern)
            was_asked = False
            while True:
                message = await subscription.get_message(timeout=_PING_SECONDS)
                if message is None:
                    if was_asked:
                        raise TimeoutError
                    await subscription.ping()
                was_asked = message is None
                if message is not None and message["type"] == "psubscribe":
                    self._problem = None
                    self._tried.set()
                elif message is not None and message["type"] == "pmessage":
                    self._give(message["channel"].decode(), message["data"])


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
    try:
        await link.open()
    except NoAnswerError as error:
        await link.close()
        raise NoAnswerError(f"cannot connect to the broker at {url_without_login(broker.url)}: {error}") from error
    except asyncio.CancelledError:
        await link.close()
        raise
    return link

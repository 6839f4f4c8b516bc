"""Commands, queries and events over one NATS connection, with the subjects of the contracts."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from timer_service.cancellation import keep_cancellation
from timer_service.client.answers import read_cursor, read_object, read_rows
from timer_service.client.calls import Calls, check_connected
from timer_service.client.checks import check_seconds, check_tenant, check_text, optional, write_json
from timer_service.client.commands import (
    HEADER_BYTES,
    Batches,
    Command,
    Ended,
    Stored,
    send_commands,
    store_commands,
)
from timer_service.client.errors import NoAnswerError, QueryError, TimerServiceError
from timer_service.client.events import EVENTS, Event, message_of, read_event
from timer_service.client.lookup import find_broker, url_without_login
from timer_service.client.models import Outcome
from timer_service.client.watches import Watch, Watches
from timer_service.core.values.address import Kind, kebab
from timer_service.nats_client import LastingClient

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_NOT_FOUND = "NOT_FOUND"
_VALUES = {
    "StartRun": "jobs",
    "ResolveGroup": "jobs",
    "ReportJobStatus": "outputs",
    "CreateWorkSignal": "note",
    "ParkEvent": "event",
}
"""The arguments that a message type takes over unchecked. All others have only `data`."""


class Connection:
    """A connection that sends the messages of the contracts."""

    def __init__(self, client: Client, prefix: str, where: str = "") -> None:
        self._client = client
        self.where = where
        """The broker and the reason why it is used, for people."""
        self._prefix = prefix
        self._calls = Calls()
        self._batches = Batches()
        self._watches = Watches(client, self._calls)
        self.on_lost: list[Callable[[], None]] = []
        """What to call when the connection is lost."""

    @property
    def client(self) -> Client:
        """The connection of the driver."""
        return self._client

    async def lose(self) -> None:
        """End every call and every iteration over events, because the connection is lost."""
        self._calls.end()
        self._watches.end()
        for call in self.on_lost:
            call()

    async def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a call to the broker. Raises `NoAnswerError` if the connection is lost first."""
        return await self._calls.run(call)

    def jetstream(self) -> JetStreamContext:
        """Return the API of the streams, which may need another login. Raises `NoAnswerError` without a connection."""
        check_connected(self._client)
        return self._client.jetstream()

    def subject(self, kind: Kind, tenant: str, message: str) -> str:
        """Return the subject of messages of a kind."""
        return f"{self._prefix}.{kind}.v1.{tenant}.{message}"

    def stream(self, kind: Kind) -> str:
        """Return the name of the stream of messages of a kind."""
        return f"{self._prefix}_{kind}".replace(".", "_").upper()

    def command(
        self, message_type: str, tenant: str, fields: Mapping[str, Any], correlation_id: str | None = None
    ) -> Command:
        """Return a command with a new id. Raises ValueError if the broker would refuse its size."""
        command_id = secrets.token_hex(16)
        argument = _VALUES.get(message_type, "data")
        envelope = {"id": command_id, "type": message_type, "tenantId": check_tenant(tenant), "payload": fields}
        if correlation_id is not None:
            envelope["correlationId"] = correlation_id
        body = write_json(argument, envelope)
        if len(body) + HEADER_BYTES > self._client.max_payload:
            reason = f"the command has {len(body)} bytes, more than the broker accepts"
            raise ValueError(f"{argument} must be smaller: {reason}")
        return Command(command_id, self.subject(Kind.COMMAND, tenant, kebab(message_type)), body)

    async def send(self, message_type: str, tenant: str, fields: Mapping[str, Any], timeout_seconds: float) -> Outcome:
        """Send one command and return its outcome. Raises `CommandError` or `NoAnswerError`."""
        check_seconds("timeout_seconds", timeout_seconds)
        return await self.send_command(self.command(message_type, tenant, fields), timeout_seconds)

    async def send_command(self, command: Command, timeout_seconds: float) -> Outcome:
        """Send a command and return its outcome. Raises `CommandError` or `NoAnswerError`."""
        (ended,) = await self.send_many([command], timeout_seconds)
        if isinstance(ended, Outcome):
            return ended
        raise ended

    async def send_many(
        self, commands: Sequence[Command], timeout_seconds: float, progress: Callable[[int], object] | None = None
    ) -> list[Ended]:
        """Send commands and return how each ended, in the same order. See `send_commands`."""
        return await send_commands(
            self._client,
            self._calls,
            self._batches,
            commands,
            timeout_seconds=timeout_seconds,
            progress=progress,
        )

    async def store_many(self, commands: Sequence[Command], timeout_seconds: float) -> Stored:
        """Publish commands without waiting for their outcomes. See `store_commands`."""
        return await store_commands(self._client, self._calls, commands, timeout_seconds=timeout_seconds)

    async def ask(self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float) -> Any:
        """Return the answer to a query. Raises `QueryError` or `NoAnswerError`."""
        body = write_json("request", question)
        return await self.request(Kind.QUERY, tenant, query, body, timeout_seconds)

    async def request(self, kind: Kind, tenant: str, name: str, body: bytes, timeout_seconds: float) -> dict[str, Any]:
        """Return the reply to a request. Raises `QueryError` if the reply is an error, or `NoAnswerError`."""
        subject = self.subject(kind, check_tenant(tenant), name)
        check_seconds("timeout_seconds", timeout_seconds)
        check_connected(self._client)
        if len(body) > self._client.max_payload:
            reason = f"the request has {len(body)} bytes; the broker accepts {self._client.max_payload}"
            raise QueryError("TOO_LARGE", reason)
        try:
            request = self._client.request(subject, body, timeout=timeout_seconds)
            message = await self._calls.run(request)
        except nats.errors.NoRespondersError as error:
            what = "queries" if kind is Kind.QUERY else "requests of workers"
            raise NoAnswerError(f"no service answers {what} here; is timer-service running?") from error
        except nats.errors.TimeoutError as error:
            raise NoAnswerError(f"no answer within {timeout_seconds} s") from error
        except nats.errors.Error as error:
            raise NoAnswerError(str(error) or type(error).__name__) from error
        answer = read_object(message.data)
        if "error" in answer:
            raise QueryError.read(answer["error"])
        return answer

    async def find(
        self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float
    ) -> Mapping[str, Any] | None:
        """Return the answer to a query, or None if the answer is NOT_FOUND."""
        try:
            found: Mapping[str, Any] = await self.ask(tenant, query, question, timeout_seconds)
        except QueryError as error:
            if error.code == _NOT_FOUND:
                return None
            raise
        return found

    async def find_pages(
        self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float
    ) -> Sequence[Mapping[str, Any]]:
        """Return every page of an answer; none if an answer is NOT_FOUND, also if the first ones were not."""
        try:
            return [page async for page in self._pages(tenant, query, question, timeout_seconds)]
        except QueryError as error:
            if error.code == _NOT_FOUND:
                return []
            raise

    def rows(
        self, tenant: str, query: str, question: Mapping[str, Any], name: str, timeout_seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Iterate over the list `name` of every page of a query."""
        check_tenant(tenant)
        check_seconds("timeout_seconds", timeout_seconds)
        return self._rows(tenant, query, question, name, timeout_seconds)

    async def _rows(
        self, tenant: str, query: str, question: Mapping[str, Any], name: str, timeout_seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        async for page in self._pages(tenant, query, question, timeout_seconds):
            for row in read_rows(page, name):
                yield row

    async def _pages(
        self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Iterate over the pages of an answer."""
        while True:
            page = await self.ask(tenant, query, question, timeout_seconds)
            yield page
            cursor = read_cursor(page, question.get("cursor"))
            if cursor is None:
                return
            question = {**question, "cursor": cursor}

    def events(
        self, tenant: str, *messages: str, about: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncGenerator[Any, None]:
        """Iterate over the events that the service publishes from now on. `tenant` is a tenant or `*` for all.

        `messages` are the types of the events in kebab case, or those of `with_topics` if they can have a topic.
        `about` has the fields that their payloads must have. A message that is no event of these types is left out: the
        service did not publish it.

        Raises `NoAnswerError` when the connection is lost, or when they are read too slowly, because events may be
        missing after that.
        """
        if tenant != "*":
            check_tenant(tenant)
        return self._events(tenant, messages, about)

    async def _events(
        self, tenant: str, messages: Sequence[str], about: Mapping[str, str]
    ) -> AsyncGenerator[Event, None]:
        """Join the watches when the iteration begins, and leave them when it ends."""
        check_connected(self._client)
        kinds = tuple(each for each in EVENTS if message_of(each) in messages)
        watch = Watch([self.subject(Kind.EVENT, tenant, message) for message in messages])
        try:
            await self._watches.join(watch)
            while True:
                event = _read_event(await watch.next())
                if isinstance(event, kinds) and all(event.raw["payload"].get(each) == about[each] for each in about):
                    yield event
        except nats.errors.Error as error:
            raise NoAnswerError(str(error) or type(error).__name__) from error
        finally:
            await self._watches.leave(watch)


def connector(
    name: str, url: object, subject_prefix: object, inbox_prefix: object, options: Mapping[str, Any]
) -> Callable[[], AbstractAsyncContextManager[Connection]]:
    """Check the arguments of `TimerClient.connect`, and return a function that opens the connection.

    `name`: for the server. Raises ValueError with the name of a wrong argument.
    """
    if not callable(options.get("login", dict)):
        raise ValueError("login must be a function that returns options of nats.connect")  # noqa: TRY004 - as all
    urls, prefix = optional(check_text, "url", url), check_text("subject_prefix", subject_prefix)
    inboxes = {"inbox_prefix": check_text("inbox_prefix", inbox_prefix)}
    return lambda: open_connection(urls, name, prefix, {**options, **inboxes})


@asynccontextmanager
async def open_connection(
    urls: str | None, name: str, subject_prefix: str, options: Mapping[str, Any]
) -> AsyncIterator[Connection]:
    """Connect to a broker, and close the connection at the end of the block. It reconnects by itself.

    `urls` are separated by commas; None: see `find_broker`. `options` go to `nats.connect`. Raises `NoAnswerError` if
    no server answers, or if it refuses the login.
    """
    broker = find_broker(urls) if urls is not None else await asyncio.to_thread(find_broker)
    client = LastingClient(server_name=None if broker.dev is None else broker.dev.server_name)
    connection = Connection(client, subject_prefix, str(broker))
    last_errors = deque[Exception](maxlen=1)  # the one that `connect` raises only says that all servers failed

    async def note(error: Exception) -> None:
        last_errors.append(error)
        if "permissions violation" in str(error).lower():  # nothing else says it: the broker sends no answer
            log.warning("the broker refuses this login: %s", error)

    try:
        with keep_cancellation():
            await client.connect(
                broker.url.split(","),
                name=name,
                connect_timeout=5,
                max_reconnect_attempts=1,  # of the first connect; with more it would take minutes to fail
                reconnect_time_wait=1,
                error_cb=note,
                disconnected_cb=connection.lose,
                **options,
            )
    except asyncio.CancelledError:
        await client.close()
        raise
    except (nats.errors.Error, OSError) as error:
        why = last_errors[0] if last_errors else error
        reason = str(why) or type(why).__name__
        raise NoAnswerError(f"cannot connect to the broker at {url_without_login(broker.url)}: {reason}") from error
    client.options["max_reconnect_attempts"] = -1  # from now on without end
    try:
        yield connection
    finally:
        await connection.lose()
        await client.close()


def with_topics(*messages: str) -> Sequence[str]:
    """Return types of events in kebab case, for events without a topic and with one: no wildcard matches both."""
    return [form for message in messages for form in (message, f"{message}.*")]


def _read_event(body: bytes) -> Event | None:
    """Return an event, or None for a message that is none."""
    try:
        return read_event(body)
    except TimerServiceError:
        return None

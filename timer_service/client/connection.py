"""Commands, queries and events over one connection to a broker."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Any

from timer_service.client.answers import read_cursor, read_object, read_rows
from timer_service.client.checks import check_seconds, check_tenant, check_text, optional, write_json
from timer_service.client.commands import HEADER_BYTES, Command, Ended, Exchange, Stored
from timer_service.client.errors import NoAnswerError, QueryError, ShortTraceback, TimerServiceError
from timer_service.client.events import EVENTS, Event, message_of, read_event
from timer_service.client.link import Link, open_link
from timer_service.client.lookup import find_broker
from timer_service.client.models import Outcome
from timer_service.client.watches import Watch
from timer_service.core.values.address import Kind, kebab

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

    def __init__(self, link: Link, where: str = "") -> None:
        self.link = link
        """The connection to the broker."""
        self.where = where
        """The broker and the reason why it is used, for people."""

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
        if len(body) + HEADER_BYTES > self.link.largest:
            reason = f"the command has {len(body)} bytes, more than the broker accepts"
            raise ValueError(f"{argument} must be smaller: {reason}")
        return Command(command_id, tenant, kebab(message_type), body)

    async def send(self, message_type: str, tenant: str, fields: Mapping[str, Any], timeout_seconds: float) -> Outcome:
        """Send one command and return its outcome. Raises `CommandError` or `NoAnswerError`."""
        check_seconds("timeout_seconds", timeout_seconds)
        return await self.send_command(self.command(message_type, tenant, fields), timeout_seconds)

    async def send_command(self, command: Command, timeout_seconds: float) -> Outcome:
        """Send a command and return its outcome. Raises `CommandError` or `NoAnswerError`."""
        with ShortTraceback():
            (ended,) = await self.send_many([command], timeout_seconds)
            if isinstance(ended, Outcome):
                return ended
            raise ended

    async def send_many(
        self, commands: Sequence[Command], timeout_seconds: float, progress: Callable[[int], object] | None = None
    ) -> list[Ended]:
        """Publish commands in order and return how each ended, in the same order.

        `progress` is called with the number of commands that have ended, each time this number grows. If it raises, so
        does this function.
        """
        try:
            self.link.check()
        except NoAnswerError as error:
            return [error for _ in commands]
        exchange = Exchange(commands, progress)
        reason = f"no outcome within {timeout_seconds} s; the command may be handled later"
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.link.run(self.link.exchange(exchange))
        except TimeoutError:
            pass
        except NoAnswerError as error:
            reason = str(error)
        return exchange.endings(reason)

    async def store_many(self, commands: Sequence[Command], timeout_seconds: float) -> Stored:
        """Publish commands side by side, and wait until the broker has stored them, not for their outcomes.

        If the broker does not store one of them, it may have stored others that were published later. Raises
        `NoAnswerError` if there is no connection at the beginning.
        """
        self.link.check()
        # The broker may end the connection if a message is too large.
        endings: dict[str, str | None] = {
            each.id: f"the command has {len(each.body)} bytes, more than the broker accepts"
            for each in commands
            if len(each.body) + HEADER_BYTES > self.link.largest
        }
        why: str | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.link.run(self.link.store([each for each in commands if each.id not in endings], endings))
        except TimeoutError:
            why = f"no acknowledgement within {timeout_seconds:.0f} s; may this login publish commands of the tenant?"
        except NoAnswerError as error:
            why = str(error)
        return Stored(endings, why)

    async def ask(self, tenant: str, query: str, question: Mapping[str, Any], timeout_seconds: float) -> Any:
        """Return the answer to a query. Raises `QueryError` or `NoAnswerError`."""
        body = write_json("request", question)
        with ShortTraceback():
            return await self.request(Kind.QUERY, tenant, query, body, timeout_seconds)

    async def request(self, kind: Kind, tenant: str, name: str, body: bytes, timeout_seconds: float) -> dict[str, Any]:
        """Return the reply to a request. Raises `QueryError` if the reply is an error, or `NoAnswerError`."""
        check_tenant(tenant)
        check_seconds("timeout_seconds", timeout_seconds)
        self.link.check()
        if len(body) > self.link.largest:
            reason = f"the request has {len(body)} bytes; the broker accepts {self.link.largest}"
            raise QueryError("TOO_LARGE", reason)
        answer = read_object(await self.link.run(self.link.request(kind, tenant, name, body, timeout_seconds)))
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
        with ShortTraceback():
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
        with ShortTraceback():
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

        `messages` are the types of the events in kebab case. `about` has the fields that their payloads must have. A
        message that is no event of these types is left out: the service did not publish it.

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
        self.link.check()
        kinds = tuple(each for each in EVENTS if message_of(each) in messages)
        watch = Watch(tenant, messages)
        try:
            with ShortTraceback():
                await self.link.run(self.link.join(watch))
            while True:
                event = _read_event(await watch.next())
                if isinstance(event, kinds) and all(event.raw["payload"].get(each) == about[each] for each in about):
                    yield event
        finally:
            await self.link.leave(watch)


def connector(
    name: str, url: object, subject_prefix: object, inbox_prefix: object, options: Mapping[str, Any]
) -> Callable[[], AbstractAsyncContextManager[Connection]]:
    """Check the arguments of `TimerClient.connect`, and return a function that opens the connection.

    `name`: for the server. Raises ValueError with the name of a wrong argument.
    """
    if not callable(options.get("login", dict)):
        raise ValueError("login must be a function that returns options such as user and password")  # noqa: TRY004 - as all
    urls, prefix = optional(check_text, "url", url), check_text("subject_prefix", subject_prefix)
    inboxes = {"inbox_prefix": check_text("inbox_prefix", inbox_prefix)}
    return lambda: open_connection(urls, name, prefix, {**options, **inboxes})


@asynccontextmanager
async def open_connection(
    urls: str | None, name: str, subject_prefix: str, options: Mapping[str, Any]
) -> AsyncIterator[Connection]:
    """Connect to a broker, and close the connection at the end of the block. It reconnects by itself.

    `urls` are separated by commas; None: see `find_broker`. `options` are those of `TimerClient.connect`. Raises
    `NoAnswerError` if no server answers, or if it refuses the login.
    """
    broker = find_broker(urls) if urls is not None else await asyncio.to_thread(find_broker)
    link = await open_link(broker, name, subject_prefix, options)
    try:
        yield Connection(link, str(broker))
    finally:
        await link.close()


def _read_event(body: bytes) -> Event | None:
    """Return an event, or None for a message that is none."""
    try:
        return read_event(body)
    except TimerServiceError:
        return None

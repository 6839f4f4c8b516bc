"""A connection to a broker that has no requests of its own: it publishes messages, and a task receives the replies."""

import asyncio
import itertools
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from timer_service.cancellation import keep_cancellation, own_cancellation
from timer_service.client.commands import Command, Exchange
from timer_service.client.errors import NoAnswerError, TimerServiceError
from timer_service.client.link import Link
from timer_service.client.lookup import url_without_login
from timer_service.core.values.address import MAX_MESSAGE_BYTES, Kind

log = logging.getLogger(__name__)

_RECONNECT_SECONDS = 0.2


class NumberedLink(Link):
    """A connection over which each call has a number, which comes back with its replies.

    It is lost while the task that receives the replies is not connected, because no outcome can arrive.
    """

    def __init__(self, errors: tuple[type[Exception], ...], reason_of: Callable[[BaseException], str]) -> None:
        """`errors`: those of the driver. `reason_of` returns what such an error says, for people."""
        super().__init__()
        self._errors = errors
        self._reason_of = reason_of
        self._numbers = itertools.count(1)
        self._takers: dict[str, Callable[[bytes], None]] = {}
        """Who gets the replies with a number."""
        self._problem: str | None = ""
        self._tried = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def largest(self) -> int:
        """See `Link.largest`. The server allows more, but the service does not."""
        return MAX_MESSAGE_BYTES

    @property
    def problem(self) -> str | None:
        """See `Link.problem`."""
        return self._problem

    async def open(self, url: str) -> None:
        """Connect. If the first attempt fails, close the link and raise `NoAnswerError`. `url`: for the message."""
        self._keeping = asyncio.create_task(self._keep())
        try:
            await self._tried.wait()
        except asyncio.CancelledError:
            await self.close()
            raise
        if (problem := self._problem) is not None:
            await self.close()
            raise NoAnswerError(f"cannot connect to the broker at {url_without_login(url)}: {problem}")

    async def close(self) -> None:
        """See `Link.close`."""
        self._problem = "it is closed"
        self.is_closed = True
        self.lose()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])

    async def exchange(self, exchange: Exchange) -> None:
        """See `Link.exchange`."""
        with self._number(exchange.receive) as number:
            published = [self._try_command(each, exchange.trace, number) for each in exchange.commands]
            for command, refusal in zip(exchange.commands, await asyncio.gather(*published), strict=True):
                if refusal is not None:
                    exchange.refuse(command.id, refusal)
            await exchange.wait()

    async def store(self, commands: Sequence[Command], endings: dict[str, str | None]) -> None:
        """See `Link.store`."""

        async def store_one(command: Command) -> str | None:
            refusal = await self._try_command(command, {}, None)
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
                with self._number(take) as number:
                    await self._publish_request(kind, tenant, name, body, number)
                    return await answer
        except TimeoutError as error:
            raise NoAnswerError(f"no answer within {timeout_seconds} s; is timer-service running?") from error
        except self._errors as error:
            raise NoAnswerError(f"the request may not have arrived: {self._reason_of(error)}") from error

    @abstractmethod
    async def _publish_command(self, command: Command, trace: Mapping[str, str], number: str | None) -> None:
        """Publish a command, and wait until the broker has stored it. None: it needs no outcome.

        Raises an error of the driver, or `NoAnswerError` if it was not stored.
        """

    @abstractmethod
    async def _publish_request(self, kind: Kind, tenant: str, name: str, body: bytes, number: str) -> None:
        """Publish a query or a request of a worker. Raises an error of the driver, or `NoAnswerError`."""

    @abstractmethod
    async def _receive_replies(self) -> None:
        """Connect, call `_set_connected`, and `_give` each reply. Raises why it cannot connect, or is not any more."""

    def _set_connected(self) -> None:
        """Record that the connection can be used."""
        self._problem = None
        self._tried.set()

    def _give(self, number: str, body: bytes) -> None:
        """Give a reply to the call with a number. It may be anything: anybody can send one."""
        take = self._takers.get(number)
        if take is not None:
            try:
                take(body)
            except TimerServiceError as error:
                log.warning("an outcome is ignored: %s", error)

    async def _keep(self) -> None:
        """Receive replies, and connect again whenever the connection is lost."""
        while not self.is_closed:
            try:
                with own_cancellation(), keep_cancellation():
                    await self._receive_replies()
            except Exception as error:  # noqa: BLE001 - whatever it is, only another attempt helps
                was_connected, self._problem = self._problem is None, self._reason_of(error)
                self._tried.set()
                if was_connected:
                    self.lose()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _try_command(self, command: Command, trace: Mapping[str, str], number: str | None) -> str | None:
        """Publish a command. Return why the broker did not store it, or None."""
        try:
            await self._publish_command(command, trace, number)
        except NoAnswerError as error:
            return str(error)
        except self._errors as error:
            return f"the command may not be stored: {self._reason_of(error)}"
        return None

    @contextmanager
    def _number(self, take: Callable[[bytes], None]) -> Iterator[str]:
        """Give the replies with a new number to a function, during the block."""
        number = str(next(self._numbers))
        self._takers[number] = take
        try:
            yield number
        finally:
            del self._takers[number]

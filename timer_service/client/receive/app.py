"""An app: handlers of events, called by a durable consumer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from timer_service.client.checks import check_count, check_type, check_whole
from timer_service.client.connection import connector
from timer_service.client.errors import AlreadyHandled, PermanentError, ShortTraceback
from timer_service.client.events import (
    DueTimeReached,
    Event,
    JobReady,
    ScheduleFired,
    TimerExpired,
    WorkSignalFired,
)
from timer_service.client.receive.attempt import Attempts
from timer_service.client.receive.filters import check_consumer
from timer_service.client.receive.handlers import Handlers
from timer_service.client.receive.park import Parking
from timer_service.client.receive.runner import Rules, Runner
from timer_service.client.receive.seen import MemorySeen, SeenStore
from timer_service.client.timer_client import TimerClient
from timer_service.sigterm import at_sigterm
from timer_service.user_code import UserCode, end_loop

log = logging.getLogger(__name__)

_MOST_CONCURRENCY = 1000
_CLOSE_SECONDS = 1
_READ_AHEAD = 2
"""How many deliveries wait for each handler that can run, at most. At a stop they are given back."""
_SECOND_SIGNAL = "ended by a second signal; the events in progress come again"

_OnDue = TypeVar("_OnDue", bound=Callable[[DueTimeReached[Any]], object])
_OnExpired = TypeVar("_OnExpired", bound=Callable[[TimerExpired[Any]], object])
_OnSlot = TypeVar("_OnSlot", bound=Callable[[ScheduleFired[Any]], object])
_OnSignal = TypeVar("_OnSignal", bound=Callable[[WorkSignalFired], object])
_OnJob = TypeVar("_OnJob", bound=Callable[[JobReady[Any]], object])
_On = TypeVar("_On", bound=Callable[[Any], object])


class TimerApp:
    """Calls a handler for each event of a tenant, at least once. Several processes can share the work.

    A handler is a function with one parameter, the event. If it returns, the event is acknowledged. If it raises an
    error, the event is tried again after 1 s, 2 s, 4 s and so on, at most 10 min, and after `attempts` tries it is
    parked. A function that is not async runs in a thread. See docs/receive.md.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str,
        name: str,
        seen: SeenStore | None = None,
        concurrency: int = 10,
        attempts: int = 10,
        in_order: bool = False,
        stream: str | None = None,
        from_start: bool = False,
        ack_wait: timedelta = timedelta(seconds=30),
        shutdown_timeout: timedelta = timedelta(seconds=20),
        subject_prefix: str = "timer",
        inbox_prefix: str = "_INBOX",
        **options: Any,
    ) -> None:
        """Check the settings. Raises ValueError with the name of a wrong argument.

        `name` is the durable consumer: processes with the same name share the events, and it remembers its place while
        none runs. A new one begins with the events from now on, or with `from_start` with all that are stored. `seen`
        has the marks of handled events; default: in memory. At most `concurrency` handlers run at a time. With
        `in_order`, events about the same timer, schedule, run, workflow or work item run one after the other. `stream`
        is the stream that an operator has made for the tenant. If a process dies, its events come again after
        `ack_wait`. At a stop, handlers in progress have `shutdown_timeout` to finish. `url` and `options` are those of
        `TimerClient.connect`.
        """
        if not 1 <= check_whole("concurrency", concurrency) <= _MOST_CONCURRENCY:
            raise ValueError(f"concurrency must lie between 1 and {_MOST_CONCURRENCY}")
        check_count("attempts", attempts)
        check_type("in_order", in_order, bool, "a bool")
        if not timedelta(0) <= check_type("shutdown_timeout", shutdown_timeout, timedelta, "a timedelta"):
            raise ValueError("shutdown_timeout must not be negative")
        self._consumer = check_consumer(tenant, name, (), stream=stream, from_start=from_start, ack_wait=ack_wait)
        self._rules = Rules(concurrency, attempts, in_order, ack_wait, shutdown_timeout)
        self._seen = MemorySeen() if seen is None else seen
        self._connect = connector("timer-app", url, subject_prefix, inbox_prefix, options)
        self._handlers = Handlers()
        self._stop = asyncio.Event()
        self._attempts: Attempts | None = None
        self._client: TimerClient | None = None

    @property
    def client(self) -> TimerClient:
        """A client on the connection of the app, for handlers. Raises RuntimeError while the app does not run."""
        if self._client is None:
            raise RuntimeError("the app does not run; its client exists from `serve` or `run` on")
        return self._client

    def on_due(self, topic: str | None = None) -> Callable[[_OnDue], _OnDue]:
        """Return a decorator for the handler of `DueTimeReached` with a topic; None: with each topic and without."""
        return self._adder(DueTimeReached, topic)

    def on_expired(self, topic: str | None = None) -> Callable[[_OnExpired], _OnExpired]:
        """Return a decorator for the handler of `TimerExpired`, as `on_due`."""
        return self._adder(TimerExpired, topic)

    def on_slot(self, schedule: str | None = None, *, topic: str | None = None) -> Callable[[_OnSlot], _OnSlot]:
        """Return a decorator for the handler of `ScheduleFired` of a schedule, or of all with a topic, or of all."""
        return self._adder(ScheduleFired, topic, schedule)

    def on_signal(self) -> Callable[[_OnSignal], _OnSignal]:
        """Return a decorator for the handler of `WorkSignalFired`."""
        return self._adder(WorkSignalFired)

    def on_job(self, name: str | None = None) -> Callable[[_OnJob], _OnJob]:
        """Return a decorator for the handler of `JobReady` of the jobs with a name; None: of all jobs."""
        return self._adder(JobReady, None, name)

    def on(self, event: type[Event], topic: str | None = None) -> Callable[[_On], _On]:
        """Return a decorator for the handler of a class of events; `Event`: of all that have no other handler."""
        return self._adder(event, topic)

    def run(self) -> None:
        """Call handlers until SIGTERM, SIGINT or `stop`, then finish the handlers in progress. Blocks.

        A second signal ends the program at once. If handlers hang, the process ends at most 4 s after
        `shutdown_timeout`. Logs to stderr, unless the program has set up logging. Raises
        `NoAnswerError` if the broker, the stream or a permission is missing at the start.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        try:
            with ShortTraceback():
                asyncio.run(self._run())
        except asyncio.CancelledError:
            raise SystemExit(_SECOND_SIGNAL) from None

    async def serve(self) -> None:
        """Call handlers until `stop` or the task is cancelled, inside a program that handles signals itself.

        Raises `NoAnswerError` as `run`.
        """
        with ShortTraceback():
            await self._serve(asyncio.Event())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Call handlers during the block, such as the lifespan of a web application. At its end, stop as `serve` does.

        The block begins when the app receives. Raises `NoAnswerError` as `run`.
        """
        begun = asyncio.Event()
        serving, beginning = asyncio.create_task(self._serve(begun)), asyncio.create_task(begun.wait())
        try:
            await asyncio.wait([serving, beginning], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                with ShortTraceback():
                    await serving  # raises why it has not begun
            yield
        finally:
            beginning.cancel()
            if not serving.done():
                self.stop()
            await serving

    def stop(self) -> None:
        """Stop: take no new event, give back those that have not begun, and let handlers in progress finish."""
        self._stop.set()

    @asynccontextmanager
    async def once(self, event: Event, connection: Any) -> AsyncIterator[None]:
        """Mark the event in the open transaction of your connection, so that its effects happen once.

        Use it inside a handler, around what writes with the same connection. If the event was marked before, this
        raises `AlreadyHandled`, which ends the handler with success. `seen` must be a store in the same database. A
        handler can use it in one transaction only: a second one raises `PermanentError`, which parks the event.
        """
        marked = set[str]() if self._attempts is None else self._attempts.marked
        if not await self._seen.add_in(connection, self._consumer.key, event.id):
            if event.id in marked:
                raise PermanentError(
                    "the handler uses `once` in two transactions; what is in the second did not happen"
                )
            raise AlreadyHandled
        yield
        marked.add(event.id)

    def _adder(self, kind: type[Event], topic: str | None = None, name: str | None = None) -> Callable[[Any], Any]:
        if self._client is not None:
            raise RuntimeError("the app runs already; add handlers before `serve` or `run`")
        return self._handlers.decorator(kind, topic, name)

    async def _serve(self, begun: asyncio.Event) -> None:
        """See `serve`. Sets `begun` when it receives."""
        if not len(self._handlers):
            raise ValueError("the app must have a handler: see `on_due` and the others")
        consumer = self._consumer._replace(filters=self._handlers.filters())
        code = UserCode(self._rules.concurrency)
        await self._seen.open()
        try:
            async with self._connect() as connection:
                source = connection.link.consume(consumer, _READ_AHEAD * self._rules.concurrency)
                await source.open()
                self._client = TimerClient(connection)
                self._attempts = Attempts(
                    self._handlers,
                    self._seen,
                    consumer.key,
                    Parking(connection, consumer.tenant, consumer.name),
                    attempts=self._rules.attempts,
                    code=code,
                    takes_all=consumer.stream is not None,
                )
                log.info("waiting for %s at %s (%s)", ", ".join(source.addresses), connection.where, source)
                begun.set()
                try:
                    await Runner(source, self._attempts, self._rules).run(self._stop)
                finally:
                    await code.close()
                    await source.close()
        finally:
            self._client = None
            self._stop = asyncio.Event()  # an event belongs to the loop that has waited for it
            await _close(self._seen, code)

    async def _run(self) -> None:
        try:
            with at_sigterm(self.stop, self._rules.shutdown_timeout.total_seconds()):
                await self.serve()
        finally:
            await end_loop()


async def _close(seen: SeenStore, code: UserCode) -> None:
    """Close a store of the user, which may hang, and end all code of the user."""
    try:
        ended = await code.run("the seen store", seen.close, is_async=True, seconds=_CLOSE_SECONDS)
        if ended is not None and ended.error is not None:
            raise ended.error
    finally:
        await code.close()

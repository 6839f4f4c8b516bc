"""One attempt at an event: what its handler's result leads to."""

import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import NamedTuple

from timer_service.client.errors import AlreadyHandled, PermanentError, RetryLater, errors_in, leaves_of, text_of
from timer_service.client.events import Event
from timer_service.client.receive.delivery import LONGEST_DELAY, Delivery, retry_delay
from timer_service.client.receive.handlers import Handler, Handlers
from timer_service.client.receive.seen import SeenStore
from timer_service.user_code import UserCode

log = logging.getLogger(__name__)

MOST_REASON = 1000
_MOST_REMEMBERED = 20_000
LONG_SECONDS = 60.0
"""A handler that runs longer is logged, and again each time that its time has doubled."""
STORE_PAUSE = timedelta(seconds=1)
"""How long an event waits while the seen store cannot be used."""


class Done(NamedTuple):
    """The event is settled: it was handled, or parked, or there is nothing to do."""


class Hold(NamedTuple):
    """Try the event again here after a delay, in the same delivery. The attempt did not count."""

    delay: timedelta


class Failed(NamedTuple):
    """The attempt has failed. Try the event again after a delay."""

    delay: timedelta


Result = Done | Hold | Failed


class _Call(NamedTuple):
    """A handler in progress."""

    event: Event
    began: float
    logged_after: float
    """After how many seconds it is logged next."""


Park = Callable[[Delivery, str, int], Awaitable[bool]]
"""Stores an event that is given up, with the reason and the number of attempts. Returns whether it is stored."""


class Attempts:
    """Tries events. Knows which ones have failed in this process, and which ones a handler has marked itself."""

    def __init__(
        self,
        handlers: Handlers,
        seen: SeenStore,
        consumer: str,
        park: Park,
        *,
        attempts: int,
        code: UserCode,
        takes_all: bool,
    ) -> None:
        """`takes_all`: the consumer gets events without a handler, because another program reads nothing here."""
        self._handlers = handlers
        self._seen = seen
        self._consumer = consumer
        self._park = park
        self._attempts = attempts
        self._code = code
        self._takes_all = takes_all
        self._random = random.Random()  # noqa: S311 - for jitter
        self._failed: dict[str, None] = {}
        self._calls: dict[str, _Call] = {}
        """The handlers in progress, by the id of their event."""
        self.marked: set[str] = set()
        """The events that their handlers have marked in a transaction of their own."""

    def has_failed(self, event: Event) -> bool:
        """Return whether a handler has raised an error for the event in this process."""
        return event.id in self._failed

    async def run(self, delivery: Delivery, attempt: int) -> Result:
        """Try an event. `attempt` is the number of this attempt."""
        event = delivery.event
        if delivery.problem is not None:
            return await self.give_up(delivery, delivery.problem, attempt)
        handler = self._handlers.find(event)
        if handler is None:
            if self._takes_all or self._handlers.expect(event):
                return Done()
            # A random delay: with equal ones, two events could alternate between two programs, each at the wrong one.
            delay = retry_delay(attempt, self._random) * self._random.random()
            return await self._fail(delivery, f"this program has no handler for {event.type}", attempt, delay)
        try:
            if await self._seen.has(self._consumer, event.id):
                log.info("%s was handled before", _name(event))
                return Done()
        except Exception as error:  # noqa: BLE001 - the store is the user's
            log.warning("the seen store cannot be read: %s; %s waits", describe(error), _name(event))
            return Hold(STORE_PAUSE)
        try:
            converted = handler.convert(event)
        except ValueError as error:
            return await self.give_up(delivery, describe(error), attempt)
        return await self._call(handler, converted, delivery, attempt)

    async def _call(self, handler: Handler, event: Event, delivery: Delivery, attempt: int) -> Result:
        """Call a handler, and return what its result leads to."""
        self.marked.discard(event.id)
        self._calls[event.id] = _Call(event, time.monotonic(), LONG_SECONDS)
        try:
            _, error = await handler.call(event, f"the handler of {_name(event)}", self._code)
        finally:
            self._calls.pop(event.id, None)
        if error is None:
            await self._mark(event)
            return Done()
        return await self._judge(error, delivery, attempt)

    async def _judge(self, error: BaseException, delivery: Delivery, attempt: int) -> Result:
        """Return what the error of a handler leads to.

        In a group, a `PermanentError` counts first, then the longest `RetryLater`, then other errors.
        """
        name = _name(delivery.event)
        if all(isinstance(each, AlreadyHandled) for each in leaves_of(error)):
            log.info("%s was handled before", name)
            return Done()
        if errors_in(error, PermanentError):
            log.error("%s failed for good", name, exc_info=error)
            return await self.give_up(delivery, describe(error), attempt)
        later = [getattr(each, "delay", None) for each in errors_in(error, RetryLater)]
        delays = [each for each in later if isinstance(each, timedelta)]  # a class of the user can lack the delay
        if delays:
            delay = max(delays)
            log.info("%s waits for %s: %s", name, delay, describe(error))
            return Hold(delay)
        delay = retry_delay(attempt, self._random)
        then = ""
        if attempt < self._attempts:
            then = f"; it comes again in {delay.total_seconds():.1f} s, and is parked after attempt {self._attempts}"
        log.error("%s failed, attempt %d of %d%s", name, attempt, self._attempts, then, exc_info=error)
        return await self._fail(delivery, describe(error), attempt, delay)

    def log_long(self) -> None:
        """Log each handler that has run for `LONG_SECONDS`, and again each time that its time has doubled."""
        now = time.monotonic()
        for event_id, call in self._calls.items():
            seconds = now - call.began
            if seconds >= call.logged_after:
                log.warning("the handler of %s has run for %.0f s; its event is renewed", _name(call.event), seconds)
                self._calls[event_id] = call._replace(logged_after=2 * seconds)

    async def _mark(self, event: Event) -> None:
        """Mark an event whose handler has returned, unless the handler has marked it itself."""
        self._failed.pop(event.id, None)
        if event.id in self.marked:
            self.marked.discard(event.id)
            return
        try:
            await self._seen.add(self._consumer, event.id)
        except Exception as error:  # noqa: BLE001 - the store is the user's
            text = "%s was handled, but the seen store could not be written: %s; a repeat would be handled again"
            log.warning(text, _name(event), describe(error))

    async def _fail(self, delivery: Delivery, reason: str, attempt: int, delay: timedelta) -> Result:
        """Try again after a delay, or park the event after its last attempt."""
        self._remember(delivery.event)
        if attempt >= self._attempts:
            return await self.give_up(delivery, reason, attempt)
        return Failed(delay)

    async def give_up(self, delivery: Delivery, reason: str, attempt: int) -> Result:
        """Park an event. If it cannot be parked now, try again after the longest delay."""
        if await self._park(delivery, reason[:MOST_REASON] or "no reason", attempt):
            text = "%s is parked after attempt %d (see `timer-service events parked`): %s"
            log.warning(text, _name(delivery.event), attempt, reason)
            self._failed.pop(delivery.event.id, None)
            return Done()
        self._remember(delivery.event)
        return Failed(LONGEST_DELAY)

    def _remember(self, event: Event) -> None:
        self._failed[event.id] = None
        if len(self._failed) > _MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]


def describe(error: BaseException) -> str:
    """Return the type and the text of an error."""
    text = text_of(error).encode(errors="replace").decode()[:MOST_REASON]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _name(event: Event) -> str:
    return f"the {event.type} {event.id} of {event.about}"

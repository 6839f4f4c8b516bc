"""What the client needs from a broker. Each broker has a folder with a `Link` of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar

from timer_service.client.calls import Calls
from timer_service.client.commands import Command, Exchange
from timer_service.client.errors import NoAnswerError, TimerServiceError
from timer_service.client.lookup import Broker
from timer_service.client.models import DeadLetter
from timer_service.client.receive.delivery import Delivery
from timer_service.client.receive.filters import Consumer
from timer_service.client.watches import Watch
from timer_service.core.values.address import Kind
from timer_service.core.values.broker_url import broker_of

_T = TypeVar("_T")


class Source(Protocol):
    """Where deliveries come from."""

    async def next(self) -> Delivery:
        """Wait for the next delivery. Raises `NoAnswerError` when the connection is closed for good."""

    def next_waiting(self) -> Delivery | None:
        """Return the next delivery that has arrived, or None."""

    async def stop(self) -> None:
        """Take no more deliveries, and give back those that wait. Others can still be settled."""


class Subscription(Source, Protocol):
    """The deliveries of a durable consumer. It survives lost connections, restarts of the broker and its own deletion.

    As text, it is the consumer in the words of the broker.
    """

    @property
    def addresses(self) -> Sequence[str]:
        """Where the events of the consumer come from, in the words of the broker."""

    async def open(self) -> None:
        """Find or create the consumer, and begin to receive. Raises `NoAnswerError` that says what to do."""

    async def close(self) -> None:
        """Stop, and send what was not sent. After it no delivery can be settled."""


class Link(ABC):
    """A connection to a broker, which connects again by itself. Each error is a `NoAnswerError` with a reason."""

    is_closed = False
    """Whether the connection was closed for good."""

    def __init__(self) -> None:
        self._calls = Calls()
        self.on_lost: list[Callable[[], None]] = []
        """What to call when the connection is lost."""

    @property
    @abstractmethod
    def largest(self) -> int:
        """The bytes of the largest message, with its headers."""

    @property
    @abstractmethod
    def command_log(self) -> str:
        """Where the broker keeps the commands, for people."""

    @property
    @abstractmethod
    def problem(self) -> str | None:
        """Why the broker cannot be used now, or None."""

    def check(self) -> None:
        """Raise `NoAnswerError` if there is no connection now."""
        if (problem := self.problem) is not None:
            raise NoAnswerError(": ".join(filter(None, ["not connected to the broker", problem])))

    async def run(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a call to the broker. Raises `NoAnswerError` if the connection is lost first."""
        return await self._calls.run(call)

    def lose(self) -> None:
        """End every call, because the connection is lost."""
        self._calls.end()
        for call in self.on_lost:
            call()

    @abstractmethod
    async def close(self) -> None:
        """Close the connection for good, as if it was lost."""

    @abstractmethod
    async def exchange(self, exchange: Exchange) -> None:
        """Publish commands in order and give their outcomes to the exchange, until all have ended."""

    @abstractmethod
    async def store(self, commands: Sequence[Command], endings: dict[str, str | None]) -> None:
        """Publish commands side by side, and wait until the broker has stored them, not for their outcomes.

        Adds to `endings` by id: None for a command that was stored, or why it can never be. Raises `NoAnswerError` with
        the reason if others were not stored. Of two commands, the broker may store only the one that comes later.
        """

    @abstractmethod
    async def request(self, kind: Kind, tenant: str, name: str, body: bytes, timeout_seconds: float) -> bytes:
        """Return the reply of a service to a query or to a request of a worker."""

    @abstractmethod
    async def join(self, watch: Watch) -> None:
        """Begin to receive for a watch. It misses no event from then on. `leave` must follow, also after an error."""

    @abstractmethod
    async def leave(self, watch: Watch) -> None:
        """Receive no more for a watch, also if the caller is cancelled meanwhile."""

    @abstractmethod
    async def dead_letters(self, tenant: str, limit: int, before: int | None) -> Sequence[DeadLetter]:
        """Return the newest dead letters of a tenant or of all (`*`), newest first, without headers and bodies."""

    @abstractmethod
    async def dead_letter(self, sequence: int) -> DeadLetter | None:
        """Return a dead letter with its headers and its body, or None."""

    @abstractmethod
    def consume(self, consumer: Consumer, ahead: int) -> Subscription:
        """Return the deliveries of a consumer, of which at most `ahead` wait here."""


def no_service(kind: Kind) -> NoAnswerError:
    """Return the error of a request that nobody receives."""
    what = "queries" if kind is Kind.QUERY else "requests of workers"
    return NoAnswerError(f"no service answers {what} here; is timer-service running?")


async def open_link(broker: Broker, name: str, subject_prefix: str, options: Mapping[str, Any]) -> Link:
    """Connect to a broker of any kind. `name`: for the server. Raises `NoAnswerError`.

    Raises `TimerServiceError` if a package is not installed.
    """
    kind = broker_of(broker.url.partition(",")[0]) or "nats"  # whose driver takes other URLs too, as without a scheme
    try:
        adapter = import_module(f"timer_service.client.{kind}.link")
    except ModuleNotFoundError as error:
        remedy = f'pip install "timer-service[{kind}]"'
        raise TimerServiceError(f"a client of this broker needs {error.name}: {remedy}") from error
    link: Link = await adapter.connect(broker, name, subject_prefix, options)
    return link

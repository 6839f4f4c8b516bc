"""The connection for the requests of workers. They and queries do not delay each other."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import nats.errors
from nats.aio.subscription import Subscription as Interest

from timer_service.adapters.nats.connect import connect
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.queries import error_headers, may_answer
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.ports.broker import QueryReply, ReceiveRequest, Request
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.ports.turns import Turns
from timer_service.core.values.error_text import error_text
from timer_service.core.values.headers import decode_text
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

_QUEUE = "timer-service"
_CLOSE_SECONDS = 2
_UNSENT_BYTES = 1024 * 1024
_BYTES_PER_TURN = 256 * 1024


class RequestConnection:
    """A `core.broker.RequestSubscription` on a connection of its own."""

    def __init__(
        self,
        subjects: Subjects,
        reply_prefix: str,
        receive: ReceiveRequest,
        on_denied: Callable[[Exception], Awaitable[None]],
        on_closed: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_denied` is called if the server denies a permission, and `on_closed` if the connection ends for good."""
        self._subjects = subjects
        self._reply_prefix = reply_prefix
        self._receive = receive
        self._on_denied = on_denied
        self._on_closed = on_closed
        self._client = GuardedClient()
        self._interests: list[Interest] = []
        self._last_error = ""
        self._outages = 0

    @property
    def outages(self) -> int:
        """How many times the connection was lost."""
        return self._outages

    @property
    def health(self) -> Health:
        """Down while the connection is lost."""
        if self._client.is_connected:
            return HEALTHY
        return Health.down(f"not connected to the broker for requests: {self._last_error or 'connection lost'}")

    @property
    def reading(self) -> bool:
        """Whether the connection is read, or is being restored."""
        return self._client.reading or not self._client.is_connected

    async def open(self, urls: str, login: Mapping[str, Any], names: Sequence[str]) -> None:
        """Connect, and start to receive the named requests. Raises `StartError` if no server accepts the connection."""
        self._client = await connect(
            lambda: _RequestClient(self._subjects, self._reply_prefix, self._receive),
            urls,
            name="timer-service requests",
            pending_size=_UNSENT_BYTES,
            last_error=lambda: self._last_error,
            **login,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
        )
        self._client.options["closed_cb"] = self._on_closed
        for name in names:
            subject = self._subjects.pattern(Kind.REQUEST, name)
            self._interests.append(await self._client.subscribe(subject, _QUEUE, cb=_ignore))
        await self._flush()

    async def reply(self, replies: Sequence[tuple[Request, QueryReply]]) -> None:
        """Send replies. They are lost while the connection is lost."""
        turns = Turns(_BYTES_PER_TURN)
        for request, reply in replies:
            await turns.take(len(reply.body))
            try:
                await self._client.publish(request.reply_to, reply.body, headers=error_headers(reply))
            except (nats.errors.Error, ValueError) as error:  # ValueError: a header that the driver refuses
                about = {"request": request.name, "reason": error_text(error)}
                log.warning("could not send the reply to a request", extra=about)

    async def close(self) -> None:
        """Stop taking requests. Return when all were received that the server had sent."""
        interests, self._interests = self._interests, []
        try:
            for interest in interests:
                await interest.unsubscribe()
            await self._flush()
        except nats.errors.Error:
            log.debug("could not unsubscribe from requests: the connection is lost")

    async def disconnect(self) -> None:
        """Send the replies that are ready, and disconnect."""
        try:
            await self._flush()
        except nats.errors.Error:
            log.warning("could not flush the connection for requests", exc_info=True)
        await self._client.close()

    async def _flush(self) -> None:
        """Wait until the server has taken what was sent before."""
        # The driver sends a flush before its buffered messages. When the second one returns, the server has these too.
        for _ in range(2):
            if self._client.is_connected:
                await self._client.flush(_CLOSE_SECONDS)

    async def _on_disconnected(self) -> None:
        self._outages += 1

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        log.debug("broker error on the connection for requests", extra={"reason": self._last_error})
        if "permissions violation" in self._last_error.lower():
            await self._on_denied(error)


async def _ignore(_message: object) -> None:
    """Ignore a message that is no request. `_RequestClient` passes none to the subscriptions of requests."""


class _RequestClient(GuardedClient):
    """A client that hands requests over when it reads them, so that none waits in the large buffer of the driver."""

    def __init__(self, subjects: Subjects, reply_prefix: str, receive: ReceiveRequest) -> None:
        super().__init__()
        self._prefix = subjects.pattern(Kind.REQUEST).partition("*")[0].encode()
        self._reply_prefix = reply_prefix
        self._receive = receive
        self._ignored = 0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        if not subject.startswith(self._prefix):
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        to = decode_text(reply)
        if not may_answer(to, self._reply_prefix):
            self._ignore()
            return
        tenant, _, name = decode_text(subject[len(self._prefix) :]).partition(".")
        answer = self._receive(Request(name, tenant, data, to))
        if answer is not None:
            await self.publish(to, answer.body, headers=error_headers(answer))

    def _ignore(self) -> None:
        self._ignored += 1
        if self._ignored & (self._ignored - 1) == 0:  # 1, 2, 4, 8: a flood of requests must not flood the log
            log.warning("requests ignored: their reply subjects are not inboxes", extra={"count": self._ignored})

"""The connection for commands and events: its health, its outages, and what the server has denied."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import nats.errors

from timer_service.adapters.nats.connect import connect
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.core.ports.health import HEALTHY, Health, OutageLog

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 2
_UNSENT_BYTES = 64 * 1024 * 1024  # the client writes a whole batch at once
_CONNECTION_ERRORS = (OSError, nats.errors.StaleConnectionError)


class Connection:
    """A connection that connects again for ever after it was lost."""

    def __init__(self, harmless: str) -> None:
        """`harmless`: a subject. If the server denies a permission for it, the health stays as it is."""
        self.client = GuardedClient()
        self.outages = 0
        """How many times the connection was lost."""
        self.on_lost: list[Callable[[], None]] = []
        """Called in this order when the connection is lost, before anything is sent again."""
        self.on_restored: list[Callable[[], None]] = []
        """Called in this order when the connection is restored."""
        self.tolerates: Callable[[str], bool] = lambda _reason: False
        """Returns whether the service works in spite of an error of the server."""
        self._harmless = harmless.lower()  # the driver reports errors of the server in lower case
        self._denied: str | None = None
        self._last_error = ""
        self._closed = asyncio.Event()
        self._closing = False
        self._outage = OutageLog(part="the broker", quiet_seconds=0)

    @property
    def denies(self) -> bool:
        """Whether the server has denied a permission since the connection was made."""
        return self._denied is not None

    @property
    def health(self) -> Health:
        """Down without a connection. Otherwise usable, with a reason if the server denied a permission."""
        if not self.client.is_connected:
            return Health.down(f"not connected to the broker: {self._last_error or 'connection lost'}")
        if self._denied is not None:
            return Health(reason=f"{self._denied}; `timer-service doctor` names every missing permission")
        return HEALTHY

    @property
    def reading(self) -> bool:
        """Whether the connection is read, or is being restored."""
        return self.client.reading or not self.client.is_connected

    async def open(self, urls: str, login: Mapping[str, Any]) -> None:
        """Connect. `urls` is comma-separated. Raises `StartError` if no server accepts the connection."""
        await connect(
            self._new_client,
            urls,
            name="timer-service",
            pending_size=_UNSENT_BYTES,
            last_error=lambda: self._last_error,
            **login,
            error_cb=self.record_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self.end,
        )
        self._closed.clear()
        self._last_error = ""

    async def wait_closed(self) -> str:
        """Wait until the connection is closed for good. Return the reason."""
        await self._closed.wait()
        return self._last_error

    def begin_to_close(self) -> None:
        """Record that the end of the connection is no outage."""
        self._closing = True

    async def close(self) -> None:
        """Send what is buffered, such as replies, and disconnect."""
        if self.client.is_connected:
            try:
                await self.client.flush(_CLOSE_SECONDS)
            except nats.errors.Error:
                log.warning("could not flush the connection to the broker", exc_info=True)
        await self.client.close()

    async def record_error(self, error: Exception) -> None:
        """Record an error that the server or the driver reports."""
        reason = str(error) or type(error).__name__
        if self.tolerates(reason):
            return
        # A denied hint does not count: without hints timers only fire later, and `doctor` reports the permission.
        if "permissions violation" in reason.lower() and self._harmless not in reason.lower():
            self._denied = reason
        if reason == self._last_error:  # each attempt to reconnect reports the same error
            return
        self._last_error = reason
        # The outage is logged with its reason when the connection is lost.
        of_connection = not self.client.is_connected or isinstance(error, _CONNECTION_ERRORS)
        log.log(logging.DEBUG if of_connection else logging.WARNING, "broker error", extra={"reason": reason})

    async def end(self) -> None:
        """Record that the connection is closed for good."""
        self._closed.set()

    def _new_client(self) -> GuardedClient:
        self.client = GuardedClient()
        return self.client

    async def _on_disconnected(self) -> None:
        self.outages += 1
        self._denied = None  # not in `_on_reconnected`: before that, the server may deny permissions again
        for notify in self.on_lost:
            notify()
        self.client.discard_unsent()
        if not self._closing:
            self._outage.record_failure(self._last_error or "connection lost")

    async def _on_reconnected(self) -> None:
        self._last_error = ""
        for notify in self.on_restored:
            notify()
        self._outage.record_success()

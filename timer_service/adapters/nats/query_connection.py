"""The connections for queries. A flood of queries does not delay what the other connections read, such as commands.

One receives queries and sends their replies, the other one sends refusals. The server reads each connection by itself,
so a reply does not wait until the server has read the refusals to another tenant.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import nats.errors
from nats.micro.service import Service

from timer_service.adapters.nats.asked_client import AskedClient
from timer_service.adapters.nats.connect import connect
from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.queries import serve_queries
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.ports.broker import QueryFilter, QueryHandler
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.message import Kind

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 2
_UNSENT_BYTES = 1024 * 1024


class QueryConnection:
    """A connection that answers queries as the micro service `timer-service`, which `$SRV.PING` and `INFO` find."""

    def __init__(
        self,
        subjects: Subjects,
        reply_prefix: str,
        refuse: QueryFilter,
        on_denied: Callable[[Exception], Awaitable[None]],
        on_closed: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_denied` is called if the server denies a permission, and `on_closed` if the connection ends for good."""
        self._subjects = subjects
        self._reply_prefix = reply_prefix
        self._refuse = refuse
        self._on_denied = on_denied
        self._on_closed = on_closed
        self._client = GuardedClient()
        self._refusing = GuardedClient()
        self._service: Service | None = None
        self._last_error = ""

    @property
    def health(self) -> Health:
        """Down while the connection that receives queries is lost."""
        if self._client.is_connected:
            return HEALTHY
        return Health.down(f"not connected to the broker for queries: {self._last_error or 'connection lost'}")

    @property
    def reading(self) -> bool:
        """Whether the connection is read, or is being restored."""
        return self._client.reading or not self._client.is_connected

    async def open(self, urls: str, login: Mapping[str, Any], names: Sequence[str], answer: QueryHandler) -> None:
        """Connect, and start to answer the named queries. Raises `StartError` if no server accepts the connection."""
        prefix = self._subjects.pattern(Kind.QUERY).partition("*")[0].encode()
        options = {
            "pending_size": _UNSENT_BYTES,
            "last_error": lambda: self._last_error,
            **login,
            "error_cb": self._on_error,
            "reconnected_cb": self._on_connected,
        }
        self._refusing = await connect(GuardedClient, urls, name="timer-service refusals", **options)
        self._refusing.options["closed_cb"] = self._on_closed
        self._client = await connect(
            lambda: AskedClient(prefix, self._reply_prefix, self._refuse, self._refusing),
            urls,
            name="timer-service queries",
            **options,
        )
        await self._on_connected()
        self._client.options["closed_cb"] = self._on_closed
        self._service = await serve_queries(self._client, self._subjects, self._reply_prefix, names, answer)

    async def close(self) -> None:
        """Stop to answer, send the replies that are ready, and disconnect."""
        if self._client.is_connected and self._service is not None:
            try:
                await self._service.stop()
                await self._client.flush(_CLOSE_SECONDS)
            except nats.errors.Error:
                log.warning("could not flush the connection for queries", exc_info=True)
        await self._client.close()
        await self._refusing.close()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        log.debug("broker error on the connection for queries", extra={"reason": self._last_error})
        if "permissions violation" in self._last_error.lower():
            await self._on_denied(error)

    async def _on_connected(self) -> None:
        self._last_error = ""

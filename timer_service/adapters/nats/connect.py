"""How a client connects for the first time, and how it reconnects later."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import nats.errors

from timer_service.adapters.nats.driver import GuardedClient
from timer_service.core.values.errors import StartError

_SECONDS = 10
_RECONNECT_SECONDS: Any = 0.2  # bounds how late timers fire after an outage; the driver types it as int
_PING_SECONDS = 20
_INBOX_PREFIX = "_INBOX_TIMER_SERVICE"
"""Not a prefix of client inboxes. So the service needs no permission to read those."""
_LOGIN_REFUSED = re.compile("authorization|authentication", re.IGNORECASE)
_C = TypeVar("_C", bound=GuardedClient)


async def connect(
    make: Callable[[], _C], urls: str, *, name: str, pending_size: int, last_error: Callable[[], str], **options: Any
) -> _C:
    """Return a client that is connected. After a lost connection it reconnects for ever.

    `urls` is comma-separated. `make` makes a client; each attempt needs a new one. A
    publish waits while `pending_size` bytes are not sent yet. `last_error` returns the last reason
    that the server gave. Raises `StartError` at once if the login is refused, and after ten seconds without an answer.
    """
    give_up_at = asyncio.get_running_loop().time() + _SECONDS
    while True:
        client = make()
        try:
            # The driver hangs after a certificate that it does not trust.
            async with asyncio.timeout_at(give_up_at):
                await client.connect(
                    [url.strip() for url in urls.split(",")],
                    name=name,
                    inbox_prefix=_INBOX_PREFIX,
                    max_reconnect_attempts=1,
                    connect_timeout=2,
                    reconnect_time_wait=_RECONNECT_SECONDS,
                    ping_interval=_PING_SECONDS,
                    pending_size=pending_size,
                    **options,
                )
        except (nats.errors.Error, OSError) as error:
            reason = last_error() or str(error) or type(error).__name__
            if _LOGIN_REFUSED.search(reason):
                raise StartError(f"the broker refuses the login (TIMER_NATS_...): {reason}") from error
            if asyncio.get_running_loop().time() >= give_up_at:
                raise StartError(f"cannot connect to the broker (TIMER_BROKER_URL): {reason}") from error
            await asyncio.sleep(_RECONNECT_SECONDS)
        else:
            # Not earlier: with -1 the driver would retry the first connect forever, without an error.
            made: dict[str, Any] = client.options
            made["max_reconnect_attempts"] = -1
            return client

"""The health of the parts of an instance, and the log of their outages."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

log = logging.getLogger(__name__)

_QUIET_SECONDS = 5
"""An outage of the database ends when no call has failed for this long. A failed loop or command is retried sooner."""
_WAITING_SECONDS = 1
PUBLISHING_SECONDS = 60
"""How long a failure to publish counts. While there is work, relays try more often."""


class Health(NamedTuple):
    """The health of a part, such as the broker or the database."""

    usable: bool = True
    """Whether a call can succeed now."""
    reason: str | None = None
    """What is wrong; None if nothing is. A broker that denies one permission is usable and has a reason."""

    @classmethod
    def down(cls, reason: str) -> "Health":
        """Return the health of a part that cannot be used."""
        return cls(usable=False, reason=reason)


HEALTHY = Health()


def worst(*parts: Health) -> Health:
    """Return the first health that is not usable, else the first that has a reason, else `HEALTHY`."""
    unusable = (part for part in parts if not part.usable)
    impaired = (part for part in parts if part.reason is not None)
    return next(unusable, None) or next(impaired, HEALTHY)


@contextmanager
def log_waiting(part: str, reason: Callable[[], str]) -> Iterator[None]:
    """Log a warning with the reason so far if the block, which waits for a part at the start, takes a second."""
    waiting = asyncio.get_running_loop().call_later(
        _WAITING_SECONDS, lambda: log.warning("waiting for %s", part, extra={"reason": reason() or "no answer"})
    )
    try:
        yield
    finally:
        waiting.cancel()


class RecentFailure:
    """The health of a part that is down for some seconds after each failure, unless it works again earlier.

    If a part fails and then has nothing to do, its health must not stay down for ever.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._reason: str | None = None
        self._failed_at = 0.0
        self.failures = 0
        """How many failures were recorded. The part may work again before anyone asks for its health."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a part fails that was healthy."""

    def record(self, reason: str) -> None:
        """Record a failure."""
        was_healthy = self.health.usable
        self._reason = reason
        self._failed_at = self._monotonic()
        self.failures += 1
        if was_healthy:
            self.on_failure()

    def clear(self) -> None:
        """Record that the part works."""
        self._reason = None

    @property
    def health(self) -> Health:
        """Down with the reason of the last failure, or healthy."""
        if self._reason is None or self._monotonic() - self._failed_at > self._seconds:
            return HEALTHY
        return Health.down(self._reason)


class OutageLog:
    """Logs each outage of one part twice: a warning when it begins, and its duration when it has ended.

    For example, every loop, the reader of commands and the queries meet the same outage of the database. They report
    their calls here instead of logging them.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        part: str = "the database",
        quiet_seconds: float = _QUIET_SECONDS,
    ) -> None:
        """`quiet_seconds`: an outage ends with a success, if no call has failed for this long."""
        self._monotonic = monotonic
        self._part = part
        self._quiet_seconds = quiet_seconds
        self._began_at: float | None = None
        self._failed_at = 0.0
        self._back_at: float | None = None
        """When the first call after the last failure succeeded; None before."""

    def record_failure(self, reason: str, **seen_by: str) -> None:
        """Record a call that failed because the part could not be used. `seen_by` names the caller in the log."""
        self._failed_at = self._monotonic()
        self._back_at = None
        if self._began_at is None:
            self._began_at = self._failed_at
            log.warning("%s is unavailable", self._part, extra={"reason": reason, **seen_by})

    def record_success(self) -> None:
        """Record a call that succeeded. Some calls succeed even in an outage, such as reads while the disk is full."""
        if self._began_at is None:
            return
        now = self._monotonic()
        if self._back_at is None:
            self._back_at = now
        if now - self._failed_at >= self._quiet_seconds:
            seconds = round(self._back_at - self._began_at, 1)
            log.info("%s is available again", self._part, extra={"seconds": seconds})
            self._began_at = None

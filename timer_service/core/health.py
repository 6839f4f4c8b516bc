"""The health of the broker and of the database, and the log of the database's outages."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

log = logging.getLogger(__name__)

_QUIET_SECONDS = 5
"""An outage ends when no call has failed for this long. A failed loop or command is retried sooner than that."""


class Health(NamedTuple):
    """The health of the broker or of the database."""

    usable: bool = True
    """Whether a call can succeed now."""
    reason: str | None = None
    """What is wrong; None if nothing is. A broker that denies one permission is usable and has a reason."""

    @classmethod
    def down(cls, reason: str) -> "Health":
        """Return the health of a broker or a database that cannot be used."""
        return cls(usable=False, reason=reason)


HEALTHY = Health()


class RecentFailure:
    """The health of a part that is down for some seconds after each failure, unless it works again earlier.

    If a part fails and then has nothing to do, its health must not stay down for ever.
    """

    def __init__(self, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._reason: str | None = None
        self._failed_at = 0.0

    def record(self, reason: str) -> None:
        """Record a failure."""
        self._reason = reason
        self._failed_at = self._monotonic()

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
    """Logs each outage of the database twice: a warning when it begins, and its duration when it has ended.

    Every loop, the consumer and the queries meet the same outage. They report their calls here instead of logging them.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began_at: float | None = None
        self._failed_at = 0.0
        self._back_at: float | None = None

    def record_failure(self, reason: str) -> None:
        """Record a call that failed because the database could not be used."""
        self._failed_at = self._monotonic()
        self._back_at = None
        if self._began_at is None:
            self._began_at = self._failed_at
            log.warning("the database is unavailable", extra={"reason": reason})

    def record_success(self) -> None:
        """Record a call that succeeded. Some calls succeed even in an outage, such as reads while the disk is full."""
        if self._began_at is None:
            return
        now = self._monotonic()
        self._back_at = now if self._back_at is None else self._back_at
        if now - self._failed_at >= _QUIET_SECONDS:
            log.info("the database is available again", extra={"seconds": round(self._back_at - self._began_at, 1)})
            self._began_at = None

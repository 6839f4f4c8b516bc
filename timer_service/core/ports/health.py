"""The health of the parts of an instance, and the log of their outages."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

log = logging.getLogger(__name__)

_QUIET_SECONDS = 5
"""An outage of the database ends when no call has failed for this long. A failed loop or command is retried sooner."""
_FORGOTTEN_SECONDS = 60
"""A failed call counts for this long. While there is work, loops and relays try more often."""


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
    """Logs each outage of one part twice: a warning when it begins, and its duration when it has ended.

    For example, every loop, the consumer and the queries meet the same outage of the database. They report their calls
    here instead of logging them.
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
        self._failing: dict[str | None, float] = {}
        """When the calls of each caller failed that have not succeeded since."""
        self._back_at: float | None = None

    def record_failure(self, reason: str, **seen_by: str) -> None:
        """Record a call that failed because the part could not be used. `seen_by` names the caller in the log."""
        self._failed_at = self._monotonic()
        self._failing[_caller(seen_by)] = self._failed_at
        self._back_at = None
        if self._began_at is None:
            self._began_at = self._failed_at
            log.warning("%s is unavailable", self._part, extra={"reason": reason, **seen_by})

    def record_success(self, **seen_by: str) -> None:
        """Record a call that succeeded. Some calls succeed even in an outage, such as reads while the disk is full.

        So the outage goes on while another caller has failed within a minute and not succeeded since.
        """
        if self._began_at is None:
            return
        now = self._monotonic()
        self._failing.pop(_caller(seen_by), None)
        if any(now - failed_at < _FORGOTTEN_SECONDS for failed_at in self._failing.values()):
            return
        self._failing.clear()
        self._back_at = now if self._back_at is None else self._back_at
        if now - self._failed_at >= self._quiet_seconds:
            seconds = round(self._back_at - self._began_at, 1)
            log.info("%s is available again", self._part, extra={"seconds": seconds})
            self._began_at = None


def _caller(seen_by: Mapping[str, str]) -> str | None:
    return next(iter(seen_by.values()), None)


class Publishing:
    """Whether events can be published, as the relays record it. A failure that one event caused does not count."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failure: str | None = None
        self._failed_at = 0.0
        self.failures = 0
        """How many times publishing has failed. It may work again before anyone asks for the health."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when publishing fails for the first time since it last succeeded."""

    @property
    def health(self) -> Health:
        """Down after a failure, until publishing succeeds. After a minute without a failure nothing waits any more."""
        if self._failure is None or self._monotonic() - self._failed_at > _FORGOTTEN_SECONDS:
            return HEALTHY
        return Health.down(self._failure)

    def record_failure(self, reason: str) -> None:
        """Record that the broker had no room or did not answer. `reason` says what it answered."""
        first = self.health.usable
        self._failure = reason
        self._failed_at = self._monotonic()
        self.failures += 1
        if first:
            self.on_failure()

    def record_success(self) -> None:
        """Record that the broker stored events."""
        self._failure = None

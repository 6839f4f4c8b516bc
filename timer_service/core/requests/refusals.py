"""How many queries of each tenant were refused in the current second."""

import time
from collections import Counter
from collections.abc import Callable

MOST_REFUSALS = 100
_SECONDS = 1


class Refusals:
    """The refused queries of each tenant. After too many, the next ones are refused unread until the second ends.

    To read a query and refuse it takes several times as long. A flood would leave no time for other tenants.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._counts: Counter[str] = Counter()
        self._until = monotonic() + _SECONDS

    def record(self, tenant: str) -> None:
        """Record that a query of a tenant was refused."""
        self._start_second()
        self._counts[tenant] += 1

    def too_many(self, tenant: str) -> bool:
        """Return whether too many queries of a tenant were refused in this second."""
        self._start_second()
        return self._counts.get(tenant, 0) >= MOST_REFUSALS

    def _start_second(self) -> None:
        if (now := self._monotonic()) >= self._until:
            self._counts.clear()
            self._until = now + _SECONDS

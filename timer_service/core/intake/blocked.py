"""Commands that may wait for a locked row, or whose statements take too long. They must not hold up other commands."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from timer_service.core.values.delays import Delays
from timer_service.core.values.delivery import Delivery

_ANY_NUMBER = float("inf")
_WATCHED_SECONDS = 60
_DIVISOR = 8  # each step of the search costs the time that the database waits for a lock


class _Watch(NamedTuple):
    """How the commands of a tenant are handled after one of their transactions was blocked."""

    most: float
    """How many commands a transaction may have."""
    until: float
    """When the watch ends, as monotonic seconds."""


class Blocked:
    """What is known about transactions that were blocked. It decides which commands are handled in one transaction.

    After a transaction of several tenants was blocked, the commands of each are handled apart. The tenants that are not
    concerned succeed at once, and are forgotten. If a transaction of one tenant is blocked, the next ones have an
    eighth of its commands, until a command is blocked alone. Such a command stays alone, and is retried after growing
    delays. All of this lasts over several batches, so that other tenants get their turn in between.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._tenants: dict[str, _Watch] = {}
        self._alone = Delays()

    def divide(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[list[Delivery]]]:
        """Return the deliveries to handle together, and the groups to handle after them, each by itself."""
        if not self._tenants and not self._alone:
            return list(deliveries), []
        now = self._monotonic()
        self._tenants = {tenant: watch for tenant, watch in self._tenants.items() if watch.until > now}
        together: list[Delivery] = []
        groups: list[list[Delivery]] = []
        open_groups: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            tenant = delivery.address.tenant
            if delivery.position in self._alone:
                groups.append([delivery])
            elif (watch := self._tenants.get(tenant)) is None:
                together.append(delivery)
            elif tenant in open_groups and len(open_groups[tenant]) < watch.most:
                open_groups[tenant].append(delivery)
            else:
                groups.append([delivery])
                open_groups[tenant] = groups[-1]
        return together, groups

    def record_blocked(self, deliveries: Sequence[Delivery]) -> timedelta | None:
        """Record that a transaction was blocked. Return the delay of the next attempt if it had only one command."""
        until = self._monotonic() + _WATCHED_SECONDS
        tenants = {delivery.address.tenant for delivery in deliveries}
        if len(deliveries) == 1:
            return self._alone.next(deliveries[0].position)
        for tenant in tenants:
            if len(tenants) == 1:
                self._tenants[tenant] = _Watch(max(1, len(deliveries) // _DIVISOR), until)
            else:
                self._tenants.setdefault(tenant, _Watch(_ANY_NUMBER, until))
        return None

    def record_handled(self, deliveries: Iterable[Delivery]) -> None:
        """Record that a transaction succeeded. The next transactions of its tenants may have twice as many commands."""
        if not self._tenants and not self._alone:
            return
        handled = list(deliveries)
        for delivery in handled:
            self._alone.forget(delivery.position)
        counts = Counter(delivery.address.tenant for delivery in handled)
        for tenant in counts.keys() & self._tenants.keys():
            most, until = self._tenants[tenant]
            if most == _ANY_NUMBER:
                del self._tenants[tenant]
            elif counts[tenant] <= most:  # else it was divided before the last transaction was blocked
                self._tenants[tenant] = _Watch(2 * most, until)

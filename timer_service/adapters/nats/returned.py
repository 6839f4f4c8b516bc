"""Commands that were handed out and put back, because their turn was over before they were handled."""

import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import zip_longest

from timer_service.core.broker import Delivery

_MOST_COMMANDS = 2000
_RENEW_SECONDS = 5  # `ack_wait` is 30 s, and a statement of the database may take 20 s


class Returned:
    """Deliveries in the order in which they are handed out again.

    No newer command of their tenants may overtake them. So the express lane leaves out these tenants. The buffer waits
    until all deliveries are handed out, except small commands of other tenants.
    """

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._deliveries: deque[Delivery] = deque()
        self._tenants: Counter[str] = Counter()
        self._bytes = 0
        self._renew_at = 0.0

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def deliveries(self) -> Sequence[Delivery]:
        """The deliveries, which stay here."""
        return tuple(self._deliveries)

    @property
    def is_full(self) -> bool:
        """Whether so many commands wait that no others may be handed out before them."""
        return self._bytes >= 2 * self._batch_bytes or len(self._deliveries) >= _MOST_COMMANDS

    def holds(self, tenant: str) -> bool:
        """Return whether a command of a tenant waits here."""
        return tenant in self._tenants

    def put(self, deliveries: Sequence[Delivery], *, have_overtaken: bool = False) -> None:
        """Add deliveries to the front, in their order.

        `have_overtaken`: they have overtaken those that wait here, which are of other tenants. From now on they take
        turns. Otherwise new ones that come again and again would stay in front.
        """
        waiting: Sequence[Delivery] = ()
        if have_overtaken:
            waiting = tuple(self._deliveries)
            self._deliveries.clear()
        # What is put back again and again must be renewed too. So a recent instant stays.
        if time.monotonic() - self._renew_at > _RENEW_SECONDS:
            self._renew_at = time.monotonic() + _RENEW_SECONDS
        in_order = [each for pair in zip_longest(waiting, deliveries) for each in pair if each is not None]
        self._deliveries.extendleft(reversed(in_order))
        self._tenants.update(delivery.address.tenant for delivery in deliveries)
        self._bytes += sum(delivery.size for delivery in deliveries)

    def take(self, limit: int) -> list[Delivery]:
        """Remove and return up to `limit` deliveries that fit into a batch, and at least one of any size."""
        taken: list[Delivery] = []
        room = self._batch_bytes
        while self._deliveries and len(taken) < limit and (not taken or self._deliveries[0].size <= room):
            taken.append(self._deliveries.popleft())
            room -= taken[-1].size
        self._bytes -= self._batch_bytes - room
        self._tenants -= Counter(delivery.address.tenant for delivery in taken)
        return taken

    def must_renew(self, *, soon: bool) -> bool:
        """Return whether to tell the server now that commands are in progress. `soon`: `ack_wait` is very short."""
        now = time.monotonic()
        if not self._deliveries or (now < self._renew_at and not soon):
            return False
        self._renew_at = now + _RENEW_SECONDS
        return True

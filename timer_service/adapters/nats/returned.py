"""Commands that were handed out and put back, because their turn was over before they were handled."""

import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from itertools import zip_longest

from timer_service.core.intake.turn_order import in_turns
from timer_service.core.values.delivery import Delivery

_MOST_COMMANDS = 2000
_MOST_SERVED = 10_000
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
        self._turn = 0
        self._last_put = 0
        """The turn in which deliveries were last added."""
        self._served: dict[int, int] = {}
        """The last turn of each tenant of which commands were handled while others waited. A hash stands for a name.

        For a tenant that has come since, it is the turn before it came.
        """

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

    def record_served(self, tenants: Collection[str]) -> None:
        """Record that commands of tenants were handled. Their next ones come after those of the others."""
        if len(self._served) > _MOST_SERVED:
            self._forget_others()
        self._turn += 1
        self._served |= dict.fromkeys(map(hash, tenants), self._turn)

    def put(self, deliveries: Sequence[Delivery], have_overtaken: Sequence[Delivery] = ()) -> None:
        """Add deliveries, in their order. `have_overtaken`: they have overtaken those that wait here, of other tenants.

        From now on all tenants take turns, those first that have waited for longest. If some were in front again and
        again, because others of them come meanwhile, the rest would wait for as long as these go on. So a tenant that
        comes does not stay before those that were served before: somebody could use another name for each command.
        """
        # What is put back again and again must be renewed too. So a recent instant stays.
        if time.monotonic() - self._renew_at > _RENEW_SECONDS:
            self._renew_at = time.monotonic() + _RENEW_SECONDS
        others = zip_longest(self._deliveries, have_overtaken)
        in_order = [*deliveries, *(each for pair in others for each in pair if each is not None)]
        for each in deliveries:
            self._served.setdefault(hash(each.address.tenant), self._last_put)
            self._add(each)
        for each in have_overtaken:
            if not self.holds(tenant := each.address.tenant):
                self._served[hash(tenant)] = max(self._served.get(hash(tenant), 0), self._last_put)
            self._add(each)
        self._deliveries = deque(in_turns(in_order, lambda tenant: self._served[hash(tenant)]))
        self._last_put = self._turn

    def _add(self, delivery: Delivery) -> None:
        self._tenants[delivery.address.tenant] += 1
        self._bytes += delivery.size

    def _forget_others(self) -> None:
        """Forget when the tenants were served of which no commands wait."""
        self._served = {each: self._served[each] for each in map(hash, self._tenants)}

    def take(self, limit: int) -> list[Delivery]:
        """Remove and return up to `limit` deliveries that fit into a batch, and at least one of any size."""
        taken: list[Delivery] = []
        room = self._batch_bytes
        while self._deliveries and len(taken) < limit and (not taken or self._deliveries[0].size <= room):
            taken.append(self._deliveries.popleft())
            room -= taken[-1].size
        self._bytes -= self._batch_bytes - room
        self._tenants -= Counter(delivery.address.tenant for delivery in taken)
        if not self._deliveries:
            self._served.clear()
        return taken

    def must_renew(self, *, soon: bool) -> bool:
        """Return whether to tell the server now that commands are in progress. `soon`: `ack_wait` is very short."""
        now = time.monotonic()
        if not self._deliveries or (now < self._renew_at and not soon):
            return False
        self._renew_at = now + _RENEW_SECONDS
        return True

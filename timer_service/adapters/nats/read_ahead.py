"""The commands that were read ahead of the consumer and are not handed out yet."""

import math
from collections.abc import Callable

from timer_service.core.values.delivery import Delivery

READ_BYTES = 8 * 1024 * 1024
"""The most bytes that commands may have while they are being read; a single command may have more."""
_READS_AT_ONCE = 8


def reads_at_once(largest_body: int) -> int:
    """Return how many commands of any size may be read at once."""
    return max(1, min(_READS_AT_ONCE, READ_BYTES // largest_body))


class ReadAhead:
    """Deliveries in the order in which they were read. A batch taken from them is bounded in count and in bytes."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._deliveries: list[Delivery] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._deliveries)

    @property
    def has_room(self) -> bool:
        """Whether another command may be read: there are fewer bytes than a batch may have."""
        return self._bytes < self._batch_bytes

    @property
    def tenants(self) -> set[str]:
        """The tenants of the commands."""
        return {delivery.address.tenant for delivery in self._deliveries}

    def count(self, *, waits: Callable[[str], bool]) -> int:
        """Return how many commands can be taken: those of a tenant that `waits` stay here."""
        return sum(not waits(delivery.address.tenant) for delivery in self._deliveries)

    def append(self, delivery: Delivery) -> None:
        """Add a command that was read."""
        self._deliveries.append(delivery)
        self._bytes += delivery.size

    def take(self, limit: int, *, after: int, waits: Callable[[str], bool]) -> list[Delivery]:
        """Remove and return up to `limit` commands that fit into a batch, and at least one of any size.

        Commands up to the sequence `after` are dropped, because the consumer has delivered them. Commands of a tenant
        that `waits` stay here.
        """
        known = [delivery for delivery in self._deliveries if delivery.position.sequence > after]
        ahead = [delivery for delivery in known if not waits(delivery.address.tenant)]
        taken: list[Delivery] = []
        room = self._batch_bytes
        for delivery in ahead[:limit]:
            room -= delivery.size
            if taken and room < 0:
                break
            taken.append(delivery)
        self._keep([*ahead[len(taken) :], *(each for each in known if waits(each.address.tenant))])
        return taken

    def remove(self, tenant: str, until: float = math.inf) -> list[int]:
        """Drop the commands of a tenant, up to a sequence. Return their sequences."""
        known = [(each, each.address.tenant == tenant and each.position.sequence <= until) for each in self._deliveries]
        self._keep([each for each, is_dropped in known if not is_dropped])
        return [each.position.sequence for each, is_dropped in known if is_dropped]

    def clear(self) -> None:
        """Drop all commands."""
        self._keep([])

    def _keep(self, deliveries: list[Delivery]) -> None:
        self._deliveries = deliveries
        self._bytes = sum(each.size for each in deliveries)

"""Checks in the transaction of a command whether its tenant may add more. See docs/decisions/0028.

Nothing is counted when rows are written. Instead, the rows of a tenant are counted when one of its commands wants to
add some, and it is then remembered how many more the tenant may add. When these are used up, they are counted again,
but not too often.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.ports.database import Reader, Transaction

OVER_QUOTA = "over_quota"
"""The outcome of a command that would exceed a limit of its tenant."""
_VALID_SECONDS = 10
"""How long a count is valid if not only the commands of this process add something, and the longest time until the
next one is possible.
"""
_COUNTING_SHARE = 20
"""The next count waits this many times as long as all counts of about the last second took.

So tenants at their limits do not delay others by counting. Until then, a command that finds no room is refused.
"""
_MOST_ROOMS = 50_000


class Usage(NamedTuple):
    """Something of which a tenant may have a limited amount."""

    limit: str
    """The name of its limit in `Limits`."""
    sql: str
    """Returns `used`, the amount of a tenant at the instant `now`. It need not count further than `most`."""
    grows_alone: bool = False
    """Whether it also grows without a command."""

    async def amount_of(self, reader: Reader, tenant: str, now: int, most: int) -> int:
        """Return how much a tenant has, at most `most`; of a sum, `most` or more."""
        (row,) = await reader.fetch(self.sql, {"tenant_id": tenant, "now": now, "most": most})
        used: int = row["used"]
        return used


Amounts = Mapping[Usage, int]
"""How much more a tenant has after a change than before; negative if it has less."""


class Excess(NamedTuple):
    """The limit that a command would exceed."""

    limit: str
    most: int

    def view(self) -> Mapping[str, object]:
        """Return the fields of the reply, in addition to the outcome."""
        return {"limit": {"name": self.limit, "most": self.most}}


@dataclass(slots=True)
class _Room:
    left: int
    """How much more the tenant may add, at least. Negative if it has more than its limit."""
    count_again_at: float
    """The rows are not counted again before."""
    valid_until: float


_Key = tuple[str, str]
"""A tenant and the name of a limit."""


class Quotas:
    """How much each tenant may still add, as far as this process knows."""

    def __init__(
        self,
        limits: TenantLimits = DEFAULT_LIMITS,
        *,
        alone: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`alone`: only this process writes rows."""
        self.limits = limits
        self._monotonic = monotonic
        self.rooms: dict[_Key, _Room] = {}
        self._valid_seconds = float("inf") if alone else _VALID_SECONDS
        self._limits_nobody = limits == DEFAULT_LIMITS
        self._counted_at = 0.0
        self._counting_seconds = 0.0
        """How long the counts of about the last second took together."""

    def admission(self, tx: Transaction, now: int) -> "Admission | None":
        """Return what admits the commands of a transaction at an instant; None if all may add what they want."""
        return None if self._limits_nobody else Admission(self, tx, now)

    def must_count(self, room: _Room, amount: int) -> bool:
        """Return whether to count the rows again: an amount does not fit, or the count is not valid any more."""
        now = self._monotonic()
        return now >= room.count_again_at and (amount > room.left or now >= room.valid_until)

    async def count(self, tx: Transaction, tenant: str, usage: Usage, most: int, now: int, *, written: int) -> _Room:
        """Count what a tenant has, and return its room, as it was before the transaction had `written` some rows."""
        began = self._monotonic()
        used = await usage.amount_of(tx, tenant, now, most + written + 1) - written
        ended = self._monotonic()
        weight = max(0.0, 1 - (ended - self._counted_at))  # earlier counts weigh less, and after a second nothing
        self._counted_at = ended
        self._counting_seconds = self._counting_seconds * weight + ended - began
        if len(self.rooms) >= _MOST_ROOMS:
            self.rooms.clear()
        pause = min(_COUNTING_SHARE * self._counting_seconds, _VALID_SECONDS)
        valid_seconds = _VALID_SECONDS if usage.grows_alone else self._valid_seconds
        room = _Room(most - used, count_again_at=ended + pause, valid_until=ended + valid_seconds)
        self.rooms[tenant, usage.limit] = room
        return room


class Admission:
    """Admits the commands of one transaction. Only a commit takes room from later transactions.

    The transaction writes its rows at its end, so a count in it does not have them. It may also write some of them
    first, between `may_write` and `wrote`.
    """

    def __init__(self, quotas: Quotas, tx: Transaction, now: int) -> None:
        self._quotas = quotas
        self._tx = tx
        self._now = now
        self._added = Counter[_Key]()
        self._written: Mapping[_Key, int] = {}
        self._counted: set[_Key] = set()
        tx.on_commit(self._take_room)

    async def exceeds(self, tenant: str, growth: Amounts) -> Excess | None:
        """Return the limit of the tenant that a change would exceed. If there is none, the change is admitted."""
        limits = self._quotas.limits.of(tenant)
        changed: dict[_Key, int] = {}
        for usage, amount in growth.items():
            if not amount or (most := limits.amount(usage.limit)) is None:
                continue
            if amount > 0 and not await self._fits(tenant, usage, most, amount):
                return Excess(usage.limit, most)
            changed[tenant, usage.limit] = amount
        self._added.update(changed)
        return None

    async def may_write(self, most: Mapping[str, Amounts]) -> bool:
        """Return whether each tenant may add so much by rows that are written first. Then `wrote` must follow.

        Nothing may have been admitted before, and this admits nothing: `wrote` admits what was really added.
        """
        try:
            for tenant, growth in most.items():
                if await self.exceeds(tenant, growth):
                    return False
        finally:
            self._added.clear()
        return True

    def wrote(self, growths: Mapping[str, Amounts]) -> None:
        """Admit what the rows that were written first have added."""
        for tenant, growth in growths.items():
            self._added.update({(tenant, usage.limit): amount for usage, amount in growth.items()})
        self._written = dict(self._added)

    async def _fits(self, tenant: str, usage: Usage, most: int, amount: int) -> bool:
        """Return whether a growth has room. The transaction counts the rows once, if the known room may be wrong."""
        quotas, key = self._quotas, (tenant, usage.limit)
        added = self._added[key] + amount
        if added <= 0:  # the transaction has removed as much
            return True
        room = quotas.rooms.get(key)
        if room is None or (key not in self._counted and quotas.must_count(room, added)):
            written = self._written.get(key, 0)
            room = await quotas.count(self._tx, tenant, usage, most, self._now, written=written)
            self._counted.add(key)
        return added <= room.left

    def _take_room(self) -> None:
        """Take what the transaction has added from the known rooms, after its commit."""
        for key, added in self._added.items():
            if room := self._quotas.rooms.get(key):
                room.left -= added

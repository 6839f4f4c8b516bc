"""Checks in the transaction of a command whether its tenant may add more. See docs/decisions/0028.

Nothing is counted when rows are written. Instead, the rows of a tenant are counted when one of its commands wants to
add some, and it is then remembered how many more the tenant may add. When these are used up, they are counted again,
but not too often.
"""

import time
from collections import defaultdict, deque
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
_RECENT_SECONDS = 1
_COUNTING_SHARE = 20
"""The next count waits this many times as long as all counts of the last second took.

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
        self.monotonic = monotonic
        self.rooms: dict[_Key, _Room] = {}
        self._valid_seconds = float("inf") if alone else _VALID_SECONDS
        self._limits_nobody = limits == DEFAULT_LIMITS
        self._counts = deque[tuple[float, float]]()
        """When the counts of the last second ended, and how long each took."""
        self._counting_seconds = 0.0
        """How long these took together."""

    def admission(self, tx: Transaction, now: int) -> "Admission | None":
        """Return what admits the commands of a transaction at an instant; None if all may add what they want."""
        return None if self._limits_nobody else Admission(self, tx, now)

    def lacks_room(self, tenant: str, growth: Amounts) -> bool:
        """Return whether the last count left too little room for a change."""
        rooms = [(self.rooms.get((tenant, usage.limit)), amount) for usage, amount in growth.items()]
        return any(room is not None and amount > room.left for room, amount in rooms)

    def must_count(self, room: _Room, amount: int) -> bool:
        """Return whether to count the rows again because an amount does not fit, or because others add some too."""
        now = self.monotonic()
        return now >= room.count_again_at and (amount > room.left or now >= room.valid_until)

    def counted(self, key: _Key, left: int, began: float, *, grows_alone: bool) -> _Room:
        """Return the room that a count has found."""
        now = self.monotonic()
        self._counts.append((now, now - began))
        self._counting_seconds += now - began
        while self._counts[0][0] <= now - _RECENT_SECONDS:
            self._counting_seconds -= self._counts.popleft()[1]
        if key not in self.rooms and len(self.rooms) >= _MOST_ROOMS:
            del self.rooms[next(iter(self.rooms))]
        pause = min(_COUNTING_SHARE * self._counting_seconds, _VALID_SECONDS)
        valid_seconds = _VALID_SECONDS if grows_alone else self._valid_seconds
        room = self.rooms[key] = _Room(left, now + pause, now + valid_seconds)
        return room


@dataclass(slots=True)
class _Share:
    """What the commands of one transaction add to the amount of a tenant."""

    added: int = 0
    """So far. Negative if they remove more than they add."""
    written: int = 0
    """What a count in the transaction finds of `added`, because the rows are written."""
    taken: int = 0
    """What they took from the room: the highest value of `added`. The transaction may fail, so less is no room."""
    room: _Room | None = None
    is_counted: bool = False
    """Whether this transaction has counted the rows. Another count would find the same."""

    def add(self, amount: int) -> None:
        self.added += amount
        if self.room is not None and self.added > self.taken:
            self.room.left -= self.added - self.taken
            self.taken = self.added

    def give_back(self, amount: int) -> None:
        if self.room is not None:
            self.room.left += amount
            self.taken -= amount


class Admission:
    """Admits the commands of one transaction. If it is rolled back, they have taken no room.

    The transaction writes its rows at its end, so a count in it does not have them. It may also write some of them
    first, between `reserve` and `keep`.
    """

    def __init__(self, quotas: Quotas, tx: Transaction, now: int) -> None:
        self._quotas = quotas
        self._tx = tx
        self._now = now
        self._shares = defaultdict[_Key, _Share](_Share)
        tx.on_rollback(self._give_back)

    async def exceeds(self, tenant: str, growth: Amounts) -> Excess | None:
        """Return the limit of the tenant that a change would exceed. If there is none, the change takes its room."""
        limits = self._quotas.limits.of(tenant)
        changed: list[tuple[_Share, int]] = []
        for usage, amount in growth.items():
            if not amount or (most := limits.amount(usage.limit)) is None:
                continue
            share = self._shares[tenant, usage.limit]
            if amount > 0 and not await self._fits(tenant, usage, most, share, amount):
                return Excess(usage.limit, most)
            changed.append((share, amount))
        for share, amount in changed:
            share.add(amount)
        return None

    async def reserve(self, most: Mapping[str, Amounts]) -> bool:
        """Take room for the most that each tenant may add by rows that are written first; none if one has too little.

        Nothing else may have been admitted before. `keep` must follow. Rows are not counted again only because there is
        too little room: perhaps the tenant adds less.
        """
        for tenant, growth in most.items():
            if self._quotas.lacks_room(tenant, growth) or await self.exceeds(tenant, growth):
                self.keep({})
                return False
        return True

    def keep(self, written: Mapping[str, Amounts]) -> None:
        """Say what each tenant has added of what was reserved. The rest can be added later in the transaction.

        What is left of it after the commit goes back to the room.
        """
        for (tenant, limit), share in self._shares.items():
            growth = written.get(tenant, {})
            share.added = share.written = sum(amount for usage, amount in growth.items() if usage.limit == limit)
        self._tx.on_commit(self._give_back_unused)

    def _give_back_unused(self) -> None:
        for share in self._shares.values():
            share.give_back(share.taken - max(share.added, 0))

    def _give_back(self) -> None:
        for share in self._shares.values():
            share.give_back(share.taken)

    async def _fits(self, tenant: str, usage: Usage, most: int, share: _Share, amount: int) -> bool:
        quotas, key = self._quotas, (tenant, usage.limit)
        needed = share.added + amount - share.taken
        if needed <= 0:  # the transaction has removed as much
            return True
        share.room = share.room or quotas.rooms.get(key)
        if share.room is None or (not share.is_counted and quotas.must_count(share.room, needed)):
            began = quotas.monotonic()
            used = await usage.amount_of(self._tx, tenant, self._now, most + 1)
            left = most - used + share.written - share.taken
            share.room = quotas.counted(key, left, began, grows_alone=usage.grows_alone)
            share.is_counted = True
        return needed <= share.room.left

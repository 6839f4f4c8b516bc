"""Checks in the transaction of a command whether its tenant may add more. See docs/decisions/0028.

Nothing is counted when rows are written. Instead, the rows of a tenant are counted when one of its commands wants to
add some, and it is then remembered how many more the tenant may add. When these are used up, they are counted again.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from timer_service.core.database import Reader
from timer_service.core.limits import DEFAULT_LIMITS, TenantLimits

OVER_QUOTA = "over_quota"
"""The outcome of a command that would exceed a limit of its tenant."""
_VALID_SECONDS = 10
"""How long a count is valid if other instances add rows too."""
_COUNTING_SHARE = 20
"""Counting takes at most this part of the time: a tenant that is at its limit does not delay others."""
_MOST_ROOMS = 50_000


class Usage(NamedTuple):
    """Something of which a tenant may have a limited amount."""

    limit: str
    """The name of its limit in `Limits`."""
    sql: str
    """Returns `used`, the amount of a tenant. Its parameters are `tenant_id` and `most`: it need not count further."""


Amounts = Mapping[Usage, int]
"""How much a command adds at most."""


class Excess(NamedTuple):
    """The limit that a command would exceed."""

    limit: str
    most: int

    @property
    def view(self) -> Mapping[str, object]:
        """The fields of the reply, in addition to the outcome."""
        return {"limit": {"name": self.limit, "most": self.most}}


@dataclass(slots=True)
class _Room:
    left: int
    """How much more the tenant may add, at least."""
    valid_until: float
    count_again_at: float


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
        self.valid_seconds = float("inf") if alone else _VALID_SECONDS
        self.monotonic = monotonic
        self.rooms: dict[_Key, _Room] = {}

    def admission(self, tx: Reader) -> "Admission":
        """Return what admits the commands of a transaction."""
        return Admission(self, tx)


class Admission:
    """Admits the commands of one transaction. It writes its rows at its end, so a count in it does not have them."""

    def __init__(self, quotas: Quotas, tx: Reader) -> None:
        self._quotas = quotas
        self._tx = tx
        self._added = Counter[_Key]()

    async def exceeds(self, tenant: str, growth: Amounts) -> Excess | None:
        """Return the limit of the tenant that a command would exceed. If there is none, the command takes its room."""
        rooms: list[tuple[_Room, int]] = []
        for usage, amount in growth.items():
            room = self._quotas.rooms.get((tenant, usage.limit))
            if room is None or not self._fits(room, amount):
                room = await self._count(tenant, usage, room)
                if not self._fits(room, amount):
                    return Excess(usage.limit, self._quotas.limits.of(tenant).amount(usage.limit))
            rooms.append((room, amount))
        for (room, amount), usage in zip(rooms, growth, strict=True):
            room.left -= amount
            self._added[tenant, usage.limit] += amount
        return None

    def _fits(self, room: _Room, amount: int) -> bool:
        return amount <= room.left and self._quotas.monotonic() < room.valid_until

    async def _count(self, tenant: str, usage: Usage, known: _Room | None) -> _Room:
        """Count the rows of a tenant, unless that took long a short time ago."""
        quotas, key = self._quotas, (tenant, usage.limit)
        began = quotas.monotonic()
        if known is not None and began < known.count_again_at:
            return known
        most = quotas.limits.of(tenant).amount(usage.limit)
        (row,) = await self._tx.fetch(usage.sql, {"tenant_id": tenant, "most": most + 1})
        now = quotas.monotonic()
        if len(quotas.rooms) >= _MOST_ROOMS:
            del quotas.rooms[next(iter(quotas.rooms))]
        quotas.rooms[key] = _Room(
            left=most - row["used"] - self._added[key],
            valid_until=now + quotas.valid_seconds,
            count_again_at=now + _COUNTING_SHARE * (now - began),
        )
        return quotas.rooms[key]

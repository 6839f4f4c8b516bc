"""Checks in the transaction of a command whether its tenant may add more. See docs/decisions/0028.

Nothing is counted when rows are written. Instead, the rows of a tenant are counted when one of its commands wants to
add some, and it is then remembered how many more the tenant may add. When these are used up, they are counted again.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
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


class _Room(NamedTuple):
    left: int
    """How much more the tenant may add, at least."""
    valid_until: float
    count_again_at: float


class _Key(NamedTuple):
    tenant: str
    limit: str


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
        for usage, amount in growth.items():
            key = _Key(tenant, usage.limit)
            if not self._fits(key, amount):
                await self._count(key, usage)
                if not self._fits(key, amount):
                    return Excess(usage.limit, self._most(key))
        for usage, amount in growth.items():
            key = _Key(tenant, usage.limit)
            self._added[key] += amount
            room = self._quotas.rooms[key]
            self._quotas.rooms[key] = room._replace(left=room.left - amount)
        return None

    def _fits(self, key: "_Key", amount: int) -> bool:
        room = self._quotas.rooms.get(key)
        return room is not None and amount <= room.left and self._quotas.monotonic() < room.valid_until

    async def _count(self, key: "_Key", usage: Usage) -> None:
        """Count the rows of a tenant, unless that took long a short time ago."""
        quotas = self._quotas
        began = quotas.monotonic()
        if (known := quotas.rooms.get(key)) is not None and began < known.count_again_at:
            return
        most = self._most(key)
        (row,) = await self._tx.fetch(usage.sql, {"tenant_id": key.tenant, "most": most + 1})
        now = quotas.monotonic()
        if len(quotas.rooms) >= _MOST_ROOMS:
            del quotas.rooms[next(iter(quotas.rooms))]
        quotas.rooms[key] = _Room(
            left=most - row["used"] - self._added[key],
            valid_until=now + quotas.valid_seconds,
            count_again_at=now + _COUNTING_SHARE * (now - began),
        )

    def _most(self, key: "_Key") -> int:
        return self._quotas.limits.of(key.tenant).amount(key.limit)

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
_SLOW_SECONDS = 0.01
_COUNTING_SHARE = 20
"""After a slow count, the next one waits this many times as long, so that a tenant at its limit does not delay others.

Until then the last count decides. So a tenant that had room may exceed its limit by what it adds in that time, and one
that had none stays refused.
"""
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
    counted: int
    """How much more the tenant might add when its rows were counted."""
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
        self._limits_nobody = limits == DEFAULT_LIMITS
        self.suspended = False
        """Whether nothing is refused: during a replay, timers that have fired before wait until it ends."""

    def admission(self, tx: Reader) -> "Admission | None":
        """Return what admits the commands of a transaction; None if all may add what they want."""
        return None if self.suspended or self._limits_nobody else Admission(self, tx)


class Admission:
    """Admits the commands of one transaction. It writes its rows at its end, so a count in it does not have them."""

    def __init__(self, quotas: Quotas, tx: Reader) -> None:
        self._quotas = quotas
        self._tx = tx
        self._added = Counter[_Key]()
        self._counted = set[_Key]()

    async def exceeds(self, tenant: str, growth: Amounts) -> Excess | None:
        """Return the limit of the tenant that a command would exceed. If there is none, the command takes its room."""
        limits = self._quotas.limits.of(tenant)
        taken: list[tuple[_Room, _Key, int]] = []
        for usage, amount in growth.items():
            if (most := limits.amount(usage.limit)) is None:
                continue
            room = self._quotas.rooms.get((tenant, usage.limit))
            if room is None or not self._fits(room, amount):
                room = await self._count(tenant, usage, room, most)
                if self._is_refused(room, amount):
                    return Excess(usage.limit, most)
            taken.append((room, (tenant, usage.limit), amount))
        for room, key, amount in taken:
            room.left -= amount
            self._added[key] += amount
        return None

    def _fits(self, room: _Room, amount: int) -> bool:
        return amount <= room.left and self._quotas.monotonic() < room.valid_until

    def _is_refused(self, room: _Room, amount: int) -> bool:
        if amount <= room.left:
            return False
        return amount > room.counted or self._quotas.monotonic() >= room.count_again_at

    async def _count(self, tenant: str, usage: Usage, known: _Room | None, most: int) -> _Room:
        """Count the rows of a tenant, once in each transaction. After a slow count, return what is known for a time."""
        quotas, key = self._quotas, (tenant, usage.limit)
        began = quotas.monotonic()
        if known is not None and (key in self._counted or began < known.count_again_at):
            return known
        self._counted.add(key)
        (row,) = await self._tx.fetch(usage.sql, {"tenant_id": tenant, "most": most + 1})
        now = quotas.monotonic()
        if len(quotas.rooms) >= _MOST_ROOMS:
            del quotas.rooms[next(iter(quotas.rooms))]
        left = most - row["used"] - self._added[key]
        quotas.rooms[key] = _Room(
            counted=left,
            left=left,
            valid_until=now + quotas.valid_seconds,
            count_again_at=now + _COUNTING_SHARE * (now - began) if now - began > _SLOW_SECONDS else now,
        )
        return quotas.rooms[key]

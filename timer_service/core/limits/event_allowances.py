"""Who may publish events: the limit `published_events` of the tenants. See docs/decisions/0076.

Before an event is published, its bytes are taken from the allowance of its tenant. A tenant with no bytes left waits:
its rows are released, and the next claims leave it out as a whole. To write a row for each event would cost too much,
so a process takes a part of a tenant's limit from the database and spends it in memory.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from timer_service.core.due.loop import Pass
from timer_service.core.limits.audit import AuditLog
from timer_service.core.limits.event_level import Level, Limit, Taken, is_waiting, take
from timer_service.core.limits.quotas import Usage
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.sql import load_sql

_SQL = load_sql("timer_service.core.limits", "event_allowances.sql")

LIMIT = "published_events"
USAGE = Usage(LIMIT, _SQL["used"])
WAITS = "events of a tenant wait: it has used its limit"
GO_ON = "events of a tenant no longer wait"
_DEFAULT_PERIOD = timedelta(days=7)
"""The time for which the bytes of a limit count if the broker keeps events for ever."""
_GRACE_MS = 5_000
"""How long a tenant that has waited long enough still counts as over its limit. A claim has looked at it by then."""
_LOCKED_MS = 10_000
"""How long a tenant waits if its row is locked. Then PostgreSQL ends the transaction of a machine that is gone."""
_MOST_TENANTS = 50_000
_NO_TENANTS: frozenset[str] = frozenset()


class Size(NamedTuple):
    """The bytes of an event of a tenant."""

    tenant: str
    amount: int


class EventAllowances:
    """How many bytes of events each tenant may still publish, as far as this process knows."""

    def __init__(
        self,
        limits: TenantLimits = DEFAULT_LIMITS,
        *,
        metrics: MetricsPort | None = None,
        audit: AuditLog | None = None,
        keeps_events_for: Callable[[], timedelta | None] = lambda: None,
    ) -> None:
        """`keeps_events_for` returns for how long the broker keeps events; None: for ever."""
        self._limits = limits
        self._metrics = metrics
        self._audit = audit or AuditLog()
        self._keeps_events_for = keeps_events_for
        self.has_limits = any(each.published_events is not None for each in (limits.default, *limits.tenants.values()))
        """Whether a tenant has a limit. If not, nothing is counted."""
        self.taking = asyncio.Lock()
        """Held while bytes are taken for some events, in their order. If several transactions called `admit` at a time,
        each would take a part of the limit."""
        self._left: dict[str, int] = {}
        """What this process has taken and not spent. Negative after an event that was larger than the rest."""
        self._waiting: dict[str, int] = {}
        """The tenants over their limits, and when to look at each again."""
        self._locked: dict[str, int] = {}
        """The tenants of which nothing could be taken, because a row or table was locked, and when to try again."""
        self._asking = Counter[str]()
        """The tenants for which bytes are being taken, and by how many tasks."""

    def waiting(self, now: int) -> Collection[str]:
        """Return the tenants that must not publish at `now`. The other ones may, or no claim has looked at them yet."""
        if not self._waiting and not self._locked:
            return _NO_TENANTS
        waits = (*self._waiting.items(), *self._locked.items())
        return frozenset(tenant for tenant, at in waits if is_waiting(at, now))

    def over(self, now: int) -> Collection[str]:
        """Return the tenants whose events wait, also if a claim is about to look at them again.

        What adds events by itself, such as a schedule, waits too, so that the outbox does not grow.
        """
        if not self._waiting:
            return _NO_TENANTS
        return frozenset(tenant for tenant, at in self._waiting.items() if is_waiting(at, now, _GRACE_MS))

    async def tick(self, now: int) -> Pass:
        """Forget the tenants that have nothing more to publish: no claim has looked at them when their time came."""
        for tenant in self._waiting.keys() - self.over(now):
            self._record(tenant, None)
        return Pass(0)

    def next_look_at(self, now: int) -> int | None:
        """Return when the first of the waiting tenants may go on; None if none waits."""
        waits = (*self._waiting.values(), *self._locked.values())
        return min((at for at in waits if is_waiting(at, now)), default=None)

    def let_wait(self, tenants: Iterable[str], now: int) -> Collection[str]:
        """Let the tenants wait that have a limit, because nothing can be taken of it now. Return these."""
        limited = {tenant for tenant in tenants if self._limit_of(tenant) is not None}
        still = {tenant: at for tenant, at in self._locked.items() if is_waiting(at, now)}
        self._locked = still | dict.fromkeys(limited, now + _LOCKED_MS)
        return limited

    @contextmanager
    def asking(self, tenants: Iterable[str]) -> Iterator[None]:
        """While bytes of tenants are being taken, nothing else is spent of theirs."""
        asking = set(tenants)
        self._asking.update(asking)
        try:
            yield
        finally:
            self._asking.subtract(asking)
            self._asking = +self._asking

    def spend(self, wanted: Mapping[str, int], now: int, *, in_turn: bool = False) -> bool:
        """Take the bytes of events of tenants. Return False, and take nothing, if this process has too few of one.

        `in_turn`: the caller holds `taking`. Otherwise nothing is taken of the tenants that others are `asking` for.
        """
        limited = {tenant: amount for tenant, amount in wanted.items() if self._limit_of(tenant) is not None}
        blocked = self.waiting(now) if in_turn else self.waiting(now) | self._asking.keys()
        if any(tenant in blocked or self._left.get(tenant, 0) < amount for tenant, amount in limited.items()):
            return False
        for tenant, amount in limited.items():
            self._left[tenant] -= amount
        return True

    async def admit(self, tx: Transaction, sizes: Sequence[Size], now: int) -> list[bool]:
        """Return which events may be published, in their order. These are counted if the transaction is committed.

        After the first event of a tenant that may not, no later one of the tenant may.
        """
        if not self.has_limits:
            return [True] * len(sizes)
        limits = self._limits_of(sizes)
        await self._fill(tx, sizes, limits, now)
        admitted = self._spend(sizes, limits)
        spent = _sums(size for size, is_admitted in zip(sizes, admitted, strict=True) if is_admitted)
        tx.on_rollback(partial(self.give_back, spent))
        return admitted

    def give_back(self, amounts: Mapping[str, int]) -> None:
        """Give back the bytes of events of each tenant that were not published."""
        for tenant, amount in amounts.items():
            if tenant in self._left:
                self._left[tenant] += amount

    def _limit_of(self, tenant: str) -> int | None:
        return self._limits.of(tenant).published_events

    def _limits_of(self, sizes: Iterable[Size]) -> Mapping[str, Limit]:
        """Return the limits of the tenants that have one."""
        period_ms = (self._keeps_events_for() or _DEFAULT_PERIOD) // timedelta(milliseconds=1)
        limits = {tenant: self._limit_of(tenant) for tenant in {size.tenant for size in sizes}}
        return {tenant: Limit(most, period_ms) for tenant, most in limits.items() if most is not None}

    async def _fill(self, tx: Transaction, sizes: Iterable[Size], limits: Mapping[str, Limit], now: int) -> None:
        """Take bytes for the tenants whose events need more than this process has."""
        wanted = _sums(sizes)
        lacking = {tenant: wanted[tenant] - self._left.get(tenant, 0) for tenant in sorted(limits)}
        lacking = {tenant: amount for tenant, amount in lacking.items() if amount > 0}
        if not lacking:
            return
        taken = await _take(tx, lacking, limits, now)
        for tenant, each in taken.items():
            self._left[tenant] = self._left.pop(tenant, 0) + each.amount
            self._record(tenant, each.again_at)
        tx.on_rollback(partial(self._return, taken))
        while len(self._left) > _MOST_TENANTS:
            del self._left[next(iter(self._left))]

    def _return(self, taken: Mapping[str, Taken]) -> None:
        """Forget what a transaction has taken that was rolled back."""
        for tenant, each in taken.items():
            if tenant in self._left:
                self._left[tenant] -= each.amount

    def _spend(self, sizes: Iterable[Size], limits: Mapping[str, Limit]) -> list[bool]:
        admitted: list[bool] = []
        refused = set[str]()
        for tenant, amount in sizes:
            if tenant in limits and (tenant in refused or self._left.get(tenant, 0) <= 0):
                refused.add(tenant)
                admitted.append(False)
                continue
            if tenant in limits:
                self._left[tenant] -= amount
            admitted.append(True)
        return admitted

    def _record(self, tenant: str, again_at: int | None) -> None:
        """Record that a tenant waits, or goes on. Each is one line in the audit log."""
        if again_at is None:
            if self._waiting.pop(tenant, None) is not None:
                self._audit.record(GO_ON, tenant)
        else:
            if tenant not in self._waiting:
                self._audit.record(WAITS, tenant, limit=LIMIT, most=self._limit_of(tenant))
            self._waiting[tenant] = again_at
        if self._metrics is not None:
            self._metrics.event_limits_reached(len(self._waiting))


def _sums(sizes: Iterable[Size]) -> Counter[str]:
    sums = Counter[str]()
    for tenant, amount in sizes:
        sums[tenant] += amount
    return sums


async def delete_empty(tx: Transaction, before: int, limit: int) -> int:
    """Delete the rows of tenants that have had nothing used since the instant `before`, up to `limit`."""
    return await tx.execute(_SQL["delete_empty"], {"before": before, "limit": limit})


async def find_locked(tx: Transaction, tenants: Iterable[str]) -> set[str]:
    """Return the tenants whose rows another transaction has locked. Does not wait for these."""
    keys = [{"tenant_id": tenant} for tenant in sorted(tenants)]
    stored = {row["tenant_id"] for row in await tx.fetch_each(_SQL["find"], keys)}
    return stored - {row["tenant_id"] for row in await tx.fetch_each(_SQL["find_free"], keys)}


async def _take(
    tx: Transaction, wanted: Mapping[str, int], limits: Mapping[str, Limit], now: int
) -> Mapping[str, Taken]:
    """Take bytes of tenants from the database, as far as they have them. The rows are locked in one order."""
    keys = [{"tenant_id": tenant} for tenant in wanted]
    await tx.executemany(_SQL["create"], keys)
    rows = await tx.fetch_each(_SQL["lock"], keys)
    before = {row["tenant_id"]: Level(row["used"], row["counted_at"], row["empty_at"]) for row in rows}
    taken = {tenant: take(level, limits[tenant], wanted[tenant], now) for tenant, level in before.items()}
    changed = [
        {"tenant_id": tenant, **each.level._asdict()} for tenant, each in taken.items() if each.level != before[tenant]
    ]
    await tx.executemany(_SQL["save"], changed)
    return taken

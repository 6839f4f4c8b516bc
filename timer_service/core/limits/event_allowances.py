"""Who may publish events: the limit `published_events` of the tenants. See docs/decisions/0076.

Relays count what they have published. A worker charges it to the rows of the tenants, four times a second. A tenant
that has used more than its limit waits: claims leave it out as a whole. What it has used comes back evenly, in the time
for which the broker keeps events.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from timer_service.core.due.loop import Pass
from timer_service.core.limits.audit import AuditLog
from timer_service.core.limits.quotas import Usage
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.ports.database import Database, Row, Transaction
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.sql import load_sql
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.address import Kind
from timer_service.core.values.message import Message

_SQL = load_sql("timer_service.core.limits", "event_allowances.sql")

LIMIT = "published_events"
USAGE = Usage(LIMIT, _SQL["used"])
WAITS = "events of a tenant wait: it has used its limit"
GO_ON = "events of a tenant no longer wait"
CHARGE_MS = 250
_DEFAULT_PERIOD = timedelta(days=7)
"""The time in which a limit comes back if the broker keeps events for ever."""
_EVENT_BYTES = 600
"""What an event has in the stream in addition to its body, its id, its topic and the values of its headers, at most."""
_LOOK_MS = 5_000
"""How often to read who waits, because of what other instances have published."""
_GRACE_MS = 2 * _LOOK_MS
"""How long a tenant that has waited long enough still counts as over its limit. Some of its events go out first."""
_AHEAD_MS = 10 * 60_000
"""A level from further in the future was counted by a clock that has been set back since. It says nothing."""
_LONGEST_USE_MS = 10**15
"""However low a limit has become, each instant fits into the database."""
_EVENT = Kind.EVENT  # looked up once, because Python 3.11 finds a member of an enum slowly


class Level(NamedTuple):
    """How much a tenant has used. It falls evenly, from `used` at `counted_at` to 0 at `empty_at`."""

    used: int = 0
    counted_at: int = 0
    empty_at: int = 0

    def used_at(self, now: int) -> int:
        """Return how much is used at `now`."""
        if now >= self.empty_at or self.counted_at > now + _AHEAD_MS:
            return 0
        left_ms = self.empty_at - max(now, self.counted_at)
        return _ceil_divide(self.used * left_ms, self.empty_at - self.counted_at)

    def charged(self, amount: int, most: int, period_ms: int, now: int) -> "Level":
        """Return the level after some more bytes were published. `most` bytes come back in `period_ms`."""
        used = self.used_at(now) + amount
        back_in_ms = _ceil_divide(used * period_ms, max(most, 1))
        return Level(used, now, now + min(back_in_ms, _LONGEST_USE_MS))

    def again_at(self, most: int, now: int) -> int | None:
        """Return when no more than `most` will be used; None if that is so at `now`."""
        if self.used_at(now) <= most:
            return None
        last_ms = most * (self.empty_at - self.counted_at) // self.used  # how long `most` takes to fall to 0
        return self.empty_at - last_ms


class EventAllowances:
    """What was published and is not charged yet, and the tenants that wait, as far as this process knows."""

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
        self._has_limits = any(each.published_events is not None for each in (limits.default, *limits.tenants.values()))
        """Whether a tenant has a limit. If not, nothing is counted, written or read."""
        self._uncharged = Counter[str]()
        """The bytes that each tenant has published and that no transaction has charged."""
        self._waiting: dict[str, int] = {}
        """The tenants over their limits, and when each may go on."""
        self._looked_at: int | None = None

    def waiting(self, now: int) -> Collection[str]:
        """Return the tenants that must not publish at `now`."""
        return {tenant for tenant, at in self._waiting.items() if now < at}

    def over(self, now: int) -> Collection[str]:
        """Return the tenants whose events wait, also if some are about to go out.

        What adds events by itself, such as a schedule, waits too, so that the outbox does not grow.
        """
        return {tenant for tenant, at in self._waiting.items() if now < at + _GRACE_MS}

    def next_at(self, now: int) -> int | None:
        """Return when the first of the waiting tenants may go on; None if none waits."""
        return min((at for at in self._waiting.values() if now < at), default=None)

    def count(self, published: Iterable[Message]) -> None:
        """Count the events among messages that the broker has stored. `update` charges them."""
        if not self._has_limits:
            return
        sizes: dict[str, int] = {}
        for (kind, tenant, _, topic), message_id, body, headers in published:
            if kind is _EVENT:
                size = _EVENT_BYTES + len(body) + len(message_id.encode()) + len(topic or "")
                if headers:
                    size += sum(map(len, headers.values()))
                sizes[tenant] = sizes.get(tenant, 0) + size
        self._uncharged.update(sizes)

    async def update(self, database: Database, now: int) -> int | None:
        """Charge what was counted, and read who waits. Return when to do so again; None if no tenant has a limit."""
        if not self._has_limits:
            return None
        amounts, self._uncharged = self._uncharged, Counter()  # what is published meanwhile is counted apart
        limits = {tenant: most for tenant in sorted(amounts) if (most := self._limit_of(tenant)) is not None}
        if limits:
            try:
                await in_transaction(database, partial(self._charge, amounts=amounts, limits=limits, now=now))
            except BaseException:
                self._uncharged += amounts
                raise
            self._looked_at = None
        if self._looked_at is None or abs(now - self._looked_at) >= _LOOK_MS:
            rows = await database.reader.fetch(_SQL["over"], {"since": now + self._period_ms})
            self._looked_at = now
            self._record({row["tenant_id"]: _level(row) for row in rows}, now)
        return now + CHARGE_MS

    async def _charge(self, tx: Transaction, amounts: Mapping[str, int], limits: Mapping[str, int], now: int) -> None:
        """Add the published amounts to what the tenants with limits have used."""
        keys = [{"tenant_id": tenant} for tenant in limits]
        await tx.executemany(_SQL["create"], keys)
        levels = {row["tenant_id"]: _level(row) for row in await tx.fetch_each(_SQL["lock"], keys)}
        charged = {
            tenant: levels.get(tenant, Level()).charged(amounts[tenant], most, self._period_ms, now)
            for tenant, most in limits.items()
        }
        rows = [{"tenant_id": tenant, **each._asdict()} for tenant, each in charged.items()]
        await tx.executemany(_SQL["save"], rows)

    def _record(self, levels: Mapping[str, Level], now: int) -> None:
        """Record which tenants wait, and forget those that do not any more. Each is one line in the audit log."""
        # A tenant that may go on by now is kept for some time, so that some of its events are published first.
        waiting = {tenant: at for tenant, at in self._waiting.items() if at <= now < at + _GRACE_MS}
        for tenant, level in levels.items():
            most = self._limit_of(tenant)
            if most is not None and (at := level.again_at(most, now)) is not None:
                waiting[tenant] = at
                if tenant not in self._waiting:
                    self._audit.record(WAITS, tenant, limit=LIMIT, most=most)
        for tenant in self._waiting.keys() - waiting.keys():
            self._audit.record(GO_ON, tenant)
        self._waiting = waiting
        if self._metrics is not None:
            self._metrics.event_limits_reached(len(waiting))

    def _limit_of(self, tenant: str) -> int | None:
        return self._limits.of(tenant).published_events

    @property
    def _period_ms(self) -> int:
        return (self._keeps_events_for() or _DEFAULT_PERIOD) // timedelta(milliseconds=1)


@dataclass
class EventCharging:
    """The worker that charges what was published."""

    database: Database
    allowances: EventAllowances

    async def tick(self, now: int) -> Pass:
        """Charge what was published since the last pass."""
        return Pass(0, await self.allowances.update(self.database, now))


async def delete_empty(tx: Transaction, before: int, limit: int) -> int:
    """Delete the rows of tenants that have had nothing used since the instant `before`, up to `limit`."""
    return await tx.execute(_SQL["delete_empty"], {"before": before, "limit": limit})


def _level(row: Row) -> Level:
    return Level(row["used"], row["counted_at"], row["empty_at"])


def _ceil_divide(dividend: int, divisor: int) -> int:
    """Return a quotient, rounded up."""
    return -(-dividend // divisor)

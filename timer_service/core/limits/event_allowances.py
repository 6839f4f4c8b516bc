"""Who may publish events: the limit `published_events` of the tenants. See docs/decisions/0076.

The transaction that settles published events charges their bytes to the row of their tenant. A tenant that has used
more than its limit waits: claims leave it out as a whole. So a tenant has at most what was claimed before its bytes
were counted beyond its limit, and that has to come back before it goes on.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from timer_service.core.limits.audit import AuditLog
from timer_service.core.limits.event_level import Level, Limit
from timer_service.core.limits.quotas import Usage
from timer_service.core.limits.tenant_limits import DEFAULT_LIMITS, TenantLimits
from timer_service.core.ports.database import Reader, Row, Transaction
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.message import Kind, Message

_SQL = load_sql("timer_service.core.limits", "event_allowances.sql")

LIMIT = "published_events"
USAGE = Usage(LIMIT, _SQL["used"])
WAITS = "events of a tenant wait: it has used its limit"
GO_ON = "events of a tenant no longer wait"
_DEFAULT_PERIOD = timedelta(days=7)
"""The time for which the bytes of a limit count if the broker keeps events for ever."""
_EVENT_BYTES = 600
"""What an event has in the stream in addition to its body, its id and the values of its headers, at most."""
_LOOK_MS = 5_000
"""How often to read who waits, because of what other instances have published."""
_GRACE_MS = 2 * _LOOK_MS
"""How long a tenant that has waited long enough still counts as over its limit. Some of its events go out first."""
_LONGEST_WAIT_MS = 10 * 60_000
"""A longer wait is divided. An instant that is later than that was found before the clock was set back."""
_NO_TENANTS: frozenset[str] = frozenset()
_EVENT = Kind.EVENT  # looked up once, because Python 3.11 finds a member of an enum slowly


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
        """Return the tenants that must not publish at `now`, as far as this process knows."""
        if not self._waiting:
            return _NO_TENANTS
        return frozenset(tenant for tenant, at in self._waiting.items() if now < at <= now + _LONGEST_WAIT_MS)

    def over(self, now: int) -> Collection[str]:
        """Return the tenants whose events wait, also if some are about to go out.

        What adds events by itself, such as a schedule, waits too, so that the outbox does not grow.
        """
        if not self._waiting:
            return _NO_TENANTS
        return frozenset(tenant for tenant, at in self._waiting.items() if _is_over(at, now))

    def next_look_at(self, now: int) -> int | None:
        """Return when the first of the waiting tenants may go on; None if none waits."""
        return min((self._waiting[tenant] for tenant in self.waiting(now)), default=None)

    async def look(self, reader: Reader, now: int) -> None:
        """Read which tenants are over their limits, unless that was done a short time ago."""
        if not self._has_limits or (self._looked_at is not None and abs(now - self._looked_at) < _LOOK_MS):
            return
        rows = await reader.fetch(_SQL["over"], {"since": now + self._period_ms})
        self._looked_at = now
        self._record({row["tenant_id"]: _level(row) for row in rows}, now)

    def count(self, published: Iterable[Message]) -> None:
        """Count the events among messages that the broker has stored. The next settlement charges them."""
        if self._has_limits:
            for tenant, amount in _bytes_of_tenants(published).items():
                if self._limit_of(tenant) is not None:
                    self._uncharged[tenant] += amount

    @contextmanager
    def charging(self, now: int) -> Iterator[Callable[[Transaction], Awaitable[None]]]:
        """Give what charges the counted bytes in a transaction, as its last statements.

        If the transaction is not committed, they stay counted. So do the bytes of a tenant whose row another session
        has locked: no settlement waits for that.
        """
        amounts, self._uncharged = self._uncharged, Counter()
        charged: dict[str, Level] = {}
        committed: dict[str, Level] = {}

        async def charge(tx: Transaction) -> None:
            charged.clear()
            if amounts:
                charged.update(await _charge(tx, amounts, self._limits_of(amounts), now))
                tx.on_commit(lambda: committed.update(charged))

        try:
            yield charge
        finally:
            self._uncharged.update({tenant: amount for tenant, amount in amounts.items() if tenant not in committed})
            if committed:
                self._record(committed, now)

    def _record(self, levels: Mapping[str, Level], now: int) -> None:
        """Record which tenants wait, and forget those that do not any more. Each is one line in the audit log."""
        for tenant, limit in self._limits_of(levels).items():
            at = levels[tenant].again_at(limit, now)
            if at is None:
                continue
            if tenant not in self._waiting:
                self._audit.record(WAITS, tenant, limit=LIMIT, most=limit.most)
            self._waiting[tenant] = min(at, now + _LONGEST_WAIT_MS)
        for tenant in [tenant for tenant, at in self._waiting.items() if not _is_over(at, now)]:
            del self._waiting[tenant]
            self._audit.record(GO_ON, tenant)
        if self._metrics is not None:
            self._metrics.event_limits_reached(len(self._waiting))

    def _limit_of(self, tenant: str) -> int | None:
        return self._limits.of(tenant).published_events

    def _limits_of(self, tenants: Iterable[str]) -> Mapping[str, Limit]:
        """Return the limits of the tenants that have one, in the order in which their rows are locked."""
        period_ms = self._period_ms
        limits = {tenant: self._limit_of(tenant) for tenant in sorted(tenants)}
        return {tenant: Limit(most, period_ms) for tenant, most in limits.items() if most is not None}

    @property
    def _period_ms(self) -> int:
        return (self._keeps_events_for() or _DEFAULT_PERIOD) // timedelta(milliseconds=1)


async def delete_empty(tx: Transaction, before: int, limit: int) -> int:
    """Delete the rows of tenants that have had nothing used since the instant `before`, up to `limit`."""
    return await tx.execute(_SQL["delete_empty"], {"before": before, "limit": limit})


async def _charge(
    tx: Transaction, amounts: Mapping[str, int], limits: Mapping[str, Limit], now: int
) -> Mapping[str, Level]:
    """Add bytes to the rows that no other transaction has locked. Return the levels after that."""
    found = await _lock(tx, limits)
    if missing := [tenant for tenant in limits if tenant not in found]:
        await tx.executemany(_SQL["create"], [{"tenant_id": tenant} for tenant in missing])
        found |= await _lock(tx, missing)
    levels = {tenant: level.charged(amounts[tenant], limits[tenant], now) for tenant, level in found.items()}
    await tx.executemany(_SQL["save"], [{"tenant_id": tenant, **each._asdict()} for tenant, each in levels.items()])
    return levels


async def _lock(tx: Transaction, tenants: Iterable[str]) -> dict[str, Level]:
    rows = await tx.fetch_each(_SQL["lock"], [{"tenant_id": tenant} for tenant in tenants])
    return {row["tenant_id"]: _level(row) for row in rows}


def _level(row: Row) -> Level:
    """Return the level that a row has. One that is damaged is none: the next charge writes it again."""
    level = Level(row["used"], row["counted_at"], row["empty_at"])
    return level if all(isinstance(value, int) for value in level) else Level()


def _is_over(again_at: int, now: int) -> bool:
    return now - _GRACE_MS < again_at <= now + _LONGEST_WAIT_MS


def _bytes_of_tenants(messages: Iterable[Message]) -> Mapping[str, int]:
    """Return the bytes of the events of each tenant. Written for speed: this takes 0.2 µs of the 20 µs of an event."""
    sizes: dict[str, int] = {}
    for (kind, tenant, _), message_id, body, headers in messages:
        if kind is _EVENT:
            size = _EVENT_BYTES + len(body) + len(message_id.encode())
            if headers:
                size += sum(map(len, headers.values()))
            sizes[tenant] = sizes.get(tenant, 0) + size
    return sizes

"""How fast the commands of each tenant are handled."""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from timer_service.core.broker import Delivery
from timer_service.core.limits import DEFAULT_LIMITS, TenantLimits

_BURST_SECONDS = 1.0
"""A tenant that was quiet may use the commands of one second at once."""
_MOST_TENANTS = 10_000
_LONGEST_WAIT_SECONDS = 0.05


class Pace:
    """Admits as many commands of each tenant as its `commands_per_second` allows."""

    def __init__(self, limits: TenantLimits = DEFAULT_LIMITS, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._paid_until: dict[str, float] = {}
        """When the tenant would have sent its commands if it had kept to its rate."""

    def divide(self, batch: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Return the commands of a batch that may be handled now, and those that must wait."""
        now = self._monotonic()
        if len(self._paid_until) > _MOST_TENANTS:
            self._paid_until = {tenant: until for tenant, until in self._paid_until.items() if until > now}
        sizes = Counter(delivery.address.tenant for delivery in batch)
        paid = {tenant: self._pay(tenant, size, now) for tenant, size in sizes.items()}
        if all(until <= now + _BURST_SECONDS for until in paid.values()):  # the usual case, so it must be fast
            self._paid_until |= paid
            return list(batch), []
        admitted: list[Delivery] = []
        late: list[Delivery] = []
        for delivery in batch:
            tenant = delivery.address.tenant
            if self._paid_until.get(tenant, now) > now + _BURST_SECONDS:
                late.append(delivery)
            else:
                self._paid_until[tenant] = self._pay(tenant, 1, now)
                admitted.append(delivery)
        return admitted, late

    def _pay(self, tenant: str, count: int, now: float) -> float:
        """Return until when a tenant has paid if `count` more of its commands are handled."""
        return max(self._paid_until.get(tenant, now), now) + count / self._limits.of(tenant).commands_per_second

    def wait_seconds(self, late: Sequence[Delivery]) -> float:
        """Return how long no command of `late` may be handled, but at most 50 ms: other tenants may send commands."""
        tenants = {delivery.address.tenant for delivery in late}
        first = min((self._paid_until.get(tenant, 0.0) for tenant in tenants), default=0.0)
        return min(max(first - _BURST_SECONDS - self._monotonic(), 0.0), _LONGEST_WAIT_SECONDS)

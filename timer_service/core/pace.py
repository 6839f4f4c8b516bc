"""How fast the commands of each tenant are handled."""

import time
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
        admitted: list[Delivery] = []
        late: list[Delivery] = []
        for delivery in batch:
            tenant = delivery.address.tenant
            paid_until = max(self._paid_until.get(tenant, now), now)
            if paid_until > now + _BURST_SECONDS:
                late.append(delivery)
            else:
                self._paid_until[tenant] = paid_until + 1 / self._limits.of(tenant).commands_per_second
                admitted.append(delivery)
        return admitted, late

    def wait_seconds(self, late: Sequence[Delivery]) -> float:
        """Return how long no command of `late` may be handled, but at most 50 ms: other tenants may send commands."""
        tenants = {delivery.address.tenant for delivery in late}
        first = min((self._paid_until.get(tenant, 0.0) for tenant in tenants), default=0.0)
        return min(max(first - _BURST_SECONDS - self._monotonic(), 0.0), _LONGEST_WAIT_SECONDS)

"""Builds the parts of an instance as `timer_service.app` does, with the database, broker and clock of a test."""

import random
from collections.abc import Callable
from datetime import timedelta

from timer_service.core.intake.route import Lane, offer_nothing
from timer_service.core.limits.event_allowances import EventAllowances
from timer_service.core.limits.quotas import Quotas
from timer_service.core.ports.broker import Broker
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.service.slice import Parts

BATCH = 1000
MAX_ATTEMPTS = 3
VISIBILITY_TIMEOUT = timedelta(seconds=30)


def make_parts(
    database: Database,
    broker: Broker,
    clock: Clock,
    metrics: MetricsPort,
    *,
    batch_size: int = BATCH,
    max_attempts: int = MAX_ATTEMPTS,
    wake: Callable[[str, int], None] = lambda _loop, _at: None,
    offer: Callable[[Lane, int], None] = offer_nothing,
    quotas: Quotas | None = None,
    allowances: EventAllowances | None = None,
) -> Parts:
    """Return the parts of an instance. The jitter of retries is the same in every test."""
    return Parts(
        database=database,
        broker=broker,
        clock=clock,
        metrics=metrics,
        batch_size=batch_size,
        max_attempts=max_attempts,
        visibility_timeout=VISIBILITY_TIMEOUT,
        wake=wake,
        offer=offer,
        quotas=quotas or Quotas(),
        allowances=allowances or EventAllowances(),
        rng=random.Random(0),
    )

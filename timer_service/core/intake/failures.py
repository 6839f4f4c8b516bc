"""What happens to commands whose transaction failed: they wait, are tried again, or are rejected."""

import logging
from collections.abc import Collection, Hashable, Sequence
from datetime import timedelta
from typing import NamedTuple

from timer_service.core.due.blame import Blame, Evidence
from timer_service.core.intake.attempts import Attempts
from timer_service.core.intake.decoder import reject
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.rejector import redelivery_delay
from timer_service.core.ports.broker import Subscription
from timer_service.core.ports.health import Health, OutageLog, RecentFailure
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import Code, Rejection

log = logging.getLogger(__name__)

_UNHEALTHY_SECONDS = 5
_MAX_ATTEMPTS = 10
_MAX_ATTEMPTS_IF_ALL_FAIL = 100
"""With growing delays, an operator has more than an hour to repair a fault that no error names."""


class Failed(NamedTuple):
    """A command that failed alone in its transaction, and its handler."""

    delivery: Delivery
    handler: Hashable
    error: Exception


class Failures:
    """Decides about the commands of failed transactions."""

    def __init__(self, attempts: Attempts, outages: OutageLog) -> None:
        self._attempts = attempts
        self._outages = outages
        self._evidence = Evidence()
        self._failure = RecentFailure(_UNHEALTHY_SECONDS)

    @property
    def health(self) -> Health:
        """Down with the reason while commands cannot be handled for a reason outside the commands."""
        return self._failure.health

    async def wait(
        self,
        subscription: Subscription,
        deliveries: Sequence[Delivery],
        cause: Blame,
        error: Exception,
        delay: timedelta | None = None,
    ) -> None:
        """Retry commands that are not at fault after a delay, by default a second. Count nothing against them."""
        if cause in {Blame.OUTAGE, Blame.SETUP}:
            self._outages.record_failure(str(error), part="commands")
        if cause is Blame.SETUP:
            self._failure.record(f"commands cannot be handled: {error}")
        if cause is Blame.BLOCKED:
            self._evidence.record((), ((Blame.BLOCKED, delivery.position) for delivery in deliveries))
            if self._evidence.is_environment(Blame.BLOCKED):
                self._failure.record(f"every command waits for a lock or a slow statement: {error}")
        log.debug("commands wait", extra={"count": len(deliveries), "cause": cause.name, "reason": str(error)})
        for delivery in deliveries:
            self._attempts.excuse(delivery)
        await subscription.retry(deliveries, redelivery_delay(1) if delay is None else delay)

    async def judge(
        self, subscription: Subscription, failed: Sequence[Failed], worked: Collection[Hashable]
    ) -> list[Rejected]:
        """Retry commands that failed alone, and return those that failed too often.

        `worked` has the handlers that handled a command of the same batch. If a handler handles no command any more,
        the fault is probably not in the commands, so they are tried much longer.
        """
        self._evidence.record(
            [*worked, Blame.BLOCKED] if worked else (), ((each.handler, each.delivery.position) for each in failed)
        )
        rejected: list[Rejected] = []
        for delivery, handler, error in failed:
            all_fail = self._evidence.is_environment(handler)
            if all_fail:
                self._outages.record_failure(f"every command fails: {error_text(error)}", part="commands")
                self._failure.record(f"every command fails: {error_text(error)}")
            attempts = self._attempts.fail(delivery)
            if attempts < (_MAX_ATTEMPTS_IF_ALL_FAIL if all_fail else _MAX_ATTEMPTS):
                await subscription.retry([delivery], redelivery_delay(attempts))
            else:
                self._evidence.forget(handler, delivery.position)
                rejected.append(
                    reject(delivery, Rejection(Code.INTERNAL, f"failed {attempts} times: {error_text(error)}"))
                )
        return rejected

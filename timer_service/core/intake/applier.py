"""Applies decoded commands in transactions, replies, and acknowledges their deliveries."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from timer_service.core.due.blame import Blame, blame
from timer_service.core.intake.attempts import Attempts
from timer_service.core.intake.blocked import Blocked
from timer_service.core.intake.command_streams import advance
from timer_service.core.intake.failures import Failed, Failures
from timer_service.core.intake.replies import inbox_of, send_replies
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.limits.audit import OPERATOR_ACTION, REFUSED, AuditLog
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.ports.broker import Broker, Subscription
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.health import OutageLog
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import ChangedStreamError
from timer_service.core.values.message import Command

log = logging.getLogger(__name__)


class Accepted(NamedTuple):
    """A decoded delivery and its route."""

    delivery: Delivery
    command: Command
    route: Route


Applied = Sequence[tuple[Accepted, CommandResult]]
"""The applied commands of a transaction and their results."""


@dataclass(slots=True)
class Progress:
    """What has happened to the commands of one batch so far."""

    subscription: Subscription
    worked: set[Route] = field(default_factory=set)
    """The routes that have handled a command."""
    served: set[str] = field(default_factory=set)
    """The tenants with a handled command."""
    failed: list[Failed] = field(default_factory=list)
    """The commands that failed alone by an error of a command."""
    blocked: list[Delivery] = field(default_factory=list)
    """The commands of blocked transactions. They are divided in the next batch."""
    must_pause: bool = False
    outage: tuple[Blame, Exception] | None = None
    """Why no command of the batch can be handled any more."""


class Applier:
    """Applies commands. If a transaction fails, `blame` decides who is at fault.

    Commands of a transaction with an error of a command are applied in halves, so that a bug affects only one command.
    """

    def __init__(
        self,
        *,
        database: Database,
        broker: Broker,
        routes: Sequence[Route],
        clock: Clock,
        metrics: MetricsPort,
        attempts: Attempts,
        audit: AuditLog,
        failures: Failures,
        blocked: Blocked,
        outages: OutageLog,
        reply_prefix: str,
    ) -> None:
        self._database = database
        self._broker = broker
        self._routes = routes  # in the same order for every batch, so that instances lock rows in the same order
        self._clock = clock
        self._metrics = metrics
        self._attempts = attempts
        self._audit = audit
        self._failures = failures
        self._blocked = blocked
        self._outages = outages
        self._reply_prefix = reply_prefix

    async def apply(self, progress: Progress, accepted: Sequence[Accepted]) -> list[Accepted]:
        """Commit and acknowledge commands. Return those that their handlers deferred to a later transaction."""
        try:
            results = await self._commit(accepted)
        except ChangedStreamError:
            progress.subscription.stream_changed()
            return []
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            return await self._divide(progress, accepted, error)
        self._outages.record_success(part="commands")
        pairs = list(zip(accepted, results, strict=True))
        applied = [(each, result) for each, result in pairs if result is not None]
        progress.worked.update({each.route for each, _ in applied})
        progress.served.update({each.delivery.address.tenant for each, _ in applied})
        self._blocked.record_handled(each.delivery for each, _ in applied)
        await self._finish(progress.subscription, applied)
        return [each for each, result in pairs if result is None] if len(applied) < len(pairs) else []

    async def wait(self, progress: Progress, deliveries: Sequence[Delivery], cause: Blame, error: Exception) -> None:
        """Let commands wait for the environment. Commands of a transaction that was blocked are divided first."""
        if cause is Blame.BLOCKED:
            await self._wait_if_alone(progress, deliveries, error)
            return
        progress.must_pause = True
        if cause in {Blame.OUTAGE, Blame.BUSY}:
            progress.outage = cause, error
        await self._failures.wait(progress.subscription, deliveries, cause, error)

    async def _wait_if_alone(self, progress: Progress, deliveries: Sequence[Delivery], error: Exception) -> None:
        """Let a command wait that was blocked alone. Divide the commands of a larger transaction in the next batch."""
        about = {"count": len(deliveries), "reason": str(error)}
        if (delay := self._blocked.record_blocked(deliveries)) is None:
            log.warning("transaction blocked; dividing it", extra=about)
            progress.blocked += deliveries
            progress.served.update(delivery.address.tenant for delivery in deliveries)
            return
        (delivery,) = deliveries
        about |= {"tenant": delivery.address.tenant, "sequence": delivery.position.sequence}
        log.warning(
            "command blocked; retrying it later",
            extra={**about, "message_id": delivery.message_id, "seconds": delay.total_seconds()},
        )
        await self._failures.wait(progress.subscription, deliveries, Blame.BLOCKED, error, delay)

    async def _commit(self, accepted: Sequence[Accepted]) -> list[CommandResult | None]:
        now = self._clock.now()

        async def handle(tx: Transaction) -> list[CommandResult | None]:
            results = await self._run_handlers(tx, accepted, now)
            applied = [(each, result) for each, result in zip(accepted, results, strict=True) if result is not None]
            if not applied:
                raise AssertionError("every command was deferred")  # it would be deferred for ever
            await advance(tx, [each.delivery for each, _ in applied])
            await _hand_over(tx, applied, now)
            return results

        return await in_transaction(self._database, handle, accepting=True)

    async def _run_handlers(
        self, tx: Transaction, accepted: Sequence[Accepted], now: int
    ) -> list[CommandResult | None]:
        first = accepted[0].route
        if all(each.route is first for each in accepted):
            return list(await first.handle(tx, [each.command for each in accepted], now))
        results: dict[int, CommandResult | None] = {}
        for route in self._routes:
            indexes = [index for index, each in enumerate(accepted) if each.route is route]
            commands = [accepted[index].command for index in indexes]
            if commands:
                results.update(zip(indexes, await route.handle(tx, commands, now), strict=True))
        return [results[index] for index in range(len(accepted))]

    async def _divide(self, progress: Progress, accepted: Sequence[Accepted], error: Exception) -> list[Accepted]:
        """Apply the commands of a failed transaction in smaller ones if that can help."""
        cause = blame(error)
        smaller = _divide(accepted, cause)
        if len(smaller) > 1:
            log.warning("batch failed; handling it in parts", exc_info=error, extra={"count": len(accepted)})
            return [deferred for part in smaller for deferred in await self.apply(progress, part)]
        if cause is Blame.COMMAND:
            command = accepted[0].command
            about = {"tenant": command.tenant, "command_id": command.id, "type": command.payload.type}
            log.error("command failed", exc_info=error, extra=about)
            progress.failed.append(Failed(accepted[0].delivery, accepted[0].route, error))
        else:
            await self.wait(progress, [each.delivery for each in accepted], cause, error)
        return []

    async def _finish(self, subscription: Subscription, applied: Applied) -> None:
        """Do the work after the commit: count outcomes, wake loops, send replies, acknowledge deliveries."""
        replies: list[tuple[str, str, CommandResult]] = []
        outcomes = Counter((command.payload.type, str(result.name)) for (_, command, _), result in applied)
        for (command_type, outcome), count in outcomes.items():
            self._metrics.command_handled(command_type, outcome, count)
        for (delivery, command, _), result in applied:
            if result.name == OVER_QUOTA:
                self._record(REFUSED, command, result)
            if command.payload.is_operator_action:
                self._record(OPERATOR_ACTION, command, result)
            self._attempts.forget(delivery)
            if command.reply_to and (to := inbox_of(delivery, self._reply_prefix)):
                replies.append((to, command.id, result))
        await _wake(applied)
        await send_replies(self._broker, replies)
        await subscription.acknowledge([each.delivery for each, _ in applied])

    def _record(self, line: str, command: Command, result: CommandResult) -> None:
        about = {"command_id": command.id, "type": command.payload.type, "outcome": str(result.name)}
        self._audit.record(line, command.tenant, **about, sequence=command.position.sequence)


def _divide(accepted: Sequence[Accepted], cause: Blame) -> list[Sequence[Accepted]]:
    """Return the commands in groups that may succeed on their own; in one group if no smaller group would."""
    if cause is Blame.SETUP:
        routes = dict.fromkeys(each.route for each in accepted)
        return [[each for each in accepted if each.route is route] for route in routes]
    if cause in {Blame.COMMAND, Blame.CONFLICT} and (half := len(accepted) // 2) > 0:
        return [accepted[:half], accepted[half:]]
    return [accepted]


async def _hand_over(tx: Transaction, applied: Applied, now: int) -> None:
    """Claim the rows that are available at once for workers of this process."""
    woken = (accepted.route for accepted, result in applied if result.wake_at is not None and result.wake_at <= now)
    for handover in dict.fromkeys(handover for route in dict.fromkeys(woken) for handover in route.handovers):
        await handover.claim(tx, now)


async def _wake(applied: Applied) -> None:
    """Wake the loops of each route for the earliest row that it wrote, and offer the rows of lanes to workers."""
    wakes: dict[tuple[Callable[[int, str | None], Awaitable[None]], str | None], int] = {}
    for accepted, result in applied:
        if result.wake_at is None:
            continue
        if result.lane is not None:
            accepted.route.offer(result.lane, result.wake_at)
        if result.lane is None or result.loop is not None:
            waking = accepted.route.wake, result.loop
            wakes[waking] = min(result.wake_at, wakes.get(waking, result.wake_at))
    for (wake, loop), at in wakes.items():
        await wake(at, loop)

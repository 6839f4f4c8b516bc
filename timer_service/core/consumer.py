"""The consumer: decodes deliveries, applies the commands in transactions, replies, and settles the deliveries."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from pydantic_core import to_json

from timer_service.core.attempts import Attempts
from timer_service.core.batch_size import BatchSize
from timer_service.core.blame import Blame, blame
from timer_service.core.broker import Broker, Delivery, Reply, Subscription
from timer_service.core.budget import DEFAULT_BUDGET, Budget
from timer_service.core.clock import Clock
from timer_service.core.command_streams import advance
from timer_service.core.database import Database, Transaction
from timer_service.core.decoder import decode, parts
from timer_service.core.errors import ChangedStreamError, Code, Rejection
from timer_service.core.failures import Failed, Failures
from timer_service.core.health import Health, OutageLog, worst
from timer_service.core.message import Command
from timer_service.core.metrics_port import MetricsPort
from timer_service.core.rejection import Rejected
from timer_service.core.rejector import Rejector
from timer_service.core.replies import inbox_of
from timer_service.core.route import CommandResult, Route
from timer_service.core.suspects import MOST_DEATHS, Suspects
from timer_service.core.transactions import in_transaction

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1
_SLOW_BATCH_SECONDS = 10
_LONGEST_BATCH_SECONDS = 60
_SUSPICIOUS = 6
"""From this delivery on, a command is handled alone and last. It may be what ended the process."""


class _Accepted(NamedTuple):
    """A decoded delivery and its route."""

    delivery: Delivery
    command: Command
    route: Route


class Consumer:
    """The handler of one subscription's commands.

    It handles a batch in parts of limited size, each in one transaction. If a transaction fails, `blame` decides who
    is at fault. A part with an error of a command is handled in halves, so that a bug affects only one command.
    """

    def __init__(
        self,
        *,
        database: Database,
        broker: Broker,
        routes: Sequence[Route],
        clock: Clock,
        metrics: MetricsPort,
        batch_size: int,
        reply_prefix: str,
        outages: OutageLog | None = None,
        budget: Budget = DEFAULT_BUDGET,
    ) -> None:
        self._database = database
        self._broker = broker
        self._routes_in_order = routes  # the same for every batch, so that instances lock rows in the same order
        self._routes = {payload: route for route in routes for payload in route.payloads}
        self._payloads = {payload.type: payload for payload in self._routes}
        self._clock = clock
        self._metrics = metrics
        self._batch_size = BatchSize(batch_size)
        self._batch_bytes = budget.batch
        self._reply_prefix = reply_prefix
        self._outages = outages or OutageLog()
        self._attempts = Attempts()
        self._failures = Failures(self._attempts, self._outages)
        self._suspects = Suspects(database)
        self._batch_began: float | None = None
        self._worked: set[Route] = set()
        self._must_pause = False
        self._outage: tuple[Blame, Exception] | None = None
        self._rejector = Rejector(
            broker=broker,
            clock=clock,
            metrics=metrics,
            attempts=self._attempts,
            command_types=self._payloads,
            reply_prefix=reply_prefix,
        )

    @property
    def stalled(self) -> bool:
        """Whether the consumer hangs: it has been handling the same batch for more than a minute."""
        began = self._batch_began
        return began is not None and time.monotonic() - began > _LONGEST_BATCH_SECONDS

    @property
    def health(self) -> Health:
        """Down with the reason while commands cannot be handled, or dead letters cannot be stored."""
        if (began := self._batch_began) is not None and (seconds := time.monotonic() - began) > _SLOW_BATCH_SECONDS:
            return Health.down(f"one batch of commands has been handled for {seconds:.0f} s")
        return worst(self._failures.health, self._rejector.health)

    async def run(self, subscription: Subscription) -> None:
        """Handle batches until the subscription is closed."""
        while batch := await subscription.next_batch(self._batch_size.limit):
            began = time.monotonic()
            try:
                await self.handle(subscription, batch)
            except Exception:
                log.exception("batch failed; its unsettled commands are delivered again", extra={"count": len(batch)})
            self._batch_size.record(len(batch), time.monotonic() - began)
            if self._must_pause:  # else every command would be redelivered in a circle
                await asyncio.sleep(_PAUSE_SECONDS)

    async def handle(self, subscription: Subscription, batch: Sequence[Delivery]) -> None:
        """Handle one batch and settle every delivery in it."""
        self._batch_began = time.monotonic()
        self._worked = set()
        self._must_pause = False
        self._outage = None
        try:
            await self._handle_parts(subscription, batch)
        finally:
            self._batch_began = None

    async def _handle_parts(self, subscription: Subscription, batch: Sequence[Delivery]) -> None:
        others = [delivery for delivery in batch if self._attempts.of(delivery) < _SUSPICIOUS]
        suspects = [delivery for delivery in batch if self._attempts.of(delivery) >= _SUSPICIOUS]
        random.shuffle(suspects)  # they crashed together, so their attempts do not tell which of them did it
        failed: list[Failed] = []
        waiting = list(parts(others, self._batch_bytes))
        while waiting and self._outage is None:
            failed += await self._handle_part(subscription, waiting.pop(0))
        while suspects and self._outage is None:
            failed += await self._handle_suspect(subscription, suspects.pop())
        if self._outage is not None and (left := [*suspects, *(each for part in waiting for each in part)]):
            await self._failures.wait(
                subscription, left, *self._outage
            )  # else each would wait for the database in vain
        if rejected := await self._failures.judge(subscription, failed, self._worked):
            await self._reject(subscription, rejected)
        self._must_pause = self._must_pause and not self._worked

    async def _handle_suspect(self, subscription: Subscription, suspect: Delivery) -> list[Failed]:
        """Handle a command that may have ended the process. Reject it unread if that has happened too often."""
        try:
            if (deaths := await self._suspects.begin(suspect)) >= MOST_DEATHS:
                rejection = Rejection(Code.INTERNAL, f"the service died {deaths} times while it handled this command")
                await self._reject(subscription, [Rejected(suspect, rejection, None)])
                return []
            failed = await self._handle_part(subscription, [suspect])
            await self._suspects.end(suspect)
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            await self._wait(subscription, [suspect], blame(error), error)
            return []
        return failed

    async def _handle_part(self, subscription: Subscription, part: Sequence[Delivery]) -> list[Failed]:
        """Handle deliveries in one transaction; return the commands that failed alone by an error of a command."""
        decoded = await decode(part, self._payloads)
        accepted = [_Accepted(*each, self._routes[type(each[1].payload)]) for each in decoded.commands]
        failed = await self._apply(subscription, accepted) if accepted else []
        if decoded.rejected:
            await self._reject(subscription, decoded.rejected)
        return failed

    async def _reject(self, subscription: Subscription, rejected: Sequence[Rejected]) -> None:
        """Reject commands. They count as handled, so that a stream that is rolled back behind them is recognized."""
        deliveries = [each.delivery for each in rejected]
        try:
            await in_transaction(self._database, lambda tx: advance(tx, deliveries))
        except ChangedStreamError:
            subscription.stream_changed()
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            await self._wait(subscription, deliveries, blame(error), error)
        else:
            await self._rejector.reject(subscription, rejected)

    async def _apply(self, subscription: Subscription, accepted: Sequence[_Accepted]) -> list[Failed]:
        """Commit and acknowledge the commands; return those that failed alone by an error of a command."""
        try:
            results = await self._commit(accepted)
        except ChangedStreamError:
            subscription.stream_changed()
            return []
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            return await self._divide(subscription, accepted, error)
        self._outages.record_success(part="commands")
        self._worked.update(each.route for each in accepted)
        await self._finish(subscription, accepted, results)
        return []

    async def _commit(self, accepted: Sequence[_Accepted]) -> list[CommandResult]:
        now = self._clock.now()

        async def handle(tx: Transaction) -> list[CommandResult]:
            results = await self._run_handlers(tx, accepted, now)
            await advance(tx, [each.delivery for each in accepted])
            return results

        return await in_transaction(self._database, handle)

    async def _run_handlers(self, tx: Transaction, accepted: Sequence[_Accepted], now: int) -> list[CommandResult]:
        results: dict[int, CommandResult] = {}
        for route in self._routes_in_order:
            indexes = [index for index, each in enumerate(accepted) if each.route is route]
            commands = [accepted[index].command for index in indexes]
            if commands:
                results.update(zip(indexes, await route.handle(tx, commands, now), strict=True))
        return [results[index] for index in range(len(accepted))]

    async def _divide(
        self, subscription: Subscription, accepted: Sequence[_Accepted], error: Exception
    ) -> list[Failed]:
        """Handle the commands of a failed transaction in smaller ones if that can help."""
        cause = blame(error)
        smaller = _divide(accepted, cause)
        if len(smaller) > 1:
            log.warning("batch failed; handling it in parts", exc_info=error, extra={"count": len(accepted)})
            return [failed for part in smaller for failed in await self._apply(subscription, part)]
        if cause is Blame.COMMAND:
            log.error("command failed", exc_info=error, extra={"command_id": accepted[0].command.id})
            return [Failed(accepted[0].delivery, accepted[0].route, error)]
        await self._wait(subscription, [each.delivery for each in accepted], cause, error)
        return []

    async def _wait(
        self, subscription: Subscription, deliveries: Sequence[Delivery], cause: Blame, error: Exception
    ) -> None:
        """Let commands wait for the environment."""
        self._must_pause = True
        if cause in {Blame.OUTAGE, Blame.BUSY}:
            self._outage = cause, error
        await self._failures.wait(subscription, deliveries, cause, error)

    async def _finish(
        self, subscription: Subscription, accepted: Sequence[_Accepted], results: Sequence[CommandResult]
    ) -> None:
        """Do the work after the commit: count outcomes, wake loops, send replies, acknowledge deliveries."""
        replies: list[Reply] = []
        for each, result in zip(accepted, results, strict=True):
            self._metrics.command_handled(each.command.payload.type, result.name)
            self._attempts.forget(each.delivery)
            if each.command.reply_to and (to := inbox_of(each.delivery, self._reply_prefix)):
                body = {"commandId": each.command.id, "outcome": result.name, **(result.view or {})}
                replies.append(Reply(to, to_json(body)))
        await _wake(accepted, results)
        if replies:
            await self._broker.reply(replies)
        await subscription.acknowledge([each.delivery for each in accepted])


def _divide(accepted: Sequence[_Accepted], cause: Blame) -> list[Sequence[_Accepted]]:
    """Return the commands in groups that may succeed on their own; in one group if no smaller group would."""
    if cause is Blame.SETUP:
        routes = dict.fromkeys(each.route for each in accepted)
        return [[each for each in accepted if each.route is route] for route in routes]
    if cause in {Blame.COMMAND, Blame.CONFLICT} and (half := len(accepted) // 2) > 0:
        return [accepted[:half], accepted[half:]]
    return [accepted]


async def _wake(accepted: Sequence[_Accepted], results: Sequence[CommandResult]) -> None:
    """Wake the loops of each route for the earliest row that it wrote."""
    wakes: dict[Callable[[int], Awaitable[None]], int] = {}
    for each, result in zip(accepted, results, strict=True):
        if result.wake_at is not None:
            wakes[each.route.wake] = min(result.wake_at, wakes.get(each.route.wake, result.wake_at))
    for wake, at in wakes.items():
        await wake(at)

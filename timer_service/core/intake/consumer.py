"""The consumer: decodes deliveries, hands the commands to the applier, and settles or puts back every delivery."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Sequence

from timer_service.core.due.blame import blame
from timer_service.core.intake.applier import Accepted, Applier, Progress
from timer_service.core.intake.attempts import Attempts
from timer_service.core.intake.batch_size import BATCH_SECONDS, BatchSize
from timer_service.core.intake.blocked import Blocked
from timer_service.core.intake.command_streams import advance
from timer_service.core.intake.decoder import LARGE_BYTES, Decoded, decode, parts
from timer_service.core.intake.failures import Failures
from timer_service.core.intake.newest_rejections import NewestRejections
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.rejector import Rejector
from timer_service.core.intake.route import Route
from timer_service.core.intake.suspects import MOST_DEATHS, Suspects
from timer_service.core.intake.turn_order import divide_by_size, in_turns
from timer_service.core.limits.audit import AuditLog
from timer_service.core.ports.broker import Broker, Publish, Subscription
from timer_service.core.ports.cancellation import run_to_completion
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import Health, OutageLog, worst
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.budget import DEFAULT_BUDGET, Budget
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import ChangedStreamError, Code, Rejection

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1
_SLOW_BATCH_SECONDS = 10
_LONGEST_BATCH_SECONDS = 60
_SUSPICIOUS = 6
"""From this delivery on, a command is handled alone and last. It may be what ended the process."""


class Consumer:
    """The handler of one subscription's commands.

    It handles a batch in parts of limited size and decoding time, each in one transaction or more. After 150 ms it puts
    the rest of the batch back, so that the commands of other tenants get a turn. Tenants with a large command come
    last, but one part of theirs is handled in each batch.
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
        audit: AuditLog | None = None,
        newest: NewestRejections | None = None,
        budget: Budget = DEFAULT_BUDGET,
        publish: Publish | None = None,
    ) -> None:
        """`publish` is used in place of `broker.publish` for the messages of rejected commands."""
        self._database = database
        self._routes = {payload.type: route for route in routes for payload in route.payloads}
        self._payloads = {payload.type: payload for route in routes for payload in route.payloads}
        self._clock = clock
        self._batch_size = BatchSize(batch_size)
        self._part_bytes = budget.part
        self._attempts = Attempts()
        audit = audit or AuditLog()
        outages = outages or OutageLog()
        self._failures = Failures(self._attempts, outages)
        self._blocked = Blocked()
        self._suspects = Suspects(database)
        self._batch_began: float | None = None
        self._applier = Applier(
            database=database,
            broker=broker,
            routes=routes,
            clock=clock,
            metrics=metrics,
            attempts=self._attempts,
            audit=audit,
            failures=self._failures,
            blocked=self._blocked,
            outages=outages,
            reply_prefix=reply_prefix,
        )
        self._rejector = Rejector(
            broker=broker,
            clock=clock,
            metrics=metrics,
            attempts=self._attempts,
            audit=audit,
            newest=newest or NewestRejections(),
            command_types=self._payloads,
            reply_prefix=reply_prefix,
            publish=publish,
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
                must_pause, left = await self.handle(subscription, batch)
            except Exception:
                log.exception("batch failed; its unsettled commands are delivered again", extra={"count": len(batch)})
                must_pause, left = False, 0
            self._batch_size.record(len(batch) - left, time.monotonic() - began, cut=left > 0)
            if must_pause:  # else every command would be redelivered in a circle
                await asyncio.sleep(_PAUSE_SECONDS)

    async def handle(self, subscription: Subscription, batch: Sequence[Delivery]) -> tuple[bool, int]:
        """Handle one batch, and settle every delivery in it or put it back.

        Return whether to pause before the next batch, and how many deliveries were put back.
        """
        self._batch_began = time.monotonic()
        progress = Progress(subscription)
        try:
            left = await self._handle_parts(progress, batch)
        finally:
            self._batch_began = None
        return progress.must_pause and not progress.worked, len(left)

    async def _handle_parts(self, progress: Progress, batch: Sequence[Delivery]) -> list[Delivery]:
        """Handle the parts of a batch until the time is up or the database is away. Return what was put back."""
        began = self._clock.now()
        often = [each for each in batch if each.attempt >= _SUSPICIOUS]
        suspects = [each for each in often if self._attempts.of(each) >= _SUSPICIOUS]
        others = [each for each in batch if self._attempts.of(each) < _SUSPICIOUS] if suspects else batch
        random.shuffle(suspects)  # they crashed together, so their attempts do not tell which of them did it
        together, groups = self._blocked.divide(others)
        light, heavy = divide_by_size(together, LARGE_BYTES)
        waiting, last = (deque(parts(each, self._part_bytes)) for each in (light, heavy))
        left: list[Delivery] = []
        while waiting and self._goes_on(progress, began):
            left += await self._handle_part(progress, waiting.popleft(), began)
        # One group, one part of these and one suspect also if the time is up, or they would wait for ever.
        divided = deque(part for group in groups for part in parts(group, self._part_bytes))
        for apart in (divided, last):
            left += await self._handle_costly(progress, apart, began)
        if suspects and self._goes_on(progress, None):
            left += await self._handle_suspect(progress, suspects.pop(), began)
        while suspects and self._goes_on(progress, began):
            left += await self._handle_suspect(progress, suspects.pop(), began)
        left += [delivery for part in (*waiting, *divided, *last, suspects) for delivery in part]
        return await self._end(progress, [*progress.blocked, *left])

    async def _handle_costly(self, progress: Progress, waiting: deque[list[Delivery]], began: int) -> list[Delivery]:
        """Handle one part in any case, and others if there is time for one that takes as long as the last one.

        Remove them from `waiting`. Return the deliveries that were not handled.
        """
        left: list[Delivery] = []
        took: int | None = None
        while waiting and self._goes_on(progress, None if took is None else began, needs=took or 0):
            part_began = self._clock.now()
            left += await self._handle_part(progress, waiting.popleft(), began)
            took = self._clock.now() - part_began
        return left

    def _goes_on(self, progress: Progress, began: int | None, *, needs: int = 0) -> bool:
        """Return whether to handle more commands of a batch that began at an instant. None: the time is not limited.

        `needs`: how many milliseconds they may take. A clock that was set back ends the batch too.
        """
        if progress.outage is not None or progress.blocked:
            return False
        return began is None or 0 <= self._clock.now() - began < BATCH_SECONDS * 1000 - needs

    async def _end(self, progress: Progress, left: list[Delivery]) -> list[Delivery]:
        """Settle the failed commands, and put back the commands that were not handled. Return these."""
        if progress.outage is not None and left:  # else each would wait for the same outage
            await self._failures.wait(progress.subscription, left, *progress.outage)
            left = []
        if rejected := await self._failures.judge(progress.subscription, progress.failed, progress.worked):
            await self._reject(progress, rejected)
        if left:
            await progress.subscription.put_back(in_turns(left, progress.served.__contains__))
        return left

    async def _handle_suspect(self, progress: Progress, suspect: Delivery, began: int) -> list[Delivery]:
        """Handle a command that may have ended the process. Reject it unread if that has happened too often."""
        try:
            deaths = await self._suspects.begin(suspect)
        except asyncio.CancelledError:  # a planned stop is no death
            await run_to_completion(self._suspects.end(suspect))
            raise
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            await self._applier.wait(progress, [suspect], blame(error), error)
            return []
        if deaths >= MOST_DEATHS:
            rejection = Rejection(Code.INTERNAL, f"the service died {deaths} times while it handled this command")
            await self._reject(progress, [Rejected(suspect, rejection, None)])
            return []
        try:
            left = await self._handle_part(progress, [suspect], began)
        except (asyncio.CancelledError, Exception):
            await run_to_completion(self._survive(suspect))
            raise
        await self._survive(suspect)
        return left

    async def _survive(self, suspect: Delivery) -> None:
        """Record that the process has survived a command. The command itself is settled, put back or failed already.

        If the database is away now, nothing is lost: this process does not count itself as dead, see `Suspects`.
        """
        try:
            await self._suspects.end(suspect)
        except Exception as error:  # noqa: BLE001 - no error here is a fault of the command
            log.warning(
                "could not record that the service survived a command",
                extra={"sequence": suspect.position.sequence, "reason": error_text(error)},
            )

    async def _handle_part(self, progress: Progress, part: Sequence[Delivery], began: int) -> list[Delivery]:
        """Decode and apply deliveries until the time is up. Return the deliveries that were not handled."""
        left: list[Delivery] = []
        while part:
            decoded = await decode(part, self._payloads, self._clock.now)
            part = decoded.left
            left = await self._apply(progress, decoded, began)
            if left or not self._goes_on(progress, began):
                break
        return [*left, *part]

    async def _apply(self, progress: Progress, decoded: Decoded, began: int) -> list[Delivery]:
        """Apply commands in transactions until the time is up. Return the deliveries that were not handled."""
        rest = [Accepted(*each, self._routes[each[1].payload.type]) for each in decoded.commands]
        if rest:
            rest = await self._applier.apply(progress, rest)
        while rest and self._goes_on(progress, began):
            rest.sort(key=lambda each: each.command.tenant in progress.served)
            rest = await self._applier.apply(progress, rest)
        if decoded.rejected:
            await self._reject(progress, decoded.rejected)
        return [each.delivery for each in rest]

    async def _reject(self, progress: Progress, rejected: Sequence[Rejected]) -> None:
        """Reject commands. They count as handled, so that a stream that is rolled back behind them is recognized."""
        deliveries = [each.delivery for each in rejected]
        try:
            await in_transaction(self._database, lambda tx: advance(tx, deliveries), accepting=True)
        except ChangedStreamError:
            progress.subscription.stream_changed()
        except Exception as error:  # noqa: BLE001 - `blame` knows every error
            await self._applier.wait(progress, deliveries, blame(error), error)
        else:
            await self._rejector.reject(progress.subscription, rejected)

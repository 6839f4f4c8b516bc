"""The relay: claims rows, publishes their events, settles the rows. No transaction is open while it publishes."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from timer_service.core.due.blame import Evidence
from timer_service.core.due.lease import DEATHS_ALONE, GIVEN_UP, Failure, Lease
from timer_service.core.due.long_texts import LONGEST_IN_ROW
from timer_service.core.due.loop import PASS_SECONDS, Pass
from timer_service.core.events.pace import LONGEST_MS, SHORTEST_MS, Flight, Pause, share_lengths
from timer_service.core.events.settlement import Settlement, Settler
from timer_service.core.limits.event_allowances import EventAllowances
from timer_service.core.ports.broker import TRANSIENT, Broker, Publish, PublishResult, PublishStatus
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Row, Transaction
from timer_service.core.ports.health import RecentFailure
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.values.delays import LONGEST_DELAY, Backoff
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Message

log = logging.getLogger(__name__)

Encode = Callable[[Row, int], Message]
"""Returns the message of a claimed row that is fired at an instant. If it raises, only that row fails."""


class _Claimed(NamedTuple):
    rows: Sequence[Row]
    """The rows of a claim to publish."""
    has_released: bool
    """Whether the claim had other rows, which were released."""
    has_exhausted: bool
    """Whether the attempts of a row are used up, so that nothing may be published beside it."""


_BACKOFF = Backoff()
_BATCHES_PER_TICK = 32
_FIRST_BATCH = 100
"""The rows of a claim after one that was not full. Their events are published 15 ms earlier than those of 1,000."""
_GROWTH = 4
_CHUNK_CHARACTERS = 2 * 1024 * 1024
"""How many characters of rows are loaded, encoded and published at a time."""
_LONGEST_TURN_MS = LONGEST_DELAY // timedelta(milliseconds=1)
_LOCKED_ROWS_PAUSE_MS = 5
"""How long to wait for rows that another instance is claiming."""
_UNSETTLED_PAUSE_MS = 1000
"""How long to wait before published rows are settled that another session had locked."""


@dataclass(kw_only=True, eq=False)
class Relay:
    """A worker that publishes the events of the available rows of one table."""

    database: Database
    broker: Broker
    lease: Lease
    encode: Encode
    clock: Clock
    metrics: MetricsPort
    batch_size: int
    max_attempts: int
    publishing: RecentFailure
    publish: Publish | None
    """Replaces `broker.publish`."""
    allowances: EventAllowances
    limited: bool
    """Whether tenants that wait by `allowances` publish nothing."""
    claim_bytes: int
    """How many characters the long texts of a claim may have."""
    rng: random.Random
    """For the jitter of retries."""

    def __post_init__(self) -> None:
        self._publish_all = self.publish or self.broker.publish
        self._texts = self.lease.table.texts
        self._loading = asyncio.Lock()
        self._limit = self._first_limit = min(_FIRST_BATCH, self.batch_size)
        self._pause = Pause()
        self._claimed_nothing_at: int | None = None
        self._evidence = Evidence()
        self._refused_alone = 0
        """How many times a single event was refused since the last one was published."""
        self._settler = Settler(self.database, self.lease, self.clock, self.metrics)

    async def tick(self, now: int) -> Pass:
        """Fire rows that are available at `now`, in a limited number of batches. Return how many rows were claimed.

        Batches overlap: while some are being published, the next one is claimed. Nothing is claimed while the broker is
        unavailable. After a claim of which nothing was published, single rows are claimed until one is published.

        After a claim that took all available rows, the next one waits until these are published. Its transaction
        settles them, and takes the rows that became available meanwhile. See docs/decisions/0072.

        Claims that were left unsettled are settled first. A pass that is cancelled settles them before it ends.
        """
        try:
            return await self._tick(now)
        except asyncio.CancelledError:
            with suppress(DatabaseUnavailableError):
                await self._settler.settle_left()
            raise

    async def _tick(self, now: int) -> Pass:
        """Do a pass, as `tick`. Claims that are being published when it fails are settled first."""
        await self._settler.settle_left()
        claimed = 0
        flight = Flight()
        seconds = asyncio.get_running_loop().time
        until = seconds() + PASS_SECONDS
        try:
            for _ in range(_BATCHES_PER_TICK):
                now = max(now, self.clock.now())
                if not self.broker.health.usable:
                    self._pause.restart(now)
                if seconds() > until or not self._pause.is_over(now):
                    break
                probing = self._pause.probing
                limit = 1 if probing else self._limit
                published = flight.take_published()
                claim = await self._claim(now, limit, published, busy=bool(flight.publishing))
                claimed += len(claim.rows)
                if claim.rows:
                    flight.publishing.add(asyncio.create_task(self._fire(claim.rows)))
                took_all = not claim.has_released and len(claim.rows) < limit
                self._limit = self._first_limit if took_all else self._next_limit(claim)
                await flight.wait_for_room(is_alone=took_all or probing or claim.has_exhausted)
                if took_all and not flight.published:
                    break
        finally:
            await flight.wait(for_all=True)
            await self._settler.settle(flight.take_published())
        flight.raise_first()
        self._claimed_nothing_at = None if claimed else now
        return Pass(claimed, await self._next_at(now))

    async def _next_at(self, claimed_at: int) -> int | None:
        """Return when to claim again, or to settle what is left; None if nothing waits."""
        claim_at = await self._next_claim_at(claimed_at)
        if not self._settler.waits:
            return claim_at
        settle_at = self.clock.now() + _UNSETTLED_PAUSE_MS
        return settle_at if claim_at is None else min(claim_at, settle_at)

    async def _next_claim_at(self, claimed_at: int) -> int | None:
        """Return when to claim again; None if no row waits. `claimed_at`: the instant of the last claim."""
        at = await self.lease.next_available(self.database.reader)
        if at is None:
            return None
        if (go_on_at := self.allowances.next_at(claimed_at)) is not None:  # then a tenant may publish again
            at = min(at, go_on_at)
        if self._claimed_nothing_at is not None and at <= self._claimed_nothing_at:  # other instances claim these rows
            at = self._claimed_nothing_at + _LOCKED_ROWS_PAUSE_MS
        # During a pause, the next pass sees after the shortest one whether the broker was away and is back.
        return max(at, min(self._pause.resume_at, self.clock.now() + SHORTEST_MS))

    def _next_limit(self, claim: _Claimed) -> int:
        """Return the limit of the next claim, after one that did not take all available rows.

        If rows were released, there was only room for those that were kept: the next claim has twice as many.
        """
        if not claim.has_released:
            return min(_GROWTH * self._limit, self.batch_size)
        return min(2 * len(claim.rows), self.batch_size) if claim.rows else self._limit

    async def _claim(self, now: int, limit: int, published: Sequence[Settlement], *, busy: bool) -> _Claimed:
        """Settle claims that were published, and claim the next rows, in one transaction.

        `busy`: claims are being published. Then an exhausted row is left for later.
        """
        waiting = self.allowances.waiting(now) if self.limited else ()
        claim_in = partial(self._claim_in, now=now, limit=limit, waiting=waiting, busy=busy)
        claimed = await self._settler.settle_and(published, claim_in)
        if claimed.rows or not published:  # else the transaction was needed to settle
            self.metrics.claimed(len(claimed.rows))
        return claimed

    async def _claim_in(
        self, tx: Transaction, *, now: int, limit: int, waiting: Collection[str], busy: bool
    ) -> _Claimed:
        """Claim rows. Release all but one exhausted row, or those whose long texts are too much for one claim."""
        rows: Sequence[Row] = await self.lease.claim(tx, now, limit, alone=self.database.exclusive, waiting=waiting)
        left: Sequence[Row] = []
        if exhausted := [row for row in rows if self._is_exhausted(row)][:1]:
            kept = [] if busy else exhausted
            rows, left = kept, [row for row in rows if row not in kept]
        elif self._texts is not None:
            rows, left = share_lengths(rows, self._texts.length_of, self.claim_bytes)
        await self.lease.release(tx, left)
        return _Claimed(rows, bool(left), bool(exhausted))

    def _is_exhausted(self, row: Row) -> bool:
        """Return whether all attempts of a row were used up before this claim.

        A row whose last attempt fails is buried. So at that attempt the process died, or lost its lease, while it
        handled this row and others. Now the row is published alone, and is given up only if it ends the process alone.
        """
        exhausted: bool = row["attempt"] > self.max_attempts
        return exhausted

    async def _fire(self, rows: Sequence[Row]) -> Settlement | None:
        """Publish rows and settle them, or return how the transaction of the next claim can do it."""
        if rows[0]["attempt"] > self.max_attempts + DEATHS_ALONE:  # an exhausted row, which was claimed alone
            settlement = Settlement(self.clock.now(), bury=[Failure(rows[0], GIVEN_UP, self.clock.now())])
        else:
            settlement = await self._publish(rows)
            if settlement.all_completed and self.database.exclusive:
                return settlement
        await self._settler.settle([settlement])
        return None

    async def _publish(self, rows: Sequence[Row]) -> Settlement:
        """Publish rows in chunks, and return how to settle them.

        Rows are released if the broker stored only a part of an earlier chunk, or after half of the lease. If the clock
        was set back since the claim, the rows are fired at the instant of the claim: no event may say that its row
        fired before it was due.
        """
        until = self.clock.now() + self.lease.hold_ms // 2
        settlement = Settlement(max(self.clock.now(), self.lease.claimed_at(rows[0])), whole=True)
        waiting = deque(rows)
        while waiting and not settlement.release and self.clock.now() <= until:
            if messages := await self._encode_chunk(waiting, settlement):
                started = time.perf_counter()
                results = await self._publish_all([message for _, message in messages])
                self.metrics.published(time.perf_counter() - started)
                self._sort_results([row for row, _ in messages], results, settlement)
                answers = zip(messages, results, strict=True)
                self.allowances.count(each for (_, each), answer in answers if answer.status is PublishStatus.PUBLISHED)
        settlement.release += waiting
        self._set_pause(settlement)
        return settlement

    async def _encode_chunk(self, waiting: deque[Row], settlement: Settlement) -> list[tuple[Row, Message]]:
        """Take the rows of a chunk from `waiting`, load their long texts, and return their messages.

        The long texts of the other rows are in the database only. If it is away, the rows are released.
        """
        chunk: list[Row] = []
        size = 0
        while waiting and size < _CHUNK_CHARACTERS:
            chunk.append(row := waiting.popleft())
            size += LONGEST_IN_ROW + (self._texts.length_of(row) if self._texts else 0)
        try:
            async with self._loading:  # claims that overlap are published in their order
                texts = await self._texts.load(self.database.reader, chunk) if self._texts else {}
        except DatabaseUnavailableError:
            settlement.release += chunk
            return []
        messages: list[tuple[Row, Message]] = []
        for row in chunk:
            try:
                loaded = self._texts.with_text(row, self.lease.table.claimed, texts) if self._texts else row
                messages.append((row, self.encode(loaded, settlement.at)))
            except Exception as error:
                log.exception("row cannot be encoded", extra={"table": self.lease.table.name})
                self._fail(row, f"cannot be encoded: {error_text(error)}", settlement)
        return messages

    def _sort_results(self, rows: Sequence[Row], results: Sequence[PublishResult], settlement: Settlement) -> None:
        """Decide by the result of each row: published (complete), transient (release), refused (retry or bury).

        No attempt counts if the broker has refused several events since it stored one: they are probably not at fault.
        """
        refused: list[tuple[Row, str]] = []
        has_stored = False
        for row, result in zip(rows, results, strict=True):
            if result.status is PublishStatus.PUBLISHED:
                has_stored = True
                settlement.complete.append(row)
            elif result.status in TRANSIENT:
                settlement.release.append(row)
            else:
                refused.append((row, result.reason))
        table = self.lease.table.name
        self._evidence.record([table] if has_stored else [], [(table, self.lease.key_of(row)) for row, _ in refused])
        counts = not self._evidence.is_environment(table)
        for row, reason in refused:
            self._fail_or_wait(row, reason, settlement, counts=counts, alone=len(rows) == 1)
        self._report_failures(results, counts=counts)

    def _report_failures(self, results: Sequence[PublishResult], *, counts: bool) -> None:
        """Report why events were not published. If no attempt `counts`, publishing itself has failed."""
        failures = [result for result in results if result.status is not PublishStatus.PUBLISHED]
        for status in {result.status for result in failures}:
            reasons = [result.reason for result in failures if result.status is status]
            self.metrics.publish_failed(status, len(reasons))
            if status in TRANSIENT or not counts:
                self.publishing.record(f"events cannot be stored: {reasons[0]}")
            log.warning("messages not published", extra={"status": status, "count": len(reasons), "reason": reasons[0]})

    def _set_pause(self, settlement: Settlement) -> None:
        """Pause if events were not stored without their fault: shortly if others were, else longer each time."""
        has_failed = bool(settlement.release) or not all(each.counts for each in settlement.retry)
        if settlement.complete:
            self._refused_alone = 0
            self._pause.end()
            if has_failed:
                self._pause.shorten(self.clock.now())
            else:
                self.publishing.clear()
        elif has_failed:
            self._pause.lengthen(self.clock.now())

    def _fail_or_wait(self, row: Row, error: str, settlement: Settlement, *, counts: bool, alone: bool) -> None:
        """Settle a refused row. `counts`: the row is at fault. Otherwise every event is refused: try each in its turn.

        `alone`: it was published alone, as a probe is. Rows that were refused together are released, and probed next.
        """
        if counts:
            self._fail(row, error, settlement)
        elif alone:
            # A probe is made at least every LONGEST_MS. So with this delay, each other refused row has its turn first.
            self._refused_alone += 1
            delay = min((self._refused_alone + 1) * LONGEST_MS, _LONGEST_TURN_MS)
            settlement.retry.append(Failure(row, error, self.clock.now() + delay, counts=False))
        else:
            settlement.release.append(row)

    def _fail(self, row: Row, error: str, settlement: Settlement) -> None:
        """Settle a row that failed: retry it after a backoff, or bury it if this was its last attempt."""
        attempt: int = row["attempt"]
        delay = _BACKOFF.delay(attempt, self.rng)
        failure = Failure(row, error, self.clock.now() + delay // timedelta(milliseconds=1))
        if attempt < self.max_attempts:
            settlement.retry.append(failure)
        else:
            self._evidence.forget(self.lease.table.name, self.lease.key_of(row))
            settlement.bury.append(failure)

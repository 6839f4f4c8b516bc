"""Commits: the transactions of the intake. Each applies commands, stores those that wait, and moves the cursor."""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from timer_service.core.intake import cursor, waiting_rows
from timer_service.core.intake.apply import Applied, Decoded, Done, Handlers, build_letters, wake
from timer_service.core.intake.cursor import Place
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.replies import inbox_of, send_replies
from timer_service.core.intake.route import CommandResult, TooManyCommandsError
from timer_service.core.intake.waiting import Waiting
from timer_service.core.intake.waiting_rows import NewRow, WaitingRow, applied_of_rows, rows_of
from timer_service.core.limits.audit import OPERATOR_ACTION, REFUSED, REJECTED, AuditLog
from timer_service.core.limits.quotas import OVER_QUOTA
from timer_service.core.ports.broker import Broker, Reply
from timer_service.core.ports.clock import Clock
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.ports.metrics_port import MetricsPort
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.dead_letter import printable
from timer_service.core.values.message import Message
from timer_service.core.values.raw_command import RawCommand

log = logging.getLogger(__name__)

_LONGEST_ID = 200
_NAME = attrgetter("name")
_TYPE = attrgetter("payload.type")

OnDone = Callable[[Done, int], None]
"""Called after a commit with what the transaction has done, and when it began, in Unix nanoseconds."""
OnRejected = Callable[[Rejected, int], None]
"""Called after the commit of a dead letter, with the rejection and the time in Unix milliseconds."""


class _Work(NamedTuple):
    """What a transaction is to do, with commands of the log or with waiting ones."""

    decoded: Sequence[Decoded]  # the commands to apply
    later: Sequence[RawCommand] = ()  # commands of the log to store
    last: RawCommand | None = None  # the last command of the log that was read; None if the commands are waiting ones
    rows: Sequence[WaitingRow] = ()  # the rows of the waiting commands


class _Written(NamedTuple):
    """What a transaction has written."""

    place: Place
    done: Done
    stored: Sequence[NewRow]
    applied: Sequence[tuple[WaitingRow, int]]  # rows, and how many commands of each were applied or rejected


@dataclass(kw_only=True, eq=False)
class Commits:
    """The transactions of the process that reads the log. It keeps what is known of the cursor and of what waits."""

    database: Database
    broker: Broker
    handlers: Handlers
    clock: Clock
    metrics: MetricsPort
    audit: AuditLog
    wake_outbox: Callable[[], Awaitable[None]]
    on_done: OnDone | None
    on_rejected: OnRejected | None
    place: Place = field(init=False)
    """Set by the reader when it begins."""
    waiting: Waiting = field(init=False, default_factory=Waiting)
    waits_briefly: bool = field(init=False, default=False)
    """Whether a transaction waits only briefly for a locked row."""

    async def of_log(self, decoded: Sequence[Decoded], later: Sequence[RawCommand], last: RawCommand) -> Done:
        """Apply commands of the log, store others, and move the cursor to `last`, the last one of both.

        The commands that are too much for one transaction are stored too.
        """
        return await self._commit(_Work(decoded, later, last))

    async def of_waiting(self, rows: Sequence[WaitingRow], decoded: Sequence[Decoded]) -> Done:
        """Apply the first commands of waiting rows, in the order of the rows."""
        return await self._commit(_Work(decoded, rows=rows))

    async def postpone(self, row: WaitingRow, available_at: int, attempt: int, error: str) -> None:
        """Record that the next command of a row cannot be applied before `available_at`."""
        await self.change(lambda tx: waiting_rows.postpone(tx, row, available_at, attempt, error))
        self.waiting.postponed(row.tenant, available_at)

    async def change(self, work: Callable[[Transaction], Awaitable[None]]) -> None:
        """Change waiting rows without applying anything, if no other process has moved the cursor."""

        async def write(tx: Transaction) -> Place:
            place = await cursor.move(tx, self.place, self.clock.now())
            await work(tx)
            return place

        self.place = await in_transaction(self.database, write, accepting=True)

    async def keep(self, place: Place) -> None:
        """Write a place without applying anything, and renew the lease of the reader."""
        self.place = await in_transaction(self.database, lambda tx: cursor.move(tx, place, self.clock.now()))

    def _behind(self, last: RawCommand) -> Place:
        """Return the place of the cursor behind a command."""
        moved = self.place.cursor._replace(sequence=last.position.sequence, stored_at=last.stored_at, place=last.place)
        return self.place._replace(cursor=moved)

    async def _commit(self, work: _Work) -> Done:
        """Apply commands in a transaction, and record here what was committed. After the commit no error is raised."""
        began = time.time_ns()
        written = await self._write_fitting(work)
        self.place = written.place
        for new in written.stored:
            self.waiting.added(new.tenant, len(new.commands), new.size)
        for row, number in written.applied:
            is_deleted = number == len(row.commands)
            self.waiting.applied(row.tenant, number, row.size if is_deleted else 0)
        try:  # the commands are applied, so no error may let them be applied again
            await self._finish(written.done)
            if self.on_done is not None:
                self.on_done(written.done, began)
        except Exception:
            log.exception("the work after a commit failed; replies may be missing")
        return written.done

    async def _write_fitting(self, work: _Work) -> _Written:
        """Do the work in a transaction. If it may not apply so many commands, do it again with fewer."""
        most = len(work.decoded)
        while True:
            letters = await build_letters(work.decoded[:most], self.broker.max_message_bytes)
            write = partial(self._write, work=work, most=most, letters=letters)
            try:
                return await in_transaction(self.database, write, accepting=True)
            except TooManyCommandsError as error:
                most = error.number

    async def _write(self, tx: Transaction, *, work: _Work, most: int, letters: Mapping[int, Message]) -> _Written:
        """Move the cursor, apply at most the first `most` commands, and store those of the log that are left.

        `letters`: the dead letters of rejected commands. Raises `LostCursorError` and `TooManyCommandsError`.
        """
        now = self.clock.now()
        decoded, last = work.decoded, work.last
        wanted = self.place if last is None else self._behind(last)
        place = await cursor.move(tx, wanted, now)  # first, so that a process that lost the cursor does nothing else
        if self.waits_briefly:
            await tx.wait_briefly()
        done = await self.handlers.apply(tx, decoded[:most], letters, now) if decoded else Done()
        applied = applied_of_rows(work.rows, done.number) if work.rows else []
        for row, number in applied:
            await waiting_rows.advance(tx, row, number)
        # Commands of the log that had no room wait from now on. Those of waiting rows are in their rows.
        left = [raw for raw, _ in decoded[done.number :]] if last is not None else []
        later = sorted([*left, *work.later], key=lambda raw: raw.position)
        stored = rows_of(later) if later else []
        if stored:
            await waiting_rows.add(tx, stored)
        return _Written(place, done, stored, applied)

    async def _finish(self, done: Done) -> None:
        """Do the work after the commit: count outcomes, wake loops, send replies."""
        for group in done.applied:
            self._count(group)
        await wake(done.applied)
        if done.rejected:
            await self.wake_outbox()
            for each in done.rejected:
                self._record(each)
            inboxes = [(each, inbox_of(each.raw, self.broker.reply_prefixes)) for each in done.rejected]
            await self.broker.reply([Reply(to, each.reply()) for each, to in inboxes if to is not None])
        await send_replies(self.broker, [reply for group in done.applied for reply in self._replies_to(group)])

    def _count(self, group: Applied) -> None:
        """Count the outcomes of commands by their types, and write audit lines."""
        names = list(map(_NAME, group.results))
        for (command_type, name), count in Counter(zip(map(_TYPE, group.commands), names, strict=True)).items():
            self.metrics.command_handled(command_type, str(name), count)
        if OVER_QUOTA in names or any(each.payload.is_operator_action for each in group.commands):
            self._write_audit(group)

    def _replies_to(self, group: Applied) -> list[tuple[str, str, CommandResult]]:
        """Return the inbox, the id and the result of each command that asks for a reply and names a valid inbox."""
        return [
            (to, command.id, result)
            for raw, command, result in zip(group.raws, group.commands, group.results, strict=True)
            if command.reply_to and (to := inbox_of(raw, self.broker.reply_prefixes)) is not None
        ]

    def _write_audit(self, group: Applied) -> None:
        """Write a line for each command that was refused by a limit, and for each action of an operator."""
        for command, result in zip(group.commands, group.results, strict=True):
            about = {"command_id": command.id, "type": command.payload.type, "outcome": str(result.name)}
            if result.name == OVER_QUOTA:
                self.audit.record(REFUSED, command.tenant, **about, sequence=command.position.sequence)
            if command.payload.is_operator_action:
                self.audit.record(OPERATOR_ACTION, command.tenant, **about, sequence=command.position.sequence)

    def _record(self, rejected: Rejected) -> None:
        """Count a rejected command, show it to the operator's page, and write an audit line."""
        code = rejected.rejection.code
        command_type = "unknown"  # any text of a user would make the number of metrics unbounded
        if rejected.envelope is not None and rejected.envelope.type in self.handlers.payloads:
            command_type = rejected.envelope.type
        self.metrics.command_handled(command_type, "rejected")
        self.metrics.dead_letter_stored(code)
        if self.on_rejected is not None:
            self.on_rejected(rejected, self.clock.now())
        about = {
            "command_id": printable(rejected.command_id, _LONGEST_ID),
            "type": command_type,
            "sequence": rejected.raw.position.sequence,
            "code": code.value,
        }
        self.audit.record(REJECTED, rejected.raw.address.tenant, **about)  # the reason quotes the command

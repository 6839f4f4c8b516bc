"""The reader: reads the command log from the cursor, and applies the commands. One process at a time reads.

It takes turns between the log and the commands that wait. One transaction follows the other:

- Of the log: a part of a batch. Most commands are applied at once; `waiting` decides which ones wait.
- Of the waiting commands: those of the tenants whose turn it is.

If a transaction of the log fails, its commands are stored as waiting ones. A transaction of waiting commands that fails
is repeated with half of them, until a single one fails. Its tenant waits then; `trouble` decides what becomes of it. If
the environment is at fault, nothing is applied until it works again: then the reader begins again at the cursor.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from timer_service.core.due.blame import OF_ENVIRONMENT, Blame, blame
from timer_service.core.intake import cursor
from timer_service.core.intake.apply import Decoded, Done
from timer_service.core.intake.commit import Commits
from timer_service.core.intake.crash_care import SUSPECT_MS, CrashCare
from timer_service.core.intake.cursor import LostCursorError, Taken
from timer_service.core.intake.decoder import LARGE_BYTES, decode, reject
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.trouble import Trouble
from timer_service.core.intake.waiting import FAR_BEHIND, MOST_BYTES, Shares, divide
from timer_service.core.intake.waiting_rows import WaitingRow, applied_of_rows, find_all, find_first
from timer_service.core.ports.health import Health, OutageLog, worst
from timer_service.core.ports.log import CommandLog, LogBatch, LogUnavailableError, read_left_bodies
from timer_service.core.values.budget import Budget
from timer_service.core.values.error_text import error_text
from timer_service.core.values.errors import Code, Rejection, StartError
from timer_service.core.values.message import Command
from timer_service.core.values.parts import split
from timer_service.core.values.raw_command import RawCommand

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1
_SLOW_SECONDS = 10
_LONGEST_SECONDS = 60
_LOOK_SECONDS = 0.4
"""How often a process that does not read looks whether it may."""
_KEEP_SECONDS = 1.0
"""How often the reader of a shared database says that it lives."""
_IDLE_SECONDS = 5.0
_LOG_SHARE = 3
"""While the log has more commands, it has so many times as much time as the waiting commands."""
_OTHERS_SECONDS = 0.5
_BRIEF_SECONDS = 10
_KILLED = Rejection(Code.INTERNAL, "the service died each time while it handled this command")


@dataclass(kw_only=True, eq=False)
class LogReader:
    """Reads the log and applies the commands until it is stopped."""

    commits: Commits
    command_log: CommandLog
    batch_size: int
    outages: OutageLog
    budget: Budget
    from_now: bool
    """Whether a new database skips the commands that are in the log already."""

    def __post_init__(self) -> None:
        self._database, self._clock, self._handlers = self.commits.database, self.commits.clock, self.commits.handlers
        self._trouble = Trouble(self.outages)
        self._name = secrets.token_hex(8)
        self._waiting = self.commits.waiting
        self._care: CrashCare | None = None
        """None after an orderly stop."""
        self._begun = False
        """Whether this process has become the reader, and no error has ended that."""
        self._stopping = asyncio.Event()
        self._health = Health.down("the command log was not opened yet")
        self._working_since: float | None = None
        self._waiting_turn_ended = self._waiting_turn_took = 0.0
        """When the last turn of the waiting commands ended, and how long it took."""
        self._kept_at = 0.0
        self._brief_until = 0.0
        """Until when no transaction waits long for a lock, because one has met a lock of another session."""
        self._has_others = True
        """Whether the log may have commands of several tenants."""
        self._others_until = 0.0
        """Until when that is not asked again."""

    @property
    def stalled(self) -> bool:
        """Whether the reader hangs: it has been applying the same commands for more than a minute."""
        return self._working_seconds > _LONGEST_SECONDS

    @property
    def health(self) -> Health:
        """Down with the reason while commands cannot be applied."""
        if self._working_seconds > _SLOW_SECONDS:
            return Health.down(f"the same commands have been handled for {self._working_seconds:.0f} s")
        full = Health.down(f"{self._waiting.number} commands wait to be applied; the log is read when fewer wait")
        return worst(self._health, self._trouble.health, full if self._is_full else Health())

    @property
    def _working_seconds(self) -> float:
        return 0.0 if self._working_since is None else time.monotonic() - self._working_since

    @property
    def _is_full(self) -> bool:
        return self._waiting.size > MOST_BYTES

    async def stop(self) -> None:
        """Finish the turn in progress, and let another process read."""
        self._stopping.set()
        await self.command_log.close()

    async def run(self) -> None:
        """Read and apply until stopped. Whatever fails is tried again from the cursor."""
        while not self._stopping.is_set():
            try:
                if not (self._begun or await self.begin()):
                    self._set_health(Health())  # the process that reads applies the commands
                    await self._pause(_LOOK_SECONDS)
                    continue
                while not self._stopping.is_set():
                    await self.turn(_IDLE_SECONDS if self._database.exclusive else _KEEP_SECONDS)
            except LostCursorError:  # the next `begin` finds out whether this process may read again
                log.info("another process reads the command log")
            except LogUnavailableError as error:
                self._set_health(Health.down(f"the command log cannot be read: {error}"))
                await self._pause(_LOOK_SECONDS)
            except StartError as error:
                self._set_health(Health.down(str(error)))
                await self._pause(_PAUSE_SECONDS)
            except Exception as error:  # `blame` knows every error
                if blame(error) is not Blame.COMMAND:
                    self._trouble.record_outage(error)
                else:
                    log.exception("commands were not applied; trying again")
                    self._set_health(Health.down(f"commands cannot be applied: {error_text(error)}"))
                await self._pause(_PAUSE_SECONDS)
            finally:
                self._working_since, self._begun = None, False
        await self._release()

    async def open(self) -> None:
        """Begin, if the broker is not away. Raises `StartError` if the log belongs to another database."""
        with suppress(LogUnavailableError):
            await self.begin()

    async def begin(self) -> bool:
        """Become the reader, and open the log at the cursor. Return False if another process reads.

        Raises `LogUnavailableError`, and `StartError` if the log belongs to another database.
        """
        taken = await cursor.take(self._database, self._name, self._clock.now())
        if taken is None:
            return False
        if taken.after_crash:
            self._care = CrashCare(self.commits, self._clock, self.batch_size)
        self.commits.place = taken.place
        await self._open_log(taken)
        self._waiting.load(await find_all(self._database.reader))
        self._set_health(Health())
        self._begun = True
        return True

    async def turn(self, seconds: float = 0) -> bool:
        """Apply the next batch of the log, and the waiting commands whose turn it is. Return whether there were any.

        Waits up to `seconds` for commands. `begin` comes first, and again after any error.
        """
        await self._renew_lease()
        batch = await self._next_batch(seconds)
        if batch.commands:
            behind = await self._behind_for_others(batch)
            for part in split(batch.commands, _counted_bytes, max_bytes=self.budget.part):
                await self._apply_part(part, behind)
        has_turn = self._is_turn_of_waiting(batch.behind)
        if has_turn:
            await self._apply_waiting()
        self._working_since = None
        return bool(batch.commands) or has_turn

    async def _open_log(self, taken: Taken) -> None:
        """Open the log where the cursor is, or at its end for a new database that skips what is in the log.

        Log what was found, and store the cursor if it is another one now.
        """
        opening = await self.command_log.open(None if taken.is_new else taken.place.cursor, taken.database_id)
        if taken.is_new and self.from_now and opening.unread:
            log.info("skipping the commands that are in the log already", extra={"count": opening.unread})
            end = (await self.command_log.end())._replace(epoch=opening.cursor.epoch)  # `end` does not know the epoch
            opening = await self.command_log.open(end, taken.database_id)
        elif taken.is_new:
            log.info("reading the command log from its beginning", extra={"count": opening.unread})
        elif opening.is_other:
            log.warning(
                "the command log is another one now; reading the commands that it has stored since",
                extra={"epoch": opening.cursor.epoch, "count": opening.unread},
            )
        if opening.removed:
            log.error("commands were removed from the log before they were read", extra={"count": opening.removed})
        if opening.cursor != taken.place.cursor:
            await self.commits.keep(self.commits.place._replace(cursor=opening.cursor))

    async def _next_batch(self, seconds: float) -> LogBatch:
        """Return the next commands of the log; none if so much waits that it is not read on.

        Waits for commands up to `seconds`, and not longer than until a waiting command may be applied.
        """
        if (next_at := self._waiting.next_at()) is not None:
            seconds = min(max((next_at - self._clock.now()) / 1000, 0), seconds)
        if self._is_full:
            await self._pause(seconds)
            return LogBatch((), 0)
        return await self.command_log.read(self.batch_size, self.budget.batch, seconds)

    async def _renew_lease(self) -> None:
        """Renew the lease of this process once a second if other processes could read. Transactions renew it too."""
        if not self._database.exclusive and time.monotonic() - self._kept_at > _KEEP_SECONDS:
            await self.commits.keep(self.commits.place)
            self._kept_at = time.monotonic()

    def _is_turn_of_waiting(self, behind: int) -> bool:
        """Return whether waiting commands have a turn now. `behind`: how many commands the log has behind the batch.

        While the log has more, it first gets its share of the time.
        """
        if not self._waiting.has_ready(self._clock.now()):
            return False
        log_had_its_share = time.monotonic() - self._waiting_turn_ended >= _LOG_SHARE * self._waiting_turn_took
        return behind == 0 or log_had_its_share

    async def _behind_for_others(self, batch: LogBatch) -> int:
        """Return how many commands are behind a batch; 0 if all of the log are of one tenant, so that no other waits.

        The log is asked about other tenants if a batch of one tenant is far behind, at most twice a second. Until then
        the last answer counts, also if it was about another tenant.
        """
        tenant = batch.commands[0].address.tenant
        if batch.behind <= FAR_BEHIND or any(each.address.tenant != tenant for each in batch.commands):
            return batch.behind
        if time.monotonic() > self._others_until:
            self._has_others = await self.command_log.has_others(tenant)
            self._others_until = time.monotonic() + _OTHERS_SECONDS
        return batch.behind if self._has_others else 0

    async def _apply_part(self, part: Sequence[RawCommand], behind: int) -> None:
        """Apply a part of a batch of the log, and store those of its commands that wait, in one transaction.

        If that fails, all of them are stored: as waiting commands, those that are at fault are found.

        `behind`: how many commands the log has behind the batch.
        """
        self._working_since = time.monotonic()
        if self._care is not None and self._care.count_read(len(part)):
            shares = Shares([], list(part))
        else:
            shares = divide(part, self._waiting.tenants, behind, self._trouble.stopped)
        decoded = await self._decode(shares.now)
        self.commits.waits_briefly = time.monotonic() < self._brief_until
        try:
            done = await self.commits.of_log(decoded, shares.later, part[-1])
        except Exception as error:
            if not decoded or not _may_divide(error):  # without decoded commands, none can be at fault
                raise
            self._record_division(error)
            await self.commits.of_log((), part, part[-1])
        else:
            self._record_success(done)

    async def _decode(self, raws: Sequence[RawCommand]) -> list[Decoded]:
        """Return each command with what decoding it gave."""
        return list(zip(raws, await decode(raws, self._handlers.payloads), strict=True))

    def _record_division(self, error: Exception) -> None:
        """Log the error of a transaction that is divided. After a lock, the next ones wait only briefly for locks."""
        if blame(error) is Blame.BLOCKED:
            self._brief_until = time.monotonic() + _BRIEF_SECONDS
            self.commits.waits_briefly = True
        log.warning("transaction of commands failed; dividing it", extra={"reason": error_text(error)})

    def _record_success(self, done: Done) -> None:
        """Record a transaction that succeeded. If a handler works again, all that waits is tried at once."""
        if self._trouble.has_failed and self._trouble.record_applied(group.route for group in done.applied):
            self._waiting.retry_all()

    async def _apply_waiting(self) -> None:
        """Apply commands of the tenants whose turn it is, in one transaction or more, and put these tenants last."""
        self._working_since = began = time.monotonic()
        tenants = self._waiting.next_tenants(self._clock.now(), self.batch_size, self.budget.part)
        rows = await find_first(self._database.reader, tenants)
        if not rows:  # another process has applied them
            raise LostCursorError
        chosen = self._fitting(rows)
        if self._care is not None and not (chosen := await self._care.choose(chosen)):
            self._waiting.postponed(rows[0].tenant, self._clock.now() + SUSPECT_MS)
            return
        self.commits.waits_briefly = chosen[0].is_held_back or time.monotonic() < self._brief_until
        self._waiting.end_turn(await self._apply_rows(chosen))
        self._waiting_turn_ended = time.monotonic()
        self._waiting_turn_took = self._waiting_turn_ended - began

    def _fitting(self, rows: Sequence[WaitingRow]) -> list[WaitingRow]:
        """Return the first rows whose commands fit in one transaction; at least one.

        A command that has failed alone, or was blocked, is tried alone.
        """
        if rows[0].is_held_back:
            return [rows[0]._replace(limit=1)]
        chosen: list[WaitingRow] = []
        number = size = 0
        others = (row.limited(self.budget.part) for row in rows if not row.is_held_back)
        for row in others:
            number += len(row.next)
            size += sum(raw.size for raw in row.next)
            if chosen and (number > self.batch_size or size > self.budget.part):
                break
            chosen.append(row)
        return chosen

    async def _apply_rows(self, rows: Sequence[WaitingRow]) -> list[str]:
        """Apply commands of rows in one transaction. If it fails, fewer, until one command alone has failed.

        Return the tenants that have had their turn: their next command was applied, or it has failed.
        """
        raws = [raw for row in rows for raw in row.next]
        await read_left_bodies(self.command_log, raws)
        if CrashCare.gives_up(rows[0]):  # the process may have died while it decoded the command
            decoded: list[Decoded] = [(raws[0], Rejected(raws[0], _KILLED, None))]
        else:
            decoded = await self._decode(raws)
        while True:
            try:
                done = await self.commits.of_waiting(rows, decoded)
            except Exception as error:
                if not _may_divide(error):
                    raise
                self._record_division(error)
                if len(decoded) == 1:
                    await self._end_failed_attempt(rows[0], decoded[0][1], error)
                    return [rows[0].tenant]
                decoded = decoded[: len(decoded) // 2]
            else:
                self._record_success(done)
                return [row.tenant for row, _ in applied_of_rows(rows, done.number)]

    async def _end_failed_attempt(self, row: WaitingRow, command: Command | Rejected, error: Exception) -> None:
        """Let a tenant wait whose next command failed alone, or make the command a dead letter.

        An attempt counts only if the command can be at fault: no lock made it fail, and a handler has applied it.
        A rejected command only becomes a dead letter, so it is tried until that is written.
        """
        raw = row.commands[0]
        attempt = row.attempt
        if blame(error) is not Blame.COMMAND or isinstance(command, Rejected):
            self._trouble.record_blocked(raw, error)
        else:
            attempt += 1
            if self._trouble.record_failure(self._handlers.route_of(command), command, error, attempt):
                rejection = Rejection(Code.INTERNAL, f"failed {attempt} times: {error_text(error)}")
                await self.commits.of_waiting([row], [(raw, reject(raw, rejection))])
                return
        available_at = self._clock.now() + self._trouble.delay(raw.position)
        await self.commits.postpone(row, available_at, attempt, error_text(error))

    async def _release(self) -> None:
        """Let another process read at once. If that fails, another one reads when the lease of this one is over."""
        try:
            await cursor.release(self._database, self._name)
        except Exception as error:  # noqa: BLE001 - this process stops, whatever the error is
            log.warning("could not give the command log up", extra={"reason": error_text(error)})

    def _set_health(self, health: Health) -> None:
        """Set the health, and log its reason if that is a new one."""
        if health.reason is not None and health != self._health:
            log.warning("commands wait", extra={"reason": health.reason})
        self._health = health

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until the reader stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


def _counted_bytes(raw: RawCommand) -> int:
    """Return how much of a part a command takes. A large one is stored without being decoded, unless it comes alone."""
    return raw.size if raw.size <= LARGE_BYTES else 0


def _may_divide(error: Exception) -> bool:
    """Return whether fewer commands may succeed: the error is no fault of the environment, and the cursor not lost."""
    return blame(error) not in OF_ENVIRONMENT and not isinstance(error, LostCursorError)

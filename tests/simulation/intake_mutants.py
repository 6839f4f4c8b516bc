"""Mutants of the intake that each simulation with faults must find."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.faults import FaultyLog
from timer_service.adapters.sqlite.statements import Statements
from timer_service.core.events import outbox
from timer_service.core.intake import apply, commit, cursor, reader, waiting, waiting_rows
from timer_service.core.intake.commit import Commits
from timer_service.core.intake.crash_care import CrashCare
from timer_service.core.ports.database import Transaction
from timer_service.core.ports.log import LogCursor, Opening
from timer_service.core.ports.sql import load_sql
from timer_service.core.values.message import Message
from timer_service.core.values.raw_command import RawCommand

Mutate = Callable[[pytest.MonkeyPatch], None]


def change_statement(patch: pytest.MonkeyPatch, file: str, name: str, old: str, new: str = "") -> None:
    """Let SQLite run a statement of a `.sql` file with `new` in place of `old`. Its comment identifies it."""
    package, _, file_name = f"timer_service/{file}.sql".rpartition("/")
    text = load_sql(package.replace("/", "."), file_name)[name]
    assert old in text
    comment = text.partition("\n")[0]
    for method in ("fetch", "fetch_each", "executemany"):
        run = getattr(Statements, method)

        async def run_changed(self: Statements, sql: str, *arguments: Any, run: Any = run) -> Any:
            return await run(self, sql.replace(old, new) if sql.startswith(comment) else sql, *arguments)

        patch.setattr(Statements, method, run_changed)


def cursor_moved_before_the_effects(patch: pytest.MonkeyPatch) -> None:
    """The cursor is moved in an own transaction, before the commands are applied."""
    of_log = Commits.of_log

    async def move_and_apply(self: Any, decoded: Any, later: Any, last: Any) -> Any:
        moved = self.place.cursor._replace(sequence=last.position.sequence, stored_at=last.stored_at)
        await self.keep(self.place._replace(cursor=moved))
        return await of_log(self, decoded, later, last)

    patch.setattr(Commits, "of_log", move_and_apply)


def cursor_moved_after_the_effects(patch: pytest.MonkeyPatch) -> None:
    """The cursor is moved in an own transaction, after the commands are applied."""
    of_log, move = Commits.of_log, cursor.move

    async def apply_and_move(self: Any, decoded: Any, later: Any, last: Any) -> Any:
        before = self.place.cursor

        async def stay(tx: Any, place: Any, now: int) -> Any:
            return (await move(tx, place._replace(cursor=before), now))._replace(cursor=place.cursor)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(cursor, "move", stay)
            done = await of_log(self, decoded, later, last)
        await self.keep(self.place)
        return done

    patch.setattr(Commits, "of_log", apply_and_move)


def cursor_compared_with_nothing(patch: pytest.MonkeyPatch) -> None:
    """A reader does not notice that another one has moved the cursor."""
    change_statement(patch, "core/intake/cursor", "move", " AND revision = :revision")


def waiting_tenant_applied_directly(patch: pytest.MonkeyPatch) -> None:
    """Commands of a tenant whose older commands wait are applied at once."""
    divide = waiting.divide
    patch.setattr(reader, "divide", lambda batch, _waiting, *rest: divide(batch, (), *rest))


def commands_behind_a_left_one_applied_directly(patch: pytest.MonkeyPatch) -> None:
    """A command whose body was left in the log waits, and those of its tenant behind it do not."""

    def divide(batch: Sequence[RawCommand], *rest: Any) -> waiting.Shares:
        whole = [raw for raw in batch if not raw.left_bytes]
        return divide_in_order(whole, *rest)._replace(later=[raw for raw in batch if raw.left_bytes])

    divide_in_order = waiting.divide
    patch.setattr(reader, "divide", divide)


def stored_in_reverse(patch: pytest.MonkeyPatch) -> None:
    """The commands of a batch that wait are stored newest first."""
    patch.setattr(commit, "rows_of", lambda raws: waiting_rows.rows_of(list(raws)[::-1]))


def waiting_rows_ordered_by_time(patch: pytest.MonkeyPatch) -> None:
    """The row that may be applied first comes first, also if an older one of its tenant is tried later."""
    rows, by_time = "core/intake/waiting_rows", "ORDER BY available_at, first_sequence"
    change_statement(patch, rows, "first", "ORDER BY epoch, first_sequence", by_time)
    change_statement(patch, rows, "tenants", "MAX(available_at)", "MIN(available_at)")


def waiting_rows_ordered_without_epoch(patch: pytest.MonkeyPatch) -> None:
    """Commands of a new log come before those of the old one, whose sequences are greater."""
    by_epoch, by_sequence = "ORDER BY epoch, first_sequence", "ORDER BY first_sequence"
    change_statement(patch, "core/intake/waiting_rows", "first", by_epoch, by_sequence)


def given_up_after_one_death(patch: pytest.MonkeyPatch) -> None:
    """A command that was being applied when the process died is not tried again."""
    patch.setattr(CrashCare, "gives_up", staticmethod(lambda row: row.deaths > 0))


def dead_letter_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """Dead letters are stored in an own transaction, after that of the cursor."""
    held: list[Callable[[Transaction], Any]] = []

    async def hold(_tx: Transaction, letters: Sequence[Message], now: int) -> None:
        held[:] = [lambda tx: outbox.add_dead_letters(tx, letters, now)]

    patch.setattr(apply, "outbox", SimpleNamespace(add=outbox.add, add_dead_letters=hold))
    for name in ("of_log", "of_waiting"):
        write = getattr(Commits, name)

        async def write_and_add(self: Any, *arguments: Any, write: Any = write) -> Any:
            held.clear()
            done = await write(self, *arguments)
            for add in held:
                await self.change(add)
            return done

        patch.setattr(Commits, name, write_and_add)


def waiting_row_deleted_in_own_transaction(patch: pytest.MonkeyPatch) -> None:
    """Commands that waited are applied in one transaction, and their rows deleted in the next one."""
    of_waiting, advance = Commits.of_waiting, waiting_rows.advance
    taken: list[tuple[Any, int]] = []

    async def remember(_tx: Transaction, row: Any, number: int) -> None:
        taken.append((row, number))

    async def apply_and_delete(self: Any, rows: Any, decoded: Any) -> Any:
        taken.clear()
        done = await of_waiting(self, rows, decoded)

        async def delete(tx: Transaction) -> None:
            for row, number in taken:
                await advance(tx, row, number)

        await self.change(delete)
        return done

    patch.setattr(commit, "waiting_rows", SimpleNamespace(**{**vars(waiting_rows), "advance": remember}))
    patch.setattr(Commits, "of_waiting", apply_and_delete)


def other_log_read_from_its_end(patch: pytest.MonkeyPatch) -> None:
    """After the log was replaced, reading goes on at its end."""
    open_log = FaultyLog.open

    async def open_at_the_end(self: FaultyLog, before: LogCursor | None, owner: str) -> Opening:
        opening = await open_log(self, before, owner)
        if before is None or opening.cursor.epoch == before.epoch:
            return opening
        end = (await self.end())._replace(epoch=opening.cursor.epoch)
        await open_log(self, end, owner)
        return opening._replace(cursor=end)

    patch.setattr(FaultyLog, "open", open_at_the_end)


INTAKE_MUTANTS: Sequence[Mutate] = (
    cursor_moved_before_the_effects,
    cursor_moved_after_the_effects,
    cursor_compared_with_nothing,
    waiting_tenant_applied_directly,
    commands_behind_a_left_one_applied_directly,
    stored_in_reverse,
    waiting_rows_ordered_by_time,
    waiting_rows_ordered_without_epoch,
    dead_letter_outside_the_transaction,
    waiting_row_deleted_in_own_transaction,
    other_log_read_from_its_end,
)

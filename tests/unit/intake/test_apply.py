"""Handlers that leave commands to a later transaction, beside handlers that apply them."""

from collections.abc import Callable, Collection, Sequence
from typing import cast

import pytest

from tests.harness.builders import cancel_timer, command_address, raw_command, schedule_timer
from tests.harness.clock import NOW, ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.reading import catch_up
from tests.harness.wiring import make_parts
from timer_service.adapters.memory import MemoryBroker
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.apply import Decoded, Done, Handlers, LeftTooLateError, build_letters
from timer_service.core.intake.decoder import decode
from timer_service.core.intake.route import CommandResult, Handle, Route
from timer_service.core.ports.database import Transaction
from timer_service.core.values.message import MAX_MESSAGE_BYTES, Command, Position
from timer_service.timers.messages import CancelTimer, ScheduleTimer

BODIES: dict[str, Callable[[str, str], bytes]] = {
    "S": lambda call, tenant: schedule_timer(call, tenant=tenant),
    "C": lambda call, tenant: cancel_timer(call, tenant=tenant),
    "X": lambda _call, _tenant: b"not JSON",
}
NO_TRANSACTION = cast("Transaction", None)
"""Handlers of these tests write nothing."""


async def wake(_at: int, _loop: str | None) -> None:
    """Wake no loop."""


async def wake_nothing() -> None:
    """Wake no loop."""


def leaving(left: Collection[int]) -> Handle:
    """Return a handler that leaves some commands, by their numbers."""

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult | None]:
        return [None if each.position.sequence in left else CommandResult("done") for each in commands]

    return handle


def handlers(left: Collection[int] = ()) -> Handlers:
    """Return handlers of which the one of ScheduleTimer leaves some commands."""
    return Handlers([Route((ScheduleTimer,), leaving(left), wake), Route((CancelTimer,), leaving(()), wake)])


async def decoded(text: str, using: Handlers) -> list[Decoded]:
    """Return a command for each word: `aS` is a ScheduleTimer of tenant a, `bC` a CancelTimer, `aX` is invalid."""
    raws = [
        raw_command(
            BODIES[kind](f"call-{number}", tenant),
            address=command_address(tenant, "cancel-timer" if kind == "C" else "schedule-timer"),
            position=Position(1, number),
        )
        for number, word in enumerate(text.split(), 1)
        for tenant, kind in [(word[0], word[1])]
    ]
    return list(zip(raws, await decode(raws, using.payloads, lambda: 0), strict=True))


def numbers(done: Done) -> tuple[list[int], list[int], list[int]]:
    """Return the numbers of the commands that were applied, rejected and left."""
    return (
        sorted(raw.position.sequence for group in done.applied for raw in group.raws),
        [each.raw.position.sequence for each in done.rejected],
        [raw.position.sequence for raw in done.left],
    )


@pytest.mark.parametrize(
    ("text", "left", "applied", "later"),
    [
        ("aS aC bS aC", [], [1, 2, 3, 4], []),
        ("aS bS aS bC", [3], [1, 2, 4], [3]),
        ("aS aC bS aS bC", [4], [1, 2, 3, 5], [4]),
        ("aS bS cS bS cX bX", [2, 4], [1, 3], [2, 4, 6]),
        ("aS bX bS cS", [3, 4], [1], [3, 4]),
    ],
)
async def test_commands_that_are_left(
    sqlite: SqliteDatabase, text: str, left: list[int], applied: list[int], later: list[int]
) -> None:
    """With a command that its handler leaves, all later ones of its tenant are left, also rejected ones."""
    using = handlers(left)
    given = await decoded(text, using)
    letters = await build_letters(given, MAX_MESSAGE_BYTES)
    rejected = [number for number, word in enumerate(text.split(), 1) if "X" in word and number not in later]
    async with sqlite.transaction() as tx:
        done = await using.apply(tx, given, letters, NOW)
    assert numbers(done) == (applied, rejected, later)
    for table in ("dead_letters", "outbox"):
        assert len(await sqlite.reader.fetch(f"SELECT message FROM {table}")) == len(rejected), table
    for group in done.applied:
        assert [each.position for each in group.raws] == [each.position for each in group.commands]
        assert len(group.results) == len(group.raws)


@pytest.mark.parametrize(
    ("text", "left", "kept"),
    [
        ("aS aS aC", [2], [1, 2]),
        ("aS aS bC aC bC", [2], [1, 2, 3, 5]),
        ("bS aS aS aC bS bC", [3, 5], [1, 2, 3, 5]),
        ("aS bS aS aX aC bS", [3], [1, 2, 3, 6]),
        ("aS aS aC aC", [1], [1, 2, 3]),
    ],
)
async def test_a_command_that_is_left_too_late(text: str, left: list[int], kept: list[int]) -> None:
    """If a later command of the tenant was applied, nothing may commit. Another transaction tries the first ones."""
    using = handlers(left)
    given = await decoded(text, using)
    with pytest.raises(LeftTooLateError) as error:
        await using.apply(NO_TRANSACTION, given, {}, NOW)
    assert [raw.position.sequence for raw, _ in error.value.kept(given)] == kept


async def test_a_handler_that_leaves_everything() -> None:
    """A handler must apply at least one command. Otherwise its commands would be left for ever."""
    using = handlers([1, 2])
    with pytest.raises(AssertionError, match="every command was left"):
        await using.apply(NO_TRANSACTION, await decoded("aS bS aC", using), {}, NOW)


async def test_order_of_the_routes() -> None:
    """Handlers run in the order of the routes, whatever the log has first, so that instances lock in one order."""
    ran: list[str] = []

    def recording(name: str) -> Handle:
        async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult | None]:
            ran.append(name)
            return [CommandResult("done")] * len(commands)

        return handle

    routes = [Route((ScheduleTimer,), recording("first"), wake), Route((CancelTimer,), recording("second"), wake)]
    using = Handlers(routes)
    await using.apply(NO_TRANSACTION, await decoded("aC bS cC", using), {}, NOW)
    assert ran == ["first", "second"]


async def test_second_transaction(sqlite: SqliteDatabase) -> None:
    """A transaction in which a command was left too late is repeated with fewer. Each handler keeps the order."""
    applied: list[tuple[str, str, int]] = []
    most = 2

    async def record(tx: Transaction, commands: Sequence[Command]) -> None:
        found = [(each.tenant, each.payload.type, each.position.sequence) for each in commands]
        tx.on_commit(lambda: applied.extend(sorted(found, key=lambda each: each[2])))

    async def schedule(tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult | None]:
        await record(tx, commands[:most])
        return [CommandResult("done") if number < most else None for number in range(len(commands))]

    async def cancel(tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult | None]:
        await record(tx, commands)
        return [CommandResult("done")] * len(commands)

    broker = MemoryBroker()
    words = ["aS", "bS", "aS", "aC", "bC", "aS", "bX", "aC", "cC", "bS"]
    for number, word in enumerate(words, 1):
        tenant, kind = word[0], word[1]
        address = command_address(tenant, "cancel-timer" if kind == "C" else "schedule-timer")
        broker.send(address, BODIES[kind](f"call-{number}", tenant))
    metrics = RecordingMetrics()
    parts = make_parts(sqlite, broker, ManualClock(), metrics)
    routes = [Route((ScheduleTimer,), schedule, wake), Route((CancelTimer,), cancel, wake)]
    await catch_up(parts.reader(routes, wake_nothing))
    for word in sorted({*words} - {"bX"}):
        found = [number for tenant, kind, number in applied if (tenant, kind[0]) == (word[0], word[1])]
        assert found == [number for number, each in enumerate(words, 1) if each == word]
    assert metrics.dead_letters == {"INVALID_JSON": 1}
    assert await sqlite.reader.fetch("SELECT tenant_id FROM waiting_commands") == []

"""Handlers that have no room for all commands, beside handlers that apply them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from tests.harness.builders import cancel_timer, command_address, raw_command, schedule_timer
from tests.harness.clock import NOW
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.intake.apply import Applied, Decoded, Done, Handlers, build_letters
from timer_service.core.intake.apply import wake as wake_loops
from timer_service.core.intake.batch import MOST_DATA, load_in_portions
from timer_service.core.intake.decoder import decode
from timer_service.core.intake.rejection import Rejected
from timer_service.core.intake.route import CommandResult, Handle, Lane, Route, TooManyCommandsError
from timer_service.core.ports.database import Transaction
from timer_service.core.values.address import MAX_MESSAGE_BYTES
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Command, Position
from timer_service.timers.messages import CancelTimer, ScheduleTimer

BODIES: dict[str, Callable[[str, str], bytes]] = {
    "S": lambda call, tenant: schedule_timer(call, tenant=tenant),
    "C": lambda call, tenant: cancel_timer(call, tenant=tenant),
    "X": lambda _call, _tenant: b"not JSON",
}
NO_TRANSACTION = cast("Transaction", None)
"""Handlers of these tests write nothing."""


async def wake(*_: object) -> None:
    """Wake no loop."""


def applying(most: int) -> Handle:
    """Return a handler that applies so many commands at most."""

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        return [CommandResult("done")] * min(most, len(commands))

    return handle


def handlers(schedules: int, cancels: int) -> Handlers:
    """Return handlers that apply so many ScheduleTimers and CancelTimers at most."""
    return Handlers(
        [Route((ScheduleTimer,), applying(schedules), wake), Route((CancelTimer,), applying(cancels), wake)]
    )


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
    return list(zip(raws, await decode(raws, using.payloads), strict=True))


def numbers(done: Done) -> tuple[list[int], list[int]]:
    """Return the numbers of the commands that were applied, and of those that were rejected."""
    return (
        sorted(raw.position.sequence for group in done.applied for raw in group.raws),
        [each.raw.position.sequence for each in done.rejected],
    )


@pytest.mark.parametrize(
    ("text", "schedules", "cancels", "number"),
    [
        ("aS aC bS aC", 9, 9, 4),
        ("aS aC bS aC bX", 2, 2, 5),
        ("aS aC bX bS aC bX", 1, 9, 3),
        ("aS aC aC bS bX", 9, 2, 5),
        ("aS bS aC bX aC", 9, 1, 4),
        ("aX bX", 1, 1, 2),
    ],
)
async def test_the_first_commands_are_applied(
    sqlite: SqliteDatabase, text: str, schedules: int, cancels: int, number: int
) -> None:
    """From the first command on for which a handler has no room, none is applied or rejected."""
    using = handlers(schedules, cancels)
    given = await decoded(text, using)
    letters = await build_letters(given, MAX_MESSAGE_BYTES)
    async with sqlite.transaction() as tx:
        done = await using.apply(tx, given, letters, NOW)
    rejected = [place for place, word in enumerate(text.split()[:number], 1) if "X" in word]
    applied = [place for place in range(1, number + 1) if place not in rejected]
    assert (done.number, *numbers(done)) == (number, applied, rejected)
    for table in ("dead_letters", "outbox"):
        assert len(await sqlite.reader.fetch(f"SELECT message FROM {table}")) == len(rejected), table
    for group in done.applied:
        assert [each.position for each in group.raws] == [each.position for each in group.commands]
        assert len(group.results) == len(group.raws)


@pytest.mark.parametrize(
    ("text", "schedules", "cancels", "number"), [("aC aS aC bS", 9, 1, 2), ("aS aC bC aS", 2, 1, 2)]
)
async def test_too_many_commands(text: str, schedules: int, cancels: int, number: int) -> None:
    """If another handler has applied a command behind one without room, nothing may commit."""
    using = handlers(schedules, cancels)
    with pytest.raises(TooManyCommandsError) as error:
        await using.apply(NO_TRANSACTION, await decoded(text, using), {}, NOW)
    assert error.value.number == number


async def test_order_of_the_routes() -> None:
    """Handlers run in the order of the routes, whatever the log has first, so that instances lock in one order."""
    ran: list[str] = []

    async def handle(_tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        ran.append(commands[0].payload.type)
        return [CommandResult("done")] * len(commands)

    using = Handlers([Route((ScheduleTimer,), handle, wake), Route((CancelTimer,), handle, wake)])
    await using.apply(NO_TRANSACTION, await decoded("aC bS cC", using), {}, NOW)
    assert ran == ["ScheduleTimer", "CancelTimer"]


async def test_who_is_woken() -> None:
    """Each loop is woken for its earliest row. Workers are offered rows of lanes; a named loop is woken too."""
    woken: list[tuple[int, str | None]] = []
    offered: list[tuple[Lane, int]] = []

    async def record(at: int, loop: str | None) -> None:
        woken.append((at, loop))

    lane = ("acme", "queue", "type")
    results = [
        CommandResult("without a row"),
        CommandResult("later", 5),
        CommandResult("at once", 0),
        CommandResult("for workers", 3, lane=lane),
        CommandResult("for both", 8, lane=lane, loop="deadlines"),
        CommandResult("for a loop", 7, loop="deadlines"),
    ]
    route = Route((ScheduleTimer,), applying(9), record, lambda *offer: offered.append(offer))
    await wake_loops([Applied(route, [], [], results)])
    assert (woken, offered) == ([(0, None), (7, "deadlines")], [(lane, 3), (lane, 8)])


async def test_other_tasks_run_between_dead_letters() -> None:
    """Building many dead letters does not hold up other tasks."""
    other = asyncio.Event()
    asyncio.get_running_loop().call_soon(other.set)
    rejected = [Rejected(raw_command(b"x" * 10_000), Rejection(Code.INTERNAL, "no"), None) for _ in range(3)]
    await build_letters([(each.raw, each) for each in rejected], MAX_MESSAGE_BYTES)
    assert other.is_set()


async def test_rows_are_loaded_in_portions() -> None:
    """All rows are loaded, more of them in each portion. The first one is loaded, however large it is."""
    portions: list[int] = []

    async def load(keys: Sequence[int]) -> dict[int, int]:
        portions.append(len(keys))
        return dict.fromkeys(keys, 1)

    found, left = await load_in_portions(range(300), load, lambda size: size, 200)
    assert (list(found), left, portions) == (list(range(300)), frozenset(), [64, 128, 108])
    found, left = await load_in_portions([7, 8, 9], load, lambda _size: MOST_DATA + 1)
    assert (list(found), sorted(left)) == ([7], [8, 9])

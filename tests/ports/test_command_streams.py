"""The history of the command stream in a database that several instances use."""

from collections.abc import Sequence

import pytest

from tests.harness.builders import delivery
from timer_service.core.intake.command_streams import CommandHistory, advance
from timer_service.core.intake.epochs import StoredCommand, StreamState
from timer_service.core.ports.database import Database
from timer_service.core.ports.transactions import in_transaction
from timer_service.core.values.errors import ChangedStreamError
from timer_service.core.values.message import Position

COMMANDS = [StoredCommand(number, 1000 + number) for number in range(1, 21)]


def state(last: int, created: str = "first") -> StreamState:
    return StreamState(created, 500, 1, last)


async def find(sequence: int) -> StoredCommand | None:
    return next((each for each in COMMANDS if each.sequence >= sequence), None)


async def handle(database: Database, positions: Sequence[Position]) -> None:
    """Record handled commands, as the consumer does."""
    deliveries = [delivery(position=position, stored_at=1000 + position.sequence) for position in positions]
    await in_transaction(database, lambda tx: advance(tx, deliveries))


async def test_another_instance_handles_commands_meanwhile(store: Database) -> None:
    """An instance that joins while another one works finds the same epoch, at any moment."""
    first, second = CommandHistory(store), CommandHistory(store)

    async def look_early() -> StreamState:
        return state(5)

    epochs = await first.recognize(look_early, find)
    await handle(store, [epochs.position(number) for number in range(1, 6)])

    async def look_while_the_other_works() -> StreamState:
        seen = state(10)
        await handle(store, [epochs.position(number) for number in range(6, 16)])
        return seen

    found = await second.recognize(look_while_the_other_works, find)
    assert found.position(11) == epochs.position(11)
    assert (await first.recognize(look_early, find)).position(11) > epochs.position(11), "a real rollback is noticed"


async def test_commands_under_an_old_epoch(store: Database) -> None:
    """Commands of a subscription that does not know the newest part of the history are not handled."""

    async def look() -> StreamState:
        return state(5)

    async def look_at_another() -> StreamState:
        return state(3, "second")

    async def find_nothing(_sequence: int) -> None:
        return None

    first = await CommandHistory(store).recognize(look, find)
    known = delivery(position=first.position(1), stored_at=1001, newest_epoch=first.newest.epoch)
    await in_transaction(store, lambda tx: advance(tx, [known]))
    second = await CommandHistory(store).recognize(look_at_another, find_nothing)
    new = delivery(position=second.position(3), newest_epoch=second.newest.epoch)
    old = delivery(position=first.position(1), newest_epoch=second.newest.epoch)
    await in_transaction(store, lambda tx: advance(tx, [new, old]))
    with pytest.raises(ChangedStreamError):
        await in_transaction(store, lambda tx: advance(tx, [new, known]))


async def test_older_command_is_handled_later(store: Database) -> None:
    """The newest handled command stays the newest when an older one is delivered again."""
    history = CommandHistory(store)

    async def look() -> StreamState:
        return state(20)

    epochs = await history.recognize(look, find)
    await handle(store, [epochs.position(9)])
    await handle(store, [epochs.position(3)])

    async def look_after_a_rollback() -> StreamState:
        return state(5)

    assert (await history.recognize(look_after_a_rollback, find)).newest.epoch > epochs.newest.epoch


async def test_older_command_at_the_end_of_a_batch(store: Database) -> None:
    """The newest command of a transaction is recorded, wherever it is in the batch."""
    history = CommandHistory(store)

    async def look() -> StreamState:
        return state(20)

    epochs = await history.recognize(look, find)
    await handle(store, [epochs.position(7), epochs.position(9), epochs.position(3)])

    async def look_after_a_rollback() -> StreamState:
        return state(8)

    assert (await history.recognize(look_after_a_rollback, find)).newest.first_sequence == 9


async def test_concurrent_joins(store: Database) -> None:
    """Instances that meet a new stream at the same time agree on its epoch."""

    async def look() -> StreamState:
        return state(3, "second")

    first, second = CommandHistory(store), CommandHistory(store)

    async def look_after_the_other() -> StreamState:
        await second.recognize(look, find)
        return state(3, "second")

    found = await first.recognize(look_after_the_other, find)
    assert found == await second.recognize(look, find)
    assert len(found.parts) == 1


async def test_installation(store: Database) -> None:
    """The identity of a database is chosen once."""
    assert await CommandHistory(store).installation() == await CommandHistory(store).installation()


async def test_the_stream_is_replaced_while_an_instance_joins(store: Database) -> None:
    """An instance looks again if another one has met a newer stream meanwhile. It stores nothing about the old one."""
    first, second = CommandHistory(store), CommandHistory(store)
    newer = StreamState("newer", 700, 1, 3)
    looks = iter([StreamState("older", 600, 1, 3), newer])

    async def look_at_newer() -> StreamState:
        return newer

    async def look() -> StreamState:
        await second.recognize(look_at_newer, find)
        return next(looks)

    assert (await first.recognize(look, find)).newest.created == "newer"

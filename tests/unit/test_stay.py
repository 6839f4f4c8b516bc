"""What a stay knows about the commands that have arrived in it."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from tests.harness.builders import command_address, delivery
from timer_service.adapters.nats import returned
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.adapters.nats.headers import RawHeaders
from timer_service.adapters.nats.stay import Handle, Stay
from timer_service.adapters.nats.stored import Receipt, StoredMessage
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.intake.epochs import Epochs, Part, Received, StoredCommand
from timer_service.core.values.budget import DEFAULT_BUDGET
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Position

EPOCHS = Epochs((Part(7, "created", 1, 0, 0),))


def make_stay() -> Stay:
    stay = Stay(
        1,
        EPOCHS,
        cast("DurableConsumer", None),
        Subjects("timer"),
        messages=["schedule-timer"],
        batch_bytes=DEFAULT_BUDGET.batch,
        ready=asyncio.Event(),
    )
    stay.lane.hold(60)
    return stay


def test_newest_command() -> None:
    """The newest command is the newest in the buffer or read ahead. If the stream loses it, a new stay must begin."""
    stay = make_stay()
    found = [stay.newest]
    receipt = Receipt(attempt=1, sequence=80, delivery=1, stored_at=1080, waiting=0)
    stay.buffer.append(StoredMessage("timer.cmd.v1.acme.cancel-timer", b"", RawHeaders(b""), receipt, "reply", 30))
    found.append(stay.newest)
    stay.lane.newest = StoredCommand(3001, 4001)
    found.append(stay.newest)
    assert found == [None, Received(7, StoredCommand(80, 1080)), Received(7, StoredCommand(3001, 4001))]


def command(sequence: int, tenant: str, handle: Handle | None = None) -> Delivery:
    found = delivery(address=command_address(tenant), position=Position(7, sequence))
    found.handle = handle
    return found


async def test_commands_put_back_and_commands_read_ahead_take_turns() -> None:
    """While commands wait that were put back, others are not handed out before them twice in a row."""
    stay = make_stay()
    stay.put_back([command(1, "slow", Handle("reply", 1))])
    ahead = []
    for sequence in range(2, 5):
        stay.lane._read.append(command(sequence, f"tenant-{sequence}"))
        ahead.append([each.position.sequence for each in stay.take_ahead(1)])
    assert ahead == [[2], [], [3]]


async def test_commands_put_back_are_not_overtaken_again_and_again() -> None:
    """Each batch of others has some left that are put back too. These take turns with the one that waits for longer."""
    stay = make_stay()
    stay.put_back([command(1, "slow", Handle("reply", 1))])
    handled: list[int] = []
    for first in range(10, 50, 10):
        for sequence in range(first, first + 4):
            stay.lane._read.append(command(sequence, f"tenant-{sequence}"))
        for _ in range(2):
            batch = stay.take_ahead(4) or stay.take(4)[0]
            handled += [each.position.sequence for each in batch[:2]]
            stay.put_back(batch[2:])
    stay.lane.close()
    assert handled.index(1) == 2


async def test_tenants_of_commands_put_back_take_turns() -> None:
    """Each batch handles two commands. Others that are read ahead do not keep a tenant from its turn for long."""
    stay = make_stay()
    tenants = [f"tenant-{number}" for number in range(20)]
    stay.put_back([command(number, tenant, Handle(f"{number}", 1)) for number, tenant in enumerate(tenants, 1)])
    handled: list[str] = []
    for first in range(100, 1100, 50):
        tenants.sort(
            key=lambda tenant: [*reversed(handled), tenant].index(tenant), reverse=True
        )  # those that wait for longest first
        for number, tenant in enumerate(tenants, first):
            if not stay.returned.holds(tenant):
                stay.lane._read.append(command(number, tenant))
        for _ in range(2):
            batch = stay.take_ahead(50) or stay.take(10)[0]
            stay.record_handled(batch[:2])
            handled += [each.address.tenant for each in batch[:2]]
            stay.put_back(batch[2:])
    stay.lane.close()
    assert min(handled.count(tenant) for tenant in tenants) >= 2


@pytest.mark.parametrize("names", [10_000, 100], ids=["new ones", "the same ones again"])
async def test_many_names_do_not_keep_a_tenant_from_its_turn(names: int) -> None:
    """Commands under ever other names are read ahead, as many as are handled. Tenants that wait get their turns."""
    stay = make_stay()
    waiting = [command(number, f"tenant-{number % 20}", Handle(f"{number}", 1)) for number in range(1, 101)]
    stay.put_back(waiting)
    handled: list[str] = []
    for sequence in range(1000, 3000, 5):
        for each in range(sequence, sequence + 5):
            if not stay.returned.holds(name := f"name-{each % names}"):
                stay.lane._read.append(command(each, name))
        batch = stay.take_ahead(50) or stay.take(50)[0]
        stay.record_handled(batch[:5])
        handled += [each.address.tenant for each in batch[:5]]
        stay.put_back(batch[5:])
    stay.lane.close()
    assert [handled.count(f"tenant-{number}") for number in range(20)] == [5] * 20


async def test_tenants_whose_commands_fail_take_turns_too() -> None:
    """The commands of many tenants fail. Another tenant, which was served before, comes after one of each."""
    stay = make_stay()
    handled, *others = (command(number, "acme", Handle(f"{number}", 1)) for number in range(1, 4))
    failing = [command(number, f"failing-{number % 20}", Handle(f"{number}", 1)) for number in range(10, 210)]
    stay.record_handled([handled])
    stay.put_back([*others, *failing])
    turns = 0
    while (batch := stay.take(10)[0])[0].address.tenant != "acme":
        turns += 1
        stay.retry(batch[:1], timedelta(seconds=1))
        stay.put_back(batch[1:])
    stay.lane.close()
    assert turns == 20


async def test_a_large_command_that_was_put_back_is_not_overtaken_again_and_again() -> None:
    """Small commands of the buffer overtake it, and some of each batch are put back. They do not stay before it."""
    stay = make_stay()
    large = command(2, "large", Handle("2", 1))
    large.size = DEFAULT_BUDGET.batch
    small = command(1, "small", Handle("1", 1))
    small.size = 1
    stay.put_back([small, large])
    handled: list[int] = []
    for sequence in range(10, 20, 2):
        stay.buffer.append(message(sequence, 10))
        stay.buffer.append(message(sequence + 1, 10))
        batch = stay.take(50)[0]
        stay.record_handled(batch[:1])
        handled.append(batch[0].position.sequence)
        stay.put_back(batch[1:])
    stay.lane.close()
    assert handled.index(2) <= 2


@pytest.mark.parametrize(("count", "ahead"), [(1999, [9000]), (2000, [])])
async def test_many_commands_put_back_come_first(count: int, ahead: list[int]) -> None:
    """While 2,000 commands wait that were put back, no others are handed out before them."""
    stay = make_stay()
    stay.put_back([command(sequence, "slow", Handle("reply", 1)) for sequence in range(1, count + 1)])
    stay.lane._read.append(command(9000, "other"))
    assert [each.position.sequence for each in stay.take_ahead(1)] == ahead


async def test_commands_put_back_again_and_again_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are taken and put back every moment are still reported as in progress every five seconds."""
    now = 1000.0
    monkeypatch.setattr(returned, "time", SimpleNamespace(monotonic=lambda: now))
    waiting = returned.Returned(DEFAULT_BUDGET.batch)
    renewed_at: list[float] = []
    while now < 1020:
        waiting.put(waiting.take(10) or [command(1, "slow", Handle("reply", 1))])
        if waiting.must_renew(soon=False):
            renewed_at.append(now)
        now += 0.5
    assert renewed_at == [1005, 1010, 1015]


async def test_tenants_of_commands_put_back() -> None:
    """Commands of a tenant are read ahead again as soon as none of them is put back any more."""
    stay = make_stay()
    stay.put_back([command(number, "slow", Handle("reply", 1)) for number in (1, 2)])
    found = [stay.returned.holds("slow")]
    for _ in range(2):
        stay.returned.take(1)
        found.append(stay.returned.holds("slow"))
    assert found == [True, True, False]


def message(sequence: int, size: int, waiting: int = 0) -> StoredMessage:
    """Return a command of `size` bytes that the consumer delivers while `waiting` others wait."""
    receipt = Receipt(attempt=1, sequence=sequence, delivery=sequence, stored_at=1000 + sequence, waiting=waiting)
    return StoredMessage("timer.cmd.v1.acme.cancel-timer", b"", RawHeaders(b""), receipt, f"reply-{sequence}", size)


async def test_bytes_of_a_mixed_batch() -> None:
    """Commands that were put back and commands of the buffer share the bytes of a batch."""
    stay = make_stay()
    back = command(1, "acme", Handle("reply", 1))
    back.size = DEFAULT_BUDGET.batch // 2
    stay.put_back([back])
    stay.buffer.append(message(2, DEFAULT_BUDGET.batch // 2))
    stay.buffer.append(message(3, 70_000))
    batches = [stay.take(10)[0] for _ in range(2)]
    stay.lane.close()
    assert [[each.position.sequence for each in batch] for batch in batches] == [[1, 2], [3]]


def sized(sequence: int, size: int) -> Delivery:
    found = command(sequence, "slow", Handle(f"reply-{sequence}", 1))
    found.size = size
    return found


def test_commands_put_back_are_limited_in_bytes() -> None:
    """Nothing is handed out before commands put back that have the bytes of two batches, until some are taken."""
    waiting = returned.Returned(100)
    waiting.put([sized(1, 100)])
    found = [waiting.is_full]
    waiting.put([sized(2, 100)])
    found.append(waiting.is_full)
    waiting.take(1)
    found.append(waiting.is_full)
    assert found == [False, True, False]


def test_commands_put_back_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is handed out before very many commands that were put back, however small they are."""
    monkeypatch.setattr(returned, "_MOST_COMMANDS", 2)
    waiting = returned.Returned(100)
    found = []
    for sequence in (1, 2):
        waiting.put([sized(sequence, 1)])
        found.append(waiting.is_full)
    assert found == [False, True]


def test_commands_are_renewed_soon_if_they_would_come_again_soon() -> None:
    """While `ack_wait` is shortened, the server is told each time that commands are in progress."""
    waiting = returned.Returned(100)
    found = [waiting.must_renew(soon=True)]
    waiting.put([sized(1, 1)])
    found += [waiting.must_renew(soon=soon) for soon in (False, True, True)]
    assert found == [False, False, True, True]


async def test_commands_of_an_earlier_stay_are_not_put_back() -> None:
    """A command that was handed out in another stay, or read ahead in another epoch, is dropped when it comes back."""
    stay = make_stay()
    other_epoch = delivery(address=command_address("slow"), position=Position(6, 2))
    stay.put_back([command(1, "slow", Handle("reply", 2)), other_epoch, command(3, "slow", Handle("reply", 1))])
    assert [each.position.sequence for each in stay.returned.deliveries] == [3]


async def test_what_the_lane_observes() -> None:
    """Behind a batch are the commands put back, those in the buffer, and those that the consumer has not delivered."""
    stay = make_stay()
    for sequence, waiting in ((1, 12), (2, 11), (3, 10)):
        stay.buffer.append(message(sequence, 10, waiting))
    batches = [stay.take(2)[0]]
    observed = [(stay.lane._last_batch[1:], stay.lane._search._end)]
    stay.put_back(batches[0])
    observed.append((stay.lane._last_batch[1:], stay.lane._search._end))
    batches.append(stay.take(1)[0])
    observed.append((stay.lane._last_batch[1:], stay.lane._search._end))
    stay.lane.close()
    assert [[each.position.sequence for each in batch] for batch in batches] == [[1, 2], [1]]
    assert observed == [((2, 11), 13), ((0, 11), None), ((1, 12), None)]


@pytest.mark.parametrize(("count", "taken"), [(2, [1, 9]), (3, [1])])
async def test_no_command_overtakes_many_that_were_put_back(count: int, taken: list[int]) -> None:
    """Commands that were put back are limited in bytes, also if small commands of other tenants keep arriving."""
    stay = make_stay()
    stay.put_back([sized(sequence, DEFAULT_BUDGET.batch * 7 // 10) for sequence in range(1, count + 1)])
    stay.buffer.append(message(9, 1))
    batch, _ = stay.take(10)
    stay.lane.close()
    assert [each.position.sequence for each in batch] == taken


async def test_nothing_waits_behind_the_last_commands() -> None:
    """When the last commands were taken, nothing is behind them, also if others have overtaken them."""
    stay = make_stay()
    for sequence, size, waiting in ((1, DEFAULT_BUDGET.batch, 2), (2, DEFAULT_BUDGET.batch, 1)):
        stay.buffer.append(message(sequence, size, waiting))
    stay.buffer.append(message(3, 1)._replace(subject="timer.cmd.v1.other.cancel-timer"))
    batches = [stay.take(10)[0] for _ in range(2)]
    stay.lane.close()
    assert [[each.position.sequence for each in batch] for batch in batches] == [[1, 3], [2]]
    assert stay.lane._last_batch[1:] == (1, 0)


async def test_commands_read_ahead_come_first_if_there_were_none_before() -> None:
    """Commands that were put back wait for those that were read ahead, also if there was nothing to hand out before."""
    stay = make_stay()
    stay.put_back([command(1, "slow", Handle("reply", 1))])
    before = stay.take_ahead(1)
    stay.lane._read.append(command(2, "quick"))
    assert (before, [each.position.sequence for each in stay.take_ahead(1)]) == ([], [2])


async def test_commands_read_ahead_that_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that were read ahead and put back do not count as unhandled commands of the consumer's last batch."""
    stay = make_stay()
    stay.lane._last_batch = 1.0, 5, 7
    stay.lane._read.append(command(2, "quick"))
    stay.put_back(stay.take_ahead(1))
    assert stay.lane._last_batch == (1.0, 5, 7)


async def test_small_commands_overtake_those_of_another_tenant() -> None:
    """A small command that has arrived is handed out before commands of another tenant that still wait."""
    stay = make_stay()
    for number in range(1, 4):
        back = command(number, "slow", Handle(f"reply-{number}", 1))
        back.size = DEFAULT_BUDGET.batch // 2
        stay.put_back([*stay.returned.take(10), back])
    for number, tenant in ((4, "slow"), (5, "quick")):
        stay.buffer.append(message(number, 1)._replace(subject=f"timer.cmd.v1.{tenant}.cancel-timer"))
    batches = [stay.take(10)[0] for _ in range(2)]
    stay.lane.close()
    assert [[each.position.sequence for each in batch] for batch in batches] == [[1, 2, 5], [3, 4]]


async def test_a_command_that_is_delivered_again_keeps_its_place() -> None:
    """The server delivers a command of the buffer again, behind a large one. The next of its tenant stays after it."""
    stay = make_stay()
    large = message(3, DEFAULT_BUDGET.batch)._replace(subject="timer.cmd.v1.large.cancel-timer")
    for each in (message(1, 1), message(2, 1), large, message(1, 1)):
        stay.buffer.append(each)
    stay.put_back(stay.take(10)[0])
    stay.lane.close()
    assert [each.position.sequence for each in stay.returned.deliveries if each.size == 1] == [1, 2, 1]

"""The command log, on each broker: it is read in order from a cursor, and no command is skipped."""

import asyncio
from datetime import timedelta

import pytest

from tests.harness.broker_harness import BrokerHarness
from tests.harness.builders import command_address
from tests.harness.log_caller import MOST_BYTES, OWNER, PATIENCE_SECONDS, LogCaller, since
from timer_service.core.ports.log import CommandLog, LogBatch, LogCursor, LogUnavailableError


async def send(harness: BrokerHarness, *bodies: str, tenant: str = "acme") -> None:
    for body in bodies:
        await harness.send(command_address(tenant), body.encode(), {}, f"id-{body}")


async def opened(harness: BrokerHarness, overlap: timedelta = timedelta(0)) -> LogCaller:
    """Open the log at its beginning."""
    caller = LogCaller(await harness.open_log(overlap))
    await caller.open()
    return caller


async def continued(harness: BrokerHarness, caller: LogCaller, overlap: timedelta = timedelta(0)) -> LogCaller:
    """Open the log as another process does, at the cursor of a caller."""
    other = LogCaller(await harness.open_log(overlap), caller.cursor)
    await other.open()
    return other


async def test_a_command_is_complete(harness: BrokerHarness) -> None:
    """A command is read as it was sent, with its source, its position, and when it was stored."""
    caller = await opened(harness)
    await harness.send(command_address("tenant_1-A"), b"\x00 body\r\n", {"Timer-Reply-To": "_INBOX.a"}, "my-id")
    await harness.send(command_address("acme", "cancel-timer"), b"", {}, "second")
    while len(caller.commands) < 2:
        await caller.read()
    first, second = caller.commands
    assert (first.address, second.address.message) == (command_address("tenant_1-A"), "cancel-timer")
    assert (first.message_id, first.body, second.body) == ("my-id", b"\x00 body\r\n", b"")
    assert first.headers.get("Timer-Reply-To") == "_INBOX.a"
    assert "tenant_1-A" in first.source
    assert first.size >= len(first.source) + len(first.body) + len("_INBOX.a") + len("my-id")
    assert 0 < first.stored_at < second.stored_at
    assert first.position.epoch == second.position.epoch == caller.openings[0].cursor.epoch
    assert 0 < first.position.sequence < second.position.sequence


@pytest.mark.parametrize("limit", [1, 10])
async def test_batches_keep_order_and_limit(harness: BrokerHarness, limit: int) -> None:
    """Commands are read in their order. No batch has more than its limit, and each knows what is behind it."""
    bodies = [f"{number:02}" for number in range(25)]
    await send(harness, *bodies)
    caller = await opened(harness)
    behind = []
    while len(caller.commands) < 25:
        batch = await caller.read(limit)
        behind.append(batch.behind)
        assert 1 <= len(batch.commands) <= limit
        assert batch.behind >= 25 - len(caller.commands)
    assert (caller.bodies, behind[-1]) == (bodies, 0)


@pytest.mark.parametrize(
    ("size", "headers"), [(900_000, {}), (0, {f"{number:04}": "" for number in range(5_000)})], ids=["body", "headers"]
)
async def test_batches_are_bounded_by_bytes(harness: BrokerHarness, size: int, headers: dict[str, str]) -> None:
    """A batch never has more bytes than its limit, also if the limit in commands is high. All commands are read."""
    most = 2 * max(size, 45_000) + 1_000
    for number in range(20):
        await harness.send(command_address("acme"), b"x" * size, headers, f"id-{number}")
    caller = await opened(harness)
    while len(caller.commands) < 20:
        batch = await caller.read(500, most)
        assert 0 < sum(each.size for each in batch.commands) <= most
    assert [each.message_id for each in caller.commands] == [f"id-{number}" for number in range(20)]


async def test_commands_larger_than_a_batch(harness: BrokerHarness) -> None:
    """A command that is larger than a batch is read alone, or its body is left in the log. The order stays."""
    sizes = [10, 20_000, 10, 10, 10_001, 300_000, 10]
    for number, size in enumerate(sizes):
        await harness.send(command_address("acme"), b"x" * size, {}, f"id-{number}")
    caller = await opened(harness)
    while len(caller.commands) < len(sizes):
        await caller.read(500, 10_000)
    assert [len(each.body) for each in caller.commands] == sizes


async def test_read_waits_for_a_command(harness: BrokerHarness) -> None:
    """A read waits for the first command, and returns no commands after its time."""
    caller = await opened(harness)
    nothing = await caller.read(seconds=0.05)
    waiting = asyncio.create_task(caller.read())
    await asyncio.sleep(0)
    await send(harness, "a")
    batch = await waiting
    assert (nothing, batch.behind, caller.bodies) == (LogBatch((), 0), 0, ["a"])


async def test_closing_ends_the_wait(harness: BrokerHarness) -> None:
    """A read that waits when the log is closed returns no commands, and so does each later read."""
    caller = await opened(harness)
    waiting = asyncio.create_task(caller.read())
    await asyncio.sleep(0)
    await caller.log.close()
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        first = await waiting
    await send(harness, "a")
    second = await caller.read()
    assert [*first.commands, *second.commands] == []


# The end of the log, and its tenants


async def test_end(harness: BrokerHarness) -> None:
    """The end is the last command, also before the log was opened. Its epoch is 0."""
    log = await harness.open_log()
    empty = await log.end()
    await send(harness, "a", "b", "c")
    end = await log.end()
    caller = LogCaller(log)
    opening = await caller.open()
    await caller.read_until("c")
    last = caller.commands[-1]
    assert empty == LogCursor(opening.cursor.log, 0, 0, 0)
    assert end == LogCursor(opening.cursor.log, 0, last.position.sequence, last.stored_at, last.place)
    assert await log.end() == end


async def has_others(log: CommandLog, tenant: str) -> bool:
    """Ask until the answer is no, for a while: a log may need several looks to know that there are none."""
    return all([await log.has_others(tenant) for _ in range(20)])


async def test_other_tenants(harness: BrokerHarness) -> None:
    """The log knows whether it has commands of other tenants that were not read."""
    log = (await opened(harness)).log
    found = [await has_others(log, "a")]
    await send(harness, "1", "2", tenant="a")
    found += [await has_others(log, "a"), await has_others(log, "b")]
    await send(harness, "3", tenant="b")
    found += [await has_others(log, "a"), await has_others(log, "b")]
    assert found == [False, False, True, True, True]


# The cursor


async def test_opened_behind_a_cursor(harness: BrokerHarness) -> None:
    """Another process goes on behind the cursor, with the same positions. It learns how much there is."""
    await send(harness, "a", "b", "c", "d")
    caller = await opened(harness)
    await caller.read_until("b", limit=1)
    other = await continued(harness, caller)
    await send(harness, "e")
    assert await other.read_until("e") == ["c", "d", "e"]
    assert caller.openings[0].unread == 4
    (opening,) = other.openings
    assert (opening.cursor, opening.is_other, opening.removed, opening.unread) == (caller.cursor, False, 0, 2)
    positions = [each.position for each in (*caller.commands, *other.commands)]
    assert positions == sorted(set(positions))
    assert {each.epoch for each in positions} == {caller.openings[0].cursor.epoch}


# Commands that were removed


@pytest.mark.parametrize("read", [0, 2])
async def test_commands_removed_unread(harness: BrokerHarness, read: int) -> None:
    """If commands were removed before they were read, the log says how many. The others are read."""
    caller = await opened(harness)
    await send(harness, *"abcdef")
    while len(caller.commands) < read:
        await caller.read(1)
    await harness.remove_commands(5)
    other = await continued(harness, caller)
    assert await other.read_until("f") == ["f"]
    assert (other.openings[0].is_other, other.openings[0].removed, other.openings[0].unread) == (False, 5 - read, 1)


# Another log


def assert_behind(later: LogCaller, earlier: LogCaller) -> None:
    """Check that all commands of a caller have a later position than those of an earlier one."""
    assert later.openings[-1].is_other
    assert min(each.position for each in later.commands) > max(each.position for each in earlier.commands)
    assert later.openings[-1].cursor.log != ""


async def test_recreated_log(harness: BrokerHarness) -> None:
    """All commands of a log that was recreated are read, in a new epoch."""
    await send(harness, "a", "b", "c")
    caller = await opened(harness)
    await caller.read_until("c")
    await harness.recreate_log()
    await send(harness, *"defghi")
    other = await continued(harness, caller)
    assert await other.read_until("i") == list("defghi")
    assert (other.openings[0].unread, other.openings[0].removed) == (6, 0)
    assert other.openings[0].cursor.log != caller.openings[0].cursor.log
    assert_behind(other, caller)


@pytest.mark.parametrize("new", [2, 3, 6])
async def test_log_that_was_rolled_back(harness: BrokerHarness, new: int) -> None:
    """A log that was restored from an older backup is another one, whether it is shorter, as long, or longer now.

    The new commands are read, in a new epoch. Those of the backup are not read again if the overlap is short.
    """
    await send(harness, "a", "b", "c")
    await harness.save_log()
    await send(harness, "lost 1", "lost 2", "lost 3")
    caller = await opened(harness)
    await caller.read_until("lost 3")
    await harness.restore_log()
    bodies = [f"new {number}" for number in range(new)]
    await send(harness, *bodies)
    other = await continued(harness, caller)
    assert await other.read_until(bodies[-1]) == bodies
    assert_behind(other, caller)


@pytest.mark.parametrize("again", [1, 2, 4])
async def test_overlap(harness: BrokerHarness, again: int) -> None:
    """Another log is read from a time before that of the cursor. Exactly the commands stored since are read again."""
    bodies = [f"old {number}" for number in range(4)]
    await send(harness, *bodies)
    await harness.save_log()
    await send(harness, "lost")
    caller = await opened(harness)
    await caller.read_until("lost")
    await harness.restore_log()
    await send(harness, "new")
    other = await continued(harness, caller, overlap=since(caller.commands[-1 - again], caller.commands[-1]))
    assert await other.read_until("new") == [*bodies[-again:], "new"]
    assert_behind(other, caller)


async def test_another_log_that_is_opened_again_before_it_was_read(harness: BrokerHarness) -> None:
    """A cursor of another log of which nothing was read leads to the same commands, in the same epoch."""
    await send(harness, "a", "b", "c")
    await harness.save_log()
    await send(harness, "lost")
    caller = await opened(harness)
    await caller.read_until("lost")
    overlap = since(caller.commands[2], caller.commands[3])
    await harness.restore_log()
    await send(harness, "new")
    first = await continued(harness, caller, overlap)
    await harness.remove_commands(1)  # which is older than the cursor, so it is not missed
    second = await continued(harness, first, overlap)
    assert await second.read_until("new") == ["c", "new"]
    assert (first.openings[0].is_other, second.openings[0].is_other) == (True, False)
    assert (second.openings[0].cursor, second.openings[0].removed) == (first.openings[0].cursor, 0)


async def test_log_of_a_broker_whose_clock_is_behind(harness: BrokerHarness) -> None:
    """Commands of another log are read if the clock of its broker is behind by less than the overlap."""
    await send(harness, "a")
    caller = await opened(harness)
    await caller.read_until("a")
    assert caller.cursor is not None
    caller.cursor = caller.cursor._replace(stored_at=caller.cursor.stored_at + 10_000_000_000)
    await harness.recreate_log()
    await send(harness, "b", "c")
    skipping = await continued(harness, caller, timedelta(seconds=5))
    assert skipping.openings[0].unread <= 2
    other = await continued(harness, caller, timedelta(seconds=11))
    assert await other.read_until("c") == ["b", "c"]


# Outages and other readers


async def test_outage(harness: BrokerHarness) -> None:
    """While the broker is away, nothing can be read. Afterwards each command is read exactly once, in order."""
    bodies = [f"{number:02}" for number in range(20)]
    await send(harness, *bodies)
    caller = await opened(harness)
    await caller.read(2)
    await harness.stop()
    with pytest.raises(LogUnavailableError):
        await LogCaller(caller.log, caller.cursor).log.open(caller.cursor, OWNER)
    with pytest.raises(LogUnavailableError):
        await caller.log.end()
    with pytest.raises(LogUnavailableError):
        await caller.log.read(1, MOST_BYTES, 1)
    assert await caller.log.has_others("acme")
    await harness.start()
    await send(harness, "later")
    await caller.read_until("later", limit=3)
    assert caller.bodies == [*bodies, "later"]
    assert not caller.openings[-1].is_other


async def test_two_readers(harness: BrokerHarness) -> None:
    """Two processes that read at the same time may disturb each other, but each reads every command once, in order."""
    bodies = [f"{number:03}" for number in range(40)]
    await send(harness, *bodies[:20])
    limits = (3, 7)
    callers = [await opened(harness) for _ in limits]

    async def read(caller: LogCaller, limit: int) -> None:
        while len(caller.commands) < len(bodies):
            try:
                await caller.read(limit, seconds=0.05)
            except LogUnavailableError:
                await caller.open()

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        for caller, limit in zip(callers, limits, strict=True):
            group.create_task(read(caller, limit))
        await send(harness, *bodies[20:])
    assert [caller.bodies for caller in callers] == [bodies, bodies]
    assert callers[0].commands[-1].position == callers[1].commands[-1].position

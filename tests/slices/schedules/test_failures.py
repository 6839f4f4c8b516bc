"""Broken and locked schedules beside good ones, and what one of several instances cannot compute."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.harness.clock import ManualClock, after, iso
from tests.harness.in_process import exhaust, next_at
from tests.harness.memory_broker import MemoryBroker
from tests.harness.schedules import Schedules
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.schedules.firing.transaction import LeftToOthers

BERLIN = {"cron": "* * * * *", "zone": "Europe/Berlin"}


async def put_many(schedules: Schedules, count: int) -> None:
    for number in range(count):
        schedules.send("PutSchedule", scheduleId=f"s-{number:04}", every="PT1M")
    await schedules.consume()


BROKEN = {
    "unknown zone": ("zone = 'Mars/Olympus'", "zone = 'Europe/Berlin'", "Mars/Olympus"),
    "unreadable row": ("catch_up = 'newest'", "catch_up = 'all'", "ValueError"),
    "damaged data": ("""data = '{"n"'""", """data = '{"n":1}'""", "damaged"),
}


@pytest.mark.parametrize(("damage", "repair", "error"), BROKEN.values(), ids=BROKEN)
async def test_broken_schedule_beside_good_ones(  # noqa: PLR0917 - pytest passes names
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock, damage: str, repair: str, error: str
) -> None:
    """It keeps its slot, shows the error, is tried again after 1 s, 2 s, 4 s and so on, and then goes on."""
    schedules = Schedules(sqlite, memory_broker, clock)
    await put_many(schedules, 300)
    await schedules.put("broken", **BERLIN, data={"n": 1}, catchUp={"policy": "all"})
    await schedules.sql(f"UPDATE schedules SET {damage} WHERE schedule_id = 'broken'")
    await schedules.advance(minutes=1)
    assert len(await schedules.stored()) == 300
    row = await schedules.row("broken")
    assert (row["slot_at"], row["fired_count"], error in row["last_error"]) == (after(minutes=1), 0, True)
    waits = []
    for _ in range(4):
        waits.append((await schedules.row("broken"))["available_at"] - clock.now())
        clock.advance(milliseconds=waits[-1])
        await schedules.fire()
    assert waits == [1000, 2000, 4000, 8000]
    await schedules.sql(f"UPDATE schedules SET {repair} WHERE schedule_id = 'broken'")
    await schedules.advance(minutes=1)
    assert iso(after(minutes=1)) in await schedules.fired("broken")
    assert "lastError" not in await schedules.view("broken")
    await schedules.sql(f"UPDATE schedules SET {damage} WHERE schedule_id = 'broken'")
    await schedules.advance(minutes=1)
    assert (await schedules.row("broken"))["available_at"] == clock.now() + 1000, "it has fired in between"


@pytest.mark.parametrize(("hours", "has_passed"), [(2, False), (3, True), (4, True)])
async def test_resume_with_an_unknown_zone(schedules: Schedules, hours: int, *, has_passed: bool) -> None:
    """A Resume of a schedule that this instance cannot compute is handled. Only a passed `endAt` ends the schedule."""
    await schedules.put(cron="0 * * * *", zone="Europe/Berlin", endAt=iso(after(hours=3, milliseconds=1)))
    await schedules.about("Pause")
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus'")
    schedules.clock.advance(hours=hours)
    assert await schedules.about("Resume") == "resumed"
    view = await schedules.view()
    assert (view["status"], view.get("endReason")) == (("ended", "end_at") if has_passed else ("active", None))
    assert ("Mars/Olympus" in view.get("lastError", ""), "nextSlotAt" in view) == (not has_passed, False)


REFUSE = {
    "sqlite": [
        """CREATE TRIGGER refuse BEFORE INSERT ON outbox WHEN NEW.body LIKE '%broken%'
        BEGIN SELECT RAISE(ABORT, 'refused'); END"""
    ],
    "postgres": [
        """CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN
        IF NEW.body LIKE '%broken%' THEN RAISE check_violation USING MESSAGE = 'refused'; END IF; RETURN NEW; END $$
        LANGUAGE plpgsql""",
        "CREATE TRIGGER refuse BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
}


@pytest.mark.parametrize("good", [0, 200])
async def test_row_that_fails_the_transaction(schedules: Schedules, good: int) -> None:
    """Only the broken schedule waits, also if it is the only one that is due. The others fire."""
    await put_many(schedules, good)
    await schedules.put("broken")
    for statement in REFUSE[schedules.database.engine]:
        await schedules.sql(statement)
    await schedules.advance(minutes=1)
    assert len(await schedules.stored()) == good
    row = await schedules.row("broken")
    assert (row["slot_at"], row["available_at"]) == (after(minutes=1), after(minutes=1, seconds=1))
    assert row["last_error"] is not None


async def test_environment_that_fails_every_row(schedules: Schedules) -> None:
    """If several schedules fail and none fires, no schedule is changed, and the pass fails."""
    for number in range(50):
        await schedules.put(f"broken-{number}")
    for statement in REFUSE[schedules.database.engine]:
        await schedules.sql(statement)
    schedules.clock.advance(minutes=1)
    with pytest.raises(Exception, match="refused"):
        await schedules.worker.tick(schedules.clock.now())
    assert {row["last_error"] for row in await schedules.all_rows()} == {None}


# Several instances


@pytest.mark.slow
async def test_two_instances_fire_each_slot_once(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Two workers share the due schedules. No slot fires twice, and none is lost."""
    both = [Schedules(postgres, memory_broker, clock) for _ in range(2)]
    await put_many(both[0], 3000)
    for each in both:
        await each.fire()
    clock.advance(minutes=1)
    await asyncio.gather(*(exhaust(each.worker, clock.now()) for each in both))
    rows = await both[0].rows("outbox")
    names = Counter(row["body"].partition('"scheduleId":"')[2].partition('"')[0] for row in rows)
    assert (len(names), set(names.values())) == (3000, {1})
    shares = [each.metrics.settled_in["schedules", "fired"] for each in both]
    assert (sum(shares), min(shares) > 0) == (3000, True)


async def test_locked_rows_are_skipped(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A pass does not wait for schedules that another transaction has locked. It soon looks again."""
    schedules = Schedules(postgres, memory_broker, clock)
    await put_many(schedules, 3)
    clock.advance(minutes=1)
    async with asyncio.timeout(10), postgres.transaction() as tx:
        await tx.fetch("SELECT 1 FROM schedules WHERE schedule_id <> 's-0001' FOR UPDATE")
        await schedules.fire()
        assert [len(await schedules.fired(f"s-000{number}")) for number in range(3)] == [0, 1, 0]
        at = await next_at(schedules.worker, clock.now())
        assert at is not None
        assert 0 < at - clock.now() <= 50
    await schedules.fire()
    assert len(await schedules.stored()) == 3


@asynccontextmanager
async def lacking(schedules: Schedules, column: str = "zone", value: str = "Europe/Berlin") -> AsyncIterator[None]:
    """Let no instance be able to compute the schedules with a value, until the block ends."""
    await schedules.sql(f"UPDATE schedules SET {column} = 'Unknown' WHERE {column} = '{value}'")
    yield
    await schedules.sql(f"UPDATE schedules SET {column} = '{value}' WHERE {column} = 'Unknown'")


@pytest.mark.parametrize(("column", "value"), [("zone", "Europe/Berlin"), ("catch_up", "skip")])
async def test_what_one_of_two_instances_cannot_compute(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, column: str, value: str
) -> None:
    """It lacks a zone, or a newer version wrote the row. It leaves the schedule to the other one, which gets a hint."""
    old, new = (Schedules(postgres, memory_broker, clock) for _ in range(2))
    hints: list[str] = []
    await memory_broker.subscribe_hints(lambda loop, _at: hints.append(loop))
    await new.put("berlin", **BERLIN, catchUp={"policy": "skip"})
    await new.put("plain")
    for minute in range(1, 4):
        clock.advance(minutes=1)
        async with lacking(old, column, value):
            await old.fire()
            await old.fire()
        assert len(await old.fired("plain")) == minute
        await new.fire()
        assert (await new.row("berlin"))["last_error"] is None
    assert await new.fired("berlin") == [iso(after(minutes=minute)) for minute in (1, 2, 3)]
    assert (old.metrics.settled_in["schedules", "left"], old.metrics.missed, hints) == (3, 0, ["schedules"] * 3)


async def test_what_no_instance_can_compute(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """It is left for ten seconds after it was met, however long it has been due. Then it waits with the error."""
    schedules = Schedules(postgres, memory_broker, clock)
    await schedules.put("berlin", **BERLIN)
    await schedules.put("plain", every="PT1S", catchUp={"policy": "all"})
    clock.advance(seconds=90)
    async with lacking(schedules):
        await schedules.fire()
        await schedules.advance(milliseconds=9999)
        row = await schedules.row("berlin")
        assert (row["available_at"], row["last_error"]) == (after(minutes=1), None)
        assert len(await schedules.fired("plain")) == 99
        await schedules.advance(milliseconds=1)
        row = await schedules.row("berlin")
        assert (row["slot_at"], row["available_at"] - clock.now()) == (after(minutes=1), 1000)
        assert "Unknown" in row["last_error"]
    found = [schedules.metrics.settled_in["schedules", outcome] for outcome in ("left", "failed")]
    assert found == [1, 1]
    await schedules.advance(seconds=1)
    assert len(await schedules.fired("berlin")) == 1


async def test_memory_of_schedules_that_were_left(schedules: Schedules) -> None:
    """Only a minute after it was met, a schedule is left to other instances again. So the memory is bounded."""
    await schedules.put()
    (row,) = await schedules.all_rows()
    to_others = LeftToOthers(exclusive=False)
    found = []
    for now in (0, 9_999, 10_000, 59_999, 60_000):
        own = to_others.own([row], now)
        found.append((len(own), to_others.leave(row, "no", now)))
    assert found == [(1, True), (0, True), (1, False), (1, False), (1, True)]


async def test_id_that_is_not_utf8(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A schedule whose id is damaged does not fire. Its row cannot be written, so it would fire again and again."""
    schedules = Schedules(sqlite, memory_broker, clock)
    for schedule in ("daily", "da\ufffdly", "other"):
        await schedules.put(schedule)
    await schedules.sql("UPDATE schedules SET schedule_id = CAST(x'64ff' AS TEXT) WHERE schedule_id = 'daily'")
    await schedules.advance(minutes=1)
    found = [len(await schedules.fired(name)) for name in ("daily", "da\ufffdly", "other")]
    assert found == [0, 1, 1]

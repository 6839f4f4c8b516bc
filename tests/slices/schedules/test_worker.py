"""The firing worker: what it waits for, broken rows beside good ones, and several instances."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.in_process import exhaust, next_at
from tests.harness.schedules import Schedules
from tests.harness.timers import always
from timer_service.adapters.memory import MemoryBroker, never
from timer_service.adapters.postgres import PostgresDatabase
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.ports.database import Database
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.requests.computing import Steps
from timer_service.schedules import room
from timer_service.schedules.calendar import recurrence, zones
from timer_service.schedules.decision import Decision, decide_in_steps
from timer_service.schedules.firing import transaction
from timer_service.schedules.firing import worker as firing_worker
from timer_service.schedules.schedule import Schedule
from timer_service.zone_data import zone_data

RECHECK_MS = 250


def restarted(schedules: Schedules) -> Schedules:
    return Schedules(schedules.database, schedules.broker, schedules.clock)


# Commands that were stored before


async def test_pause_that_was_sent_while_the_service_was_away(schedules: Schedules) -> None:
    """After a start nothing fires before the commands are handled that were stored before."""
    await schedules.put()
    schedules.send("PauseSchedule")
    schedules.clock.advance(minutes=5)
    new = restarted(schedules)
    assert await next_at(new.worker, new.clock.now()) == new.clock.now() + RECHECK_MS
    await new.consume()
    await new.fire()
    assert (await new.status(), await new.fired()) == ("paused", [])


@pytest.mark.parametrize("noticed", [True, False], ids=["a pass ran meanwhile", "no pass ran meanwhile"])
async def test_pause_that_was_sent_while_the_broker_was_away(schedules: Schedules, *, noticed: bool) -> None:
    """After an outage of the broker too, also if it was so short that no pass ran meanwhile."""
    await schedules.put()
    await schedules.advance(minutes=1)
    schedules.broker.health = Health.down("away")
    if noticed:
        await schedules.worker.tick(schedules.clock.now())
    schedules.send("PauseSchedule")
    schedules.broker.health = HEALTHY
    await schedules.advance(minutes=1)
    assert await schedules.fired() == [iso(after(minutes=1))]
    await schedules.consume()
    await schedules.fire()
    assert await schedules.fired() == [iso(after(minutes=1))]


async def test_data_of_one_pass(schedules: Schedules) -> None:
    """One pass writes at most 2 MiB: other transactions wait for it. The other slots follow in the next passes."""
    await schedules.put(every="PT1S", data="x" * 60_000, catchUp={"policy": "all"})
    schedules.clock.advance(seconds=40)
    await schedules.worker.tick(schedules.clock.now())
    sizes = [row["large_body"] for row in await schedules.all_rows("outbox")]
    assert 1_900_000 < sum(sizes) < 2_100_000
    await schedules.fire()
    assert len(await schedules.fired()) == 40


async def test_data_of_schedules_whose_slots_are_skipped(schedules: Schedules) -> None:
    """A pass writes the row of each schedule, with its data. So it handles few with much, also if no slot fires."""
    for number in range(40):
        schedules.send(
            "PutSchedule", scheduleId=f"s{number}", every="PT1H", data="x" * 60_000, catchUp={"policy": "skip"}
        )
    await schedules.consume()
    schedules.clock.advance(minutes=90)
    handled = [(await schedules.worker.tick(schedules.clock.now())).done for _ in range(3)]
    assert handled == [34, 6, 0]
    assert schedules.metrics.missed == 40


async def test_stuck_command_beside_due_slots(schedules: Schedules) -> None:
    """A command that is never handled delays the slots by a minute at most."""
    await schedules.put(catchUp={"policy": "all"})
    schedules.send("PauseSchedule", scheduleId="other")
    new = restarted(schedules)
    await new.fire()
    await new.advance(seconds=59, milliseconds=999)
    assert await new.fired() == []
    await new.advance(milliseconds=1)
    assert await new.fired() == [iso(after(minutes=1))]
    await new.advance(minutes=1)
    assert len(await new.fired()) == 2


async def test_reconnects_beside_a_stuck_command(schedules: Schedules) -> None:
    """The minute does not begin again at a reconnect, but after it. So reconnects delay slots, and do not stop them."""
    await schedules.put(catchUp={"policy": "all"})
    schedules.send("PauseSchedule", scheduleId="other")
    new = restarted(schedules)
    fired: list[int] = []
    for _ in range(5):
        await new.fire()
        await new.advance(seconds=50)
        fired.append(len(await new.fired()))
        new.broker.health = Health.down("away")
        new.broker.health = HEALTHY
    assert fired == [0, 1, 1, 3, 3]
    await new.consume()
    await new.advance(milliseconds=RECHECK_MS)
    new.broker.health = Health.down("away")
    new.broker.health = HEALTHY
    new.send("PauseSchedule", scheduleId="other")
    await new.advance(minutes=1)
    assert len(await new.fired()) == 4, "the next outage is waited for again"


async def test_time_without_the_broker_is_no_wait_for_commands(schedules: Schedules) -> None:
    """A PauseSchedule that was sent in the second of two outages is in time, however long that one was."""
    await schedules.put()
    new = restarted(schedules)
    new.send("PauseSchedule", scheduleId="other")
    await new.fire()
    new.broker.health = Health.down("away")
    await new.advance(minutes=5)
    new.send("PauseSchedule")
    new.broker.health = HEALTHY
    await new.fire()
    await new.consume()
    await new.fire()
    assert (await new.status(), await new.fired()) == ("paused", [])


# A full event stream


async def test_full_event_stream(schedules: Schedules) -> None:
    """While events cannot be published, no slot fires, so the outbox does not grow. Then the policy decides."""
    await schedules.put()
    schedules.broker.has_no_room_for = always
    for _ in range(10):
        await schedules.advance(minutes=1)
    assert len(await schedules.rows("outbox")) == 1
    schedules.broker.has_no_room_for = never
    await schedules.advance(seconds=10)
    await schedules.advance(seconds=10)
    assert await schedules.fired() == [iso(after(minutes=1)), iso(after(minutes=10))]


async def test_room_for_a_few_events(schedules: Schedules) -> None:
    """While the stream has room for single events only, no slot fires, so the outbox does not grow."""
    for number in range(5):
        await schedules.put(f"s-{number}")
    schedules.broker.has_no_room_for = always
    await schedules.advance(minutes=1)
    room = iter([False])
    schedules.broker.has_no_room_for = lambda _message: next(room, True)
    await schedules.advance(minutes=1)
    await exhaust(schedules.worker, schedules.clock.now())
    assert len(await schedules.rows("outbox")) == 4
    schedules.broker.has_no_room_for = never
    for _ in range(3):
        await schedules.advance(seconds=10)
    assert len(await schedules.stored()) == 10


async def test_later_commands_do_not_delay_slots(schedules: Schedules) -> None:
    """Once the commands from before are handled, slots fire whatever arrives later."""
    await schedules.put()
    await schedules.fire()
    schedules.send("PauseSchedule", scheduleId="other")
    await schedules.advance(minutes=1)
    assert len(await schedules.fired()) == 1


async def test_clock_that_is_set_back_while_waiting(schedules: Schedules) -> None:
    """The wait ends a minute after the clock was set back."""
    await schedules.put(startAt=iso(NOW - 10 * 60_000))
    schedules.send("PauseSchedule", scheduleId="other")
    new = restarted(schedules)
    new.clock.advance(days=1)
    await new.fire()
    new.clock.set(after(minutes=2))
    await new.fire()
    await new.advance(minutes=1)
    assert await new.fired() == [iso(after(minutes=2)), iso(after(minutes=3))]


# Broken rows


async def put_many(schedules: Schedules, count: int) -> None:
    for number in range(count):
        schedules.send("PutSchedule", scheduleId=f"s-{number:04}", every="PT1M")
    await schedules.consume()


async def test_unknown_zone_beside_good_schedules(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A schedule whose zone the only instance lacks keeps its slot, shows the error and is tried again every minute."""
    schedules = Schedules(sqlite, memory_broker, clock)
    await put_many(schedules, 1000)
    await schedules.put("broken", cron="* * * * *", zone="Europe/Berlin")
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus' WHERE schedule_id = 'broken'")
    await schedules.advance(minutes=1)
    assert len(await schedules.stored()) == 1000
    row, view = await schedules.row("broken"), await schedules.view("broken", upcoming=3)
    assert (row["slot_at"], row["available_at"]) == (after(minutes=1), after(minutes=2))
    assert ("Mars/Olympus" in view["lastError"], view["status"], view.get("upcoming")) == (True, "active", None)
    assert schedules.metrics.settled_in["schedules", "failed"] == 1
    await schedules.sql("UPDATE schedules SET zone = 'Europe/Berlin' WHERE schedule_id = 'broken'")
    await schedules.advance(seconds=30)
    assert await schedules.fired("broken") == []
    await schedules.advance(seconds=30)
    assert await schedules.fired("broken") == [iso(after(minutes=1)), iso(after(minutes=2))]
    assert "lastError" not in await schedules.view("broken")


async def test_commands_on_a_schedule_with_an_unknown_zone(schedules: Schedules) -> None:
    """A Resume or a change of a schedule that this instance cannot compute is handled. A pass finds the slot later."""
    await schedules.put(cron="0 * * * *", zone="Europe/Berlin")
    await schedules.about("Pause")
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus'")
    assert await schedules.about("Resume") == "resumed"
    view = await schedules.view()
    assert ("Mars/Olympus" in view["lastError"], "nextSlotAt" in view) == (True, False)
    await schedules.advance(minutes=1)
    await schedules.sql("UPDATE schedules SET zone = 'Europe/Berlin'")
    await schedules.advance(minutes=1)
    assert ((await schedules.view())["nextSlotAt"], await schedules.fired()) == (iso(after(hours=1)), [])


async def test_resume_after_the_end_with_an_unknown_zone(schedules: Schedules) -> None:
    """A Resume ends a schedule whose `endAt` has passed, also if this instance does not know its zone."""
    await schedules.put(cron="0 * * * *", zone="Europe/Berlin", endAt=iso(after(hours=3)))
    await schedules.about("Pause")
    await schedules.sql("UPDATE schedules SET zone = 'Mars/Olympus'")
    schedules.clock.advance(hours=4)
    assert await schedules.about("Resume") == "resumed"
    view = await schedules.view()
    assert (view["status"], view["endReason"]) == ("ended", "end_at")
    assert [each["payload"]["reason"] for each in await schedules.events_of("ScheduleEnded")] == ["end_at"]


async def test_damaged_data_beside_good_schedules(schedules: Schedules) -> None:
    """A schedule whose data is damaged keeps its slot, and the others fire."""
    await put_many(schedules, 10)
    await schedules.put("broken", data={"n": 1})
    await schedules.sql("""UPDATE schedules SET data = '{"n"' WHERE schedule_id = 'broken'""")
    await schedules.advance(minutes=1)
    assert len(await schedules.stored()) == 10
    row = await schedules.row("broken")
    assert (row["slot_at"], row["fired_count"], "damaged" in row["last_error"]) == (after(minutes=1), 0, True)


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


async def refuse_events_of_broken(schedules: Schedules) -> None:
    """Make the database refuse the events of schedules named `broken`, as after a bug."""
    for statement in REFUSE[schedules.database.engine]:
        await schedules.sql(statement)


async def test_unreadable_row_beside_good_schedules(
    sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A row that this version cannot read waits a minute with the error. Passes succeed, and other schedules fire."""
    schedules = Schedules(sqlite, memory_broker, clock)
    for name in ("bad", "good"):
        await schedules.put(name)
    await schedules.sql("UPDATE schedules SET catch_up = 'newest' WHERE schedule_id = 'bad'")
    schedules.clock.advance(minutes=1)
    passed = await schedules.worker.tick(schedules.clock.now())
    bad = await schedules.row("bad")
    assert (passed.done, bad["available_at"]) == (2, schedules.clock.now() + 60_000)
    assert "newest" not in bad["last_error"]
    assert await schedules.fired("good") == [iso(after(minutes=1))]
    await schedules.sql("UPDATE schedules SET catch_up = 'last' WHERE schedule_id = 'bad'")
    await schedules.advance(minutes=1)
    assert await schedules.fired("bad") == [iso(after(minutes=1)), iso(after(minutes=2))]
    assert (await schedules.row("bad"))["last_error"] is None


@pytest.mark.slow
async def test_row_that_fails_the_transaction(schedules: Schedules) -> None:
    """The transaction is halved until the broken row is alone. It waits; the 1,000 others fire."""
    await put_many(schedules, 1000)
    await schedules.put("broken")
    await refuse_events_of_broken(schedules)
    await schedules.advance(minutes=1)
    assert len(await schedules.stored()) == 1000
    row = await schedules.row("broken")
    assert (row["slot_at"], row["available_at"]) == (after(minutes=1), after(minutes=1, seconds=1))
    assert row["last_error"] is not None
    await schedules.advance(minutes=1)
    assert len(await schedules.stored()) == 2000


async def test_environment_that_fails_every_row(schedules: Schedules) -> None:
    """If no part of a failed pass succeeds, no schedule is blamed, and the pass fails."""
    for number in range(200):
        await schedules.put(f"broken-{number}")
    await refuse_events_of_broken(schedules)
    schedules.clock.advance(minutes=1)
    with pytest.raises(Exception, match="refused"):
        await schedules.worker.tick(schedules.clock.now())
    assert {row["last_error"] for row in await schedules.all_rows()} == {None}
    await schedules.sql("DROP TRIGGER refuse" + (" ON outbox" if schedules.database.engine == "postgres" else ""))
    await schedules.fire()
    assert len(await schedules.stored()) == 200


async def test_single_row_that_fails(schedules: Schedules) -> None:
    """If only one schedule is due, it is blamed, so that the next pass can fire others."""
    await schedules.put("broken")
    await refuse_events_of_broken(schedules)
    await schedules.advance(minutes=1)
    assert (await schedules.row("broken"))["available_at"] == after(minutes=1, seconds=1)


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
    """A pass does not wait for schedules that another transaction has locked. It looks again after 5 ms."""
    schedules = Schedules(postgres, memory_broker, clock)
    await put_many(schedules, 3)
    clock.advance(minutes=1)
    async with asyncio.timeout(10), postgres.transaction() as tx:
        await tx.fetch("SELECT 1 FROM schedules WHERE schedule_id <> 's-0001' FOR UPDATE")
        await schedules.fire()
        assert [await schedules.fired(f"s-000{number}") for number in range(3)] == [[], [iso(after(minutes=1))], []]
        assert await next_at(schedules.worker, clock.now()) == clock.now() + 5
    await schedules.fire()
    assert len(await schedules.stored()) == 3


async def test_database_without_due_rows_is_not_written(
    store: Database, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """Idle schedules cost nothing: a pass without due rows writes nothing."""
    schedules = Schedules(store, memory_broker, clock)
    await schedules.put(every="PT1H")
    before = await schedules.all_rows()
    await schedules.fire()
    assert await schedules.all_rows() == before
    assert schedules.worker_wakes == []


# An instance that lacks a time zone


async def test_a_zone_that_one_of_two_instances_lacks(
    postgres: PostgresDatabase,
    memory_broker: MemoryBroker,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The instance that lacks the zone leaves the schedule to the other one, which fires each slot in time."""
    lacking, knowing = (Schedules(postgres, memory_broker, clock) for _ in range(2))
    await knowing.put("berlin", cron="* * * * *", zone="Europe/Berlin")
    await knowing.put("plain")
    for minute in range(1, 4):
        clock.advance(minutes=1)
        with lack(monkeypatch, "Europe/Berlin"):
            await lacking.fire()
            assert len(await lacking.fired("plain")) == minute
        assert await next_at(knowing.worker, clock.now()) == after(minutes=minute + 1)
        await knowing.publish()
        row = await knowing.row("berlin")
        assert (row["slot_at"], row["available_at"], row["last_error"]) == (*[after(minutes=minute + 1)] * 2, None)
    assert await knowing.fired("berlin") == [iso(after(minutes=minute)) for minute in (1, 2, 3)]
    assert (lacking.metrics.settled_in["schedules", "left"], lacking.metrics.missed) == (3, 0)
    lines = [each for each in caplog.records if "leaving it to others" in each.getMessage()]
    assert [(each.__dict__["schedule_id"], "Europe/Berlin" in each.__dict__["reason"]) for each in lines] == [
        ("berlin", True)
    ] * 3


async def test_a_zone_that_one_instance_lacks_after_an_outage(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance leaves a schedule for ten seconds after it has met it, also if the slot has been due for longer."""
    lacking, knowing = (Schedules(postgres, memory_broker, clock) for _ in range(2))
    await knowing.put(cron="0 * * * *", zone="Europe/Berlin")
    clock.advance(minutes=60, seconds=30)
    with lack(monkeypatch, "Europe/Berlin"):
        await lacking.fire()
        clock.advance(milliseconds=9999)
        await lacking.fire()
    await knowing.fire()
    await knowing.publish()
    row = await knowing.row()
    assert (await knowing.fired(), row["last_error"]) == ([iso(after(minutes=60))], None)


async def test_a_zone_that_all_instances_lack(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ten seconds without an instance that knows the zone, the schedule gets the error and waits a minute."""
    schedules = Schedules(postgres, memory_broker, clock)
    await schedules.put("berlin", cron="* * * * *", zone="Europe/Berlin")
    await schedules.put("plain", every="PT1S")
    clock.advance(minutes=1)
    computed = count_computed(monkeypatch)
    with lack(monkeypatch, "Europe/Berlin"):
        for _ in range(19):
            await exhaust(schedules.worker, clock.now())
            assert await next_at(schedules.worker, clock.now()) == clock.now() + 50
            clock.advance(milliseconds=500)
        row = await schedules.row("berlin")
        assert (row["available_at"], row["last_error"], computed["berlin"]) == (after(minutes=1), None, 1)
        assert len(await schedules.fired("plain")) == 69
        await schedules.advance(milliseconds=500)
        row = await schedules.row("berlin")
        assert (row["slot_at"], row["available_at"]) == (after(minutes=1), clock.now() + 60_000)
        assert "Europe/Berlin" in row["last_error"]
    await schedules.advance(minutes=1)
    assert await schedules.fired("berlin") == [iso(after(minutes=2))]
    assert (await schedules.row("berlin"))["last_error"] is None
    found = [schedules.metrics.settled_in["schedules", outcome] for outcome in ("left", "failed")]
    assert found == [1, 1]


def count_computed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each schedule was computed in passes, from now on."""
    counts = Counter[str]()

    def counting(schedule: Schedule, now: int, most: int) -> Steps[Decision]:
        counts[schedule.key.schedule_id] += 1
        return decide_in_steps(schedule, now, most)

    monkeypatch.setattr(transaction, "decide_in_steps", counting)
    return counts


async def test_many_schedules_with_a_zone_that_one_instance_lacks(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the time of a pass is over, the next one goes on at once, and does not begin with the same schedules."""
    schedules = Schedules(postgres, memory_broker, clock)
    for number in range(20):
        await schedules.put(f"berlin-{number}", cron="* * * * *", zone="Europe/Berlin")
    clock.advance(seconds=1)
    await schedules.put("plain")
    clock.advance(minutes=1)
    monkeypatch.setattr(room, "MOST_COMPUTING_SECONDS", 1e-9)
    with lack(monkeypatch, "Europe/Berlin"):
        found = [await next_at(schedules.worker, clock.now()) for _ in range(22)]
    assert found == [*[clock.now()] * 21, clock.now() + 50]
    await schedules.publish()
    assert len(await schedules.fired("plain")) == 1


async def test_a_newer_slot_behind_many_schedules_that_are_left(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all that a pass selects is left to others, it is left for two seconds. Then newer slots get their turn."""
    monkeypatch.setattr(firing_worker, "MOST_SLOTS", 2)
    schedules = Schedules(postgres, memory_broker, clock)
    for number in range(2):
        await schedules.put(f"berlin-{number}", cron="* * * * *", zone="Europe/Berlin")
    await schedules.put("newer", every="PT1H", startAt=iso(after(seconds=61)))
    with lack(monkeypatch, "Europe/Berlin"):
        await schedules.advance(minutes=1)
        await schedules.advance(milliseconds=1999)
        assert await schedules.fired("newer") == []
        await schedules.advance(milliseconds=1)
    assert await schedules.fired("newer") == [iso(after(seconds=61))]
    assert schedules.metrics.settled_in["schedules", "failed"] == 2


async def test_a_command_on_the_instance_that_lacks_the_zone(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Resume that such an instance handles lets the other one compute the next slot at once."""
    lacking, knowing = (Schedules(postgres, memory_broker, clock) for _ in range(2))
    hints: list[str] = []
    await memory_broker.subscribe_hints(lambda loop, _at: hints.append(loop))
    await knowing.put(cron="* * * * *", zone="Europe/Berlin")
    await knowing.about("Pause")
    clock.advance(seconds=90)
    with lack(monkeypatch, "Europe/Berlin"):
        assert await lacking.about("Resume") == "resumed"
        await lacking.advance(milliseconds=1)
    assert hints == ["schedules"]
    await knowing.fire()
    row = await knowing.row()
    assert (row["slot_at"], row["available_at"], row["last_error"]) == (*[after(minutes=2)] * 2, None)


async def test_a_put_with_a_zone_that_only_the_other_instance_knows(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance that lacks the zone says which data it has. The dead letter has the command, to be sent again."""
    lacking, knowing = (Schedules(postgres, memory_broker, clock) for _ in range(2))
    with lack(monkeypatch, "Europe/Berlin"):
        fields = {"cron": "0 9 * * *", "zone": "Europe/Berlin", "data": {"to": "team"}}
        error = (await lacking.request("PutSchedule", scheduleId="daily", **fields))["error"]
    assert (error["code"], [each["path"] for each in error["errors"]]) == ("UNKNOWN_ZONE", ["payload.zone"])
    assert str(zone_data()) in error["errors"][0]["reason"]
    (letter,) = await knowing.dead_letters()
    assert (await knowing.request("PutSchedule", **json.loads(letter.body)["payload"]))["outcome"] == "created"
    assert (await knowing.view())["data"] == {"to": "team"}


async def test_a_row_of_a_newer_version(
    postgres: PostgresDatabase, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """A schedule that this version cannot read is left to the instances of a newer one."""
    schedules = Schedules(postgres, memory_broker, clock)
    await schedules.put()
    await schedules.sql("UPDATE schedules SET catch_up = 'newest'")
    await schedules.advance(minutes=1)
    row = await schedules.row()
    assert (row["available_at"], row["last_error"]) == (after(minutes=1), None)
    await schedules.advance(seconds=10)
    row = await schedules.row()
    assert (row["available_at"], "newest" in row["last_error"]) == (clock.now() + 60_000, False)


@contextmanager
def lack(monkeypatch: pytest.MonkeyPatch, zone: str) -> Iterator[None]:
    """Let the zone data of this process lack a zone."""

    def open_zone(name: str) -> ZoneInfo:
        if name == zone:
            raise ZoneInfoNotFoundError(name)
        return ZoneInfo(name)

    names = zones._names() - {zone}
    caches = (zones._stretches_of_year, zones._nearest, recurrence.next_slot)
    with monkeypatch.context() as patch:
        patch.setattr(zones, "ZoneInfo", open_zone)
        patch.setattr(zones, "_names", lambda: names)
        for each in caches:
            each.cache_clear()
        yield
    for each in caches:
        each.cache_clear()


# Damaged ids


async def test_id_that_is_not_utf8(sqlite: SqliteDatabase, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """A schedule whose id is damaged does not fire. Its row cannot be written, so it would fire again and again."""
    schedules = Schedules(sqlite, memory_broker, clock)
    for schedule in ("daily", "da\ufffdly", "other"):
        await schedules.put(schedule)
    await schedules.sql("UPDATE schedules SET schedule_id = CAST(x'64ff' AS TEXT) WHERE schedule_id = 'daily'")
    clock.advance(minutes=1)
    await schedules.worker.tick(clock.now())
    assert sorted(json.loads(row["body"])["payload"]["scheduleId"] for row in await schedules.rows("outbox")) == [
        "da\ufffdly",
        "other",
    ]
    assert await next_at(schedules.worker, clock.now()) == clock.now() + 5
    assert len(await schedules.rows("outbox")) == 2

import json
from typing import Any

import pytest

from tests.harness.builders import command, schedule_timer
from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.memory_broker import MemoryBroker
from tests.harness.timers import Timers, bodies
from tests.harness.wiring import VISIBILITY_TIMEOUT
from timer_service.core.ports.database import Database
from timer_service.core.values.address import Address, Kind

DUE = after(minutes=1)
LATER = after(minutes=2)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# Firing


async def test_relative_due_time(timers: Timers) -> None:
    """A timer with `dueIn` is due this long after its command was stored. The same command later moves it."""
    fields = {"serviceCallId": "call-1", "dueIn": "PT1M"}
    timers.send(command("ScheduleTimer", fields))
    timers.clock.advance(seconds=30)  # the command waits in the log
    await timers.consume()
    first = (await timers.row())["due_at"]
    timers.send(command("ScheduleTimer", fields))
    await timers.consume()
    assert (first, (await timers.row())["due_at"]) == (after(minutes=1), after(minutes=1, seconds=30))
    assert timers.outcomes() == {"scheduled": 1, "rescheduled": 1}


async def test_fires_at_its_due_time(timers: Timers) -> None:
    """A timer fires once, at its due time and not a millisecond earlier. The loop is woken for it."""
    await timers.schedule(due_at=DUE)
    next_at = await timers.next_at()
    timers.clock.set(DUE - 1)
    early = await timers.tick(), timers.fired()
    timers.clock.set(DUE)
    due = await timers.tick(), timers.fired()
    timers.clock.advance(days=1)
    later = await timers.tick(), timers.fired()
    assert (early, due, later) == ((0, []), (1, ["call-1"]), (0, ["call-1"]))
    assert (timers.wakes, next_at, await timers.next_at()) == ([DUE], DUE, None)


async def test_due_time_finer_than_a_millisecond(timers: Timers) -> None:
    """A due time is rounded up to the next millisecond. One that has passed fires at once."""
    await timers.schedule("past", 0)
    timers.send(schedule_timer("fine", "2026-11-21T09:00:00.000001Z"))
    await timers.consume()
    await timers.tick()
    at_first = timers.fired()
    timers.clock.advance(milliseconds=1)
    await timers.tick()
    assert (at_first, timers.fired()) == (["past"], ["past", "fine"])


async def test_event(timers: Timers) -> None:
    """The event has every field and header of the contract and nothing else."""
    timers.send(
        schedule_timer(
            "call-1",
            "2026-11-21T10:01:00+01:00",
            data={"a": [1, None, "é"]},
            envelope={"id": "cmd-1", "correlationId": "corr-1", "causationId": "not this one"},
        ),
        {"traceparent": TRACEPARENT, "tracestate": "a=b", "Nats-Msg-Id": "cmd-1", "X-Mine": "1"},
    )
    timers.send(schedule_timer("bare"), message_id="broker's id")
    await timers.consume()
    timers.clock.set(DUE + 5)
    await timers.tick()
    bare, event = timers.broker.events
    assert event.address == Address(Kind.EVENT, "acme", "due-time-reached")
    assert event.headers == {"traceparent": TRACEPARENT, "tracestate": "a=b"}
    assert json.loads(event.body) == {
        "id": event.id,
        "type": "DueTimeReached",
        "tenantId": "acme",
        "correlationId": "corr-1",
        "causationId": "cmd-1",
        "timestampMs": DUE + 5,
        "payload": {
            "tenantId": "acme",
            "serviceCallId": "call-1",
            "dueAt": "2026-11-21T09:01:00.000Z",
            "reachedAt": "2026-11-21T09:01:00.005Z",
            "data": {"a": [1, None, "é"]},
        },
    }
    (without,) = bodies([bare])
    assert (without.pop("causationId"), bare.headers) == ("broker's id", {})
    assert without.keys() == {"id", "type", "tenantId", "timestampMs", "payload"}
    assert without["payload"].keys() == {"tenantId", "serviceCallId", "dueAt", "reachedAt"}


async def test_event_carries_the_data(timers: Timers) -> None:
    """The event carries any data unchanged, also null."""
    sent: list[Any] = [None, False, 0, "", {}, -0.0, 1e22, 0.1, -(2**200), "\0\u2028\U0001f600", [[[[]]]], {"": None}]
    for number, data in enumerate(sent):
        await timers.schedule(str(number), data=data)
    await timers.tick()
    found = {event["payload"]["serviceCallId"]: event["payload"]["data"] for event in bodies(timers.broker.events)}
    assert [json.dumps(found[str(number)]) for number in range(len(sent))] == list(map(json.dumps, sent))


async def test_one_tick_fires_several_batches(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """One tick fires several batches, oldest first, but not all: other loops must run too."""
    timers = Timers(store, memory_broker, clock, batch_size=5)
    for number in range(200):
        timers.send(schedule_timer(f"call-{number}", NOW - number))
    await timers.consume()
    first, second, third = await timers.tick(), await timers.tick(), await timers.tick()
    assert (first, second, third) == (160, 40, 0)
    assert timers.fired() == [f"call-{number}" for number in range(199, -1, -1)]
    assert max(timers.metrics.claims) == 5


# Commands on a known timer


async def test_reschedule(timers: Timers) -> None:
    """A newer command moves a timer to an earlier or later due time. It fires once, with the newest data."""
    await timers.schedule(due_at=LATER, data=1)
    await timers.schedule(due_at=DUE, data=2)
    timers.clock.set(DUE)
    await timers.tick()
    await timers.schedule("call-2", DUE)
    await timers.schedule("call-2", LATER, data=4)
    await timers.tick()
    timers.clock.set(LATER)
    await timers.tick()
    fired = [(each["payload"]["dueAt"], each["payload"].get("data")) for each in bodies(timers.broker.events)]
    assert fired == [(iso(DUE), 2), (iso(LATER), 4)]
    assert timers.wakes == [LATER, DUE, DUE, LATER]


async def test_unchanged_during_publishing(timers: Timers) -> None:
    """A newer command with the same values does not end a claim. The timer fires once and is settled."""
    await timers.schedule(data=1)
    timers.interrupt(lambda: timers.schedule(data=1))
    await timers.tick()
    assert (timers.fired(), (await timers.row())["state"], timers.metrics.lost) == (["call-1"], "Reached", 0)
    assert (timers.outcomes(), timers.wakes) == ({"scheduled": 1, "unchanged": 1}, [NOW])


@pytest.mark.parametrize("change", [{"data": True}, {}, {"data": 1, "envelope": {"correlationId": "order-2"}}])
async def test_updated(timers: Timers, change: dict[str, Any]) -> None:
    """A newer command with the same due time and other content replaces the content completely."""
    first = schedule_timer(due_at=DUE, data=1, envelope={"id": "first", "correlationId": "order-1"})
    timers.send(first, {"traceparent": TRACEPARENT})
    await timers.consume()
    envelope = {"id": "second", **change.get("envelope", {})}
    await timers.schedule(due_at=DUE, **{**change, "envelope": envelope})
    timers.clock.set(DUE)
    await timers.tick()
    (event,) = bodies(timers.broker.events)
    assert (event["causationId"], event.get("correlationId")) == ("second", envelope.get("correlationId"))
    assert json.dumps(event["payload"].get("data", "none")) == json.dumps(change.get("data", "none"))
    assert (timers.broker.events[0].headers, timers.outcomes()) == ({}, {"scheduled": 1, "updated": 1})


@pytest.mark.parametrize("change", [{"data": 2}, {"due_at": LATER, "data": 2}], ids=["updated", "rescheduled"])
async def test_changed_during_publishing(timers: Timers, change: dict[str, Any]) -> None:
    """A timer that changes while its event is being published fires again, with the new values and another id."""
    await timers.schedule(data=1)
    timers.interrupt(lambda: timers.schedule(**change))
    await timers.tick()
    timers.clock.set(LATER)
    await timers.tick()
    assert [each["payload"]["data"] for each in bodies(timers.broker.events)] == [1, 2]
    assert len({each.id for each in timers.broker.events}) == 2
    assert (timers.metrics.lost, (await timers.row())["state"]) == (1, "Reached")


async def test_lease_that_expires_during_publishing(timers: Timers) -> None:
    """If the lease expires during publishing, the timer is sent again with the same id and settled once."""
    await timers.schedule()

    async def stall() -> None:
        timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
        await timers.tick()

    timers.interrupt(stall)
    await timers.tick()
    assert (timers.fired(), timers.metrics.settlements, timers.metrics.lost) == (["call-1"], {"fired": 1}, 1)

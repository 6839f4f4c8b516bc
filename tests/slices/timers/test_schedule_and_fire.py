import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.builders import cancel_timer, command, retry_timer, schedule_timer
from tests.harness.clock import NOW, ManualClock, after, iso
from tests.harness.timers import Timers, always, bodies, fires
from tests.harness.wiring import MAX_ATTEMPTS, VISIBILITY_TIMEOUT
from timer_service.adapters.memory import MemoryBroker, never
from timer_service.adapters.sqlite import SqliteDatabase
from timer_service.core.due.lease import Lease, take_over_claims
from timer_service.core.ports.broker import BrokerFeatures
from timer_service.core.ports.database import Database, Row
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.errors import DatabaseUnavailableError
from timer_service.core.values.message import Address, Kind, Message
from timer_service.timers.store import TIMERS

DUE = after(minutes=1)
LATER = after(minutes=2)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INBOX = "_INBOX.me.1"


def replies(timers: Timers) -> list[tuple[str, Any]]:
    return [(reply.to, json.loads(reply.body)) for reply in timers.broker.replies]


# Firing


async def test_relative_due_time(timers: Timers) -> None:
    """A timer with `dueIn` fires this long after its command was stored. The same command later moves it."""
    fields = {"serviceCallId": "call-1", "dueIn": "PT1M"}
    timers.send(command("ScheduleTimer", fields))
    timers.clock.advance(seconds=30)  # the command waits in the log
    await timers.consume()
    assert ((await timers.row())["due_at"], timers.outcomes()) == (after(minutes=1), {"scheduled": 1})
    timers.send(command("ScheduleTimer", fields))
    await timers.consume()
    assert timers.outcomes() == {"scheduled": 1, "rescheduled": 1}
    due_at = after(minutes=1, seconds=30)
    assert (await timers.row())["due_at"] == due_at
    found = []
    for at in (due_at - 1, due_at):
        timers.clock.set(at)
        await timers.tick()
        found.append(len(timers.fired()))
    assert found == [0, 1]


async def test_fires_at_its_due_time(timers: Timers) -> None:
    """A timer fires once, at its due time and not a millisecond earlier."""
    await timers.schedule(due_at=DUE)
    timers.clock.set(DUE - 1)
    early = await timers.tick(), timers.fired()
    timers.clock.set(DUE)
    due = await timers.tick(), timers.fired()
    timers.clock.advance(days=1)
    later = await timers.tick(), timers.fired()
    assert (early, due, later) == ((0, []), (1, ["call-1"]), (0, ["call-1"]))


async def test_due_time_finer_than_a_millisecond(timers: Timers) -> None:
    """A due time is rounded up to the next millisecond."""
    await timers.schedule()
    timers.send(schedule_timer("fine", "2026-11-21T09:00:00.000001Z"))
    await timers.consume()
    await timers.tick()
    at_first = timers.fired()
    timers.clock.advance(milliseconds=1)
    await timers.tick()
    assert (at_first, timers.fired()) == (["call-1"], ["call-1", "fine"])


@pytest.mark.parametrize("due_at", [NOW, NOW - 1, after(days=-400), 0])
async def test_past_due_time_fires_at_once(timers: Timers, due_at: int) -> None:
    """A timer with a past due time fires in the next tick, and the loop is woken for it."""
    await timers.schedule(due_at=due_at)
    assert timers.wakes == [due_at]
    await timers.tick()
    (event,) = bodies(timers.broker.events)
    assert (event["payload"]["dueAt"], event["payload"]["reachedAt"]) == (iso(due_at), iso(NOW))


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
    await timers.consume()
    timers.clock.set(DUE + 5)
    await timers.tick()
    (event,) = timers.broker.events
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


async def test_event_without_optional_fields(timers: Timers) -> None:
    """The event leaves out what its command leaves out. The causation id is then the broker's id of the command."""
    timers.send(schedule_timer(), message_id="broker's id")
    await timers.consume()
    await timers.tick()
    (event,) = bodies(timers.broker.events)
    assert timers.broker.events[0].headers == {}
    assert set(event) == {"id", "type", "tenantId", "causationId", "timestampMs", "payload"}
    assert event["causationId"] == "broker's id"
    assert set(event["payload"]) == {"tenantId", "serviceCallId", "dueAt", "reachedAt"}


async def test_event_carries_the_data(timers: Timers) -> None:
    """The event carries any data unchanged, also null."""
    sent: list[Any] = [
        None,
        False,
        0,
        "",
        [],
        {},
        -0.0,
        1e22,
        0.1,
        2**63,
        -(2**200),
        10**4000,
        "\0\u2028\U0001f600",
        [[[[]]]],
        {"": None},
    ]
    for number, data in enumerate(sent):
        await timers.schedule(str(number), data=data)
    await timers.tick()
    found = {event["payload"]["serviceCallId"]: event["payload"]["data"] for event in bodies(timers.broker.events)}
    assert {call: json.dumps(data) for call, data in found.items()} == {
        str(number): json.dumps(data) for number, data in enumerate(sent)
    }


async def test_row_after_firing(timers: Timers) -> None:
    """The row of a fired timer has the time of firing, and the metrics have its lateness."""
    await timers.schedule(due_at=DUE)
    timers.clock.set(DUE + 250)
    await timers.tick()
    row = await timers.row()
    assert (row["state"], row["due_at"], row["reached_at"], row["attempt"]) == ("Reached", DUE, DUE + 250, 1)
    assert timers.metrics.lateness == [0.25]
    assert timers.metrics.settlements == {"fired": 1}


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


async def test_next_at(timers: Timers) -> None:
    """The next tick is at the earliest due time. There is none if no timer is scheduled."""
    seen = [await timers.next_at()]
    await timers.schedule("b", LATER)
    await timers.schedule("a", DUE)
    seen.append(await timers.next_at())
    timers.clock.set(LATER)
    await timers.tick()
    seen.append(await timers.next_at())
    assert seen == [None, DUE, None]
    assert timers.wakes == [LATER, DUE]


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
    assert timers.outcomes() == {"scheduled": 2, "rescheduled": 2}
    assert timers.wakes == [LATER, DUE, DUE, LATER]


async def test_rescheduled_and_moved_back(timers: Timers) -> None:
    """A timer that is moved and moved back to its first due time fires once, with a new event id."""
    await timers.schedule(due_at=DUE)
    first = (await timers.row())["event_id"]
    await timers.schedule(due_at=LATER)
    await timers.schedule(due_at=DUE)
    timers.clock.set(LATER)
    await timers.tick()
    (event,) = timers.broker.events
    assert event.id != first


async def test_unchanged(timers: Timers) -> None:
    """A newer command with the same values changes only the position: same event id, no wake-up."""
    same: dict[str, Any] = {"data": {"a": 1}, "envelope": {"correlationId": "order-1"}}
    await timers.schedule(due_at=DUE, **same)
    before = await timers.row()
    await timers.schedule(due_at=DUE, **same)
    row = await timers.row()
    assert (row["event_id"], row["causation_id"]) == (before["event_id"], before["causation_id"])
    assert (before["position_sequence"], row["position_sequence"]) == (1, 2)
    assert timers.outcomes() == {"scheduled": 1, "unchanged": 1}
    assert timers.wakes == [DUE]


async def test_unchanged_during_publishing(timers: Timers) -> None:
    """A newer command with the same values does not end a claim. The timer fires once and is settled."""
    await timers.schedule(data=1)
    timers.broker.before_publishing = once(timers, lambda: timers.schedule(data=1))
    await timers.tick()
    assert (timers.fired(), (await timers.row())["state"], timers.metrics.lost) == (["call-1"], "Reached", 0)


CHANGES: dict[str, dict[str, Any]] = {
    "other data": {"data": 2, "envelope": {"id": "second", "correlationId": "order-1"}},
    "data of another type": {"data": True, "envelope": {"id": "second", "correlationId": "order-1"}},
    "no data": {"envelope": {"id": "second", "correlationId": "order-1"}},
    "another correlation id": {"data": 1, "envelope": {"id": "second", "correlationId": "order-2"}},
    "no correlation id": {"data": 1, "envelope": {"id": "second"}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_updated(timers: Timers, change: dict[str, Any]) -> None:
    """A newer command with the same due time and other content replaces the content completely."""
    timers.send(
        schedule_timer(due_at=DUE, data=1, envelope={"id": "first", "correlationId": "order-1"}),
        {"traceparent": TRACEPARENT},
    )
    await timers.consume()
    timers.clock.advance(seconds=1)
    await timers.schedule(due_at=DUE, **change)
    row = await timers.row()
    timers.clock.set(DUE)
    await timers.tick()
    (event,) = bodies(timers.broker.events)
    envelope = change["envelope"]
    assert (event["causationId"], event.get("correlationId")) == ("second", envelope.get("correlationId"))
    assert json.dumps(event["payload"].get("data", "none")) == json.dumps(change.get("data", "none"))
    assert (event["payload"]["dueAt"], timers.broker.events[0].headers) == (iso(DUE), {})
    assert timers.outcomes() == {"scheduled": 1, "updated": 1}
    assert (row["registered_at"], timers.wakes) == (NOW, [DUE]), "the same timer with the same due time"


async def test_updated_twice_in_one_batch(timers: Timers) -> None:
    """The last of several updates in one batch fires. A repeated update changes nothing."""
    for data in (1, 2, 1, 1):
        timers.send(schedule_timer(due_at=DUE, data=data), {"Timer-Reply-To": INBOX})
    await timers.consume()
    timers.clock.set(DUE)
    await timers.tick()
    answers = [(body["outcome"], body["timer"]["data"]) for _, body in replies(timers)]
    assert answers == [("scheduled", 1), ("updated", 2), ("updated", 1), ("unchanged", 1)]
    assert [each["payload"]["data"] for each in bodies(timers.broker.events)] == [1]


async def test_updated_during_publishing(timers: Timers) -> None:
    """A timer that is updated while its event is being published fires again, with the new data and a new id."""
    await timers.schedule(data=1)
    updated: list[Row] = []

    async def update() -> None:
        await timers.schedule(data=2)
        updated.append(await timers.row())

    timers.broker.before_publishing = once(timers, update)
    while await timers.tick():
        pass
    (row,) = updated
    assert (row["state"], row["available_at"], row["attempt"]) == ("Scheduled", NOW, 0)
    assert (timers.metrics.lost, timers.wakes) == (1, [NOW, NOW])
    events = timers.broker.events
    assert [each["payload"]["data"] for each in bodies(events)] == [1, 2]
    assert events[0].id != events[1].id
    assert ((await timers.row())["state"], await timers.next_at()) == ("Reached", None)


async def test_updated_while_the_broker_is_down(timers: Timers) -> None:
    """A timer that is updated while the broker is down fires once, with the new data."""
    await timers.schedule(data=1)

    async def go_down_and_update(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        timers.broker.health = Health.down("gone")
        await timers.schedule(data=2)

    timers.broker.before_publishing = go_down_and_update
    await timers.tick()
    timers.broker.health = HEALTHY
    timers.clock.advance(seconds=1)
    await timers.tick()
    assert [each["payload"]["data"] for each in bodies(timers.broker.events)] == [2]


async def test_updated_after_its_acknowledgement_was_lost(timers: Timers) -> None:
    """An event that was stored but not acknowledged keeps its id and data. The update fires with another id."""
    await timers.schedule(data=1)
    timers.broker.loses_acknowledgement_of = always
    await timers.tick()
    timers.broker.loses_acknowledgement_of = never
    await timers.schedule(data=2)
    timers.clock.advance(minutes=1)
    await timers.tick()
    data_of = {each["id"]: each["payload"]["data"] for each in bodies(timers.broker.events)}
    assert sorted(data_of.values()) == [1, 2]


async def test_updates_race_with_claims(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """If updates race with two firing instances, the event has the new data if the outcome is `updated`."""
    ours, theirs = (Timers(store, memory_broker, clock, batch_size=5) for _ in range(2))
    calls = [f"call-{number}" for number in range(60)]
    for call in calls:
        ours.send(schedule_timer(call, data="old"))
    await ours.consume()
    for call in calls:
        ours.send(schedule_timer(call, data="new"), {"Timer-Reply-To": f"_INBOX.{call}"})
    async with asyncio.timeout(60):
        await asyncio.gather(ours.consume(), ours.tick(), theirs.tick())
        while await theirs.next_at() is not None:
            clock.advance(milliseconds=5)
    updated = {f"call-{to.removeprefix('_INBOX.call-')}" for to, body in replies(ours) if body["outcome"] == "updated"}
    events = bodies(memory_broker.events)
    assert {each["payload"]["serviceCallId"] for each in events if each["payload"]["data"] == "new"} == updated
    assert len({each["id"] for each in events}) == len(events) <= len(calls) + len(updated)
    for call in calls:
        assert (await ours.row(call))["state"] == "Reached"


async def test_ignored_reached(timers: Timers) -> None:
    """A reached timer is not scheduled again."""
    await timers.schedule()
    await timers.tick()
    await timers.schedule(due_at=LATER)
    timers.clock.set(LATER)
    await timers.tick()
    assert timers.outcomes() == {"scheduled": 1, "ignored_reached": 1}
    assert timers.fired() == ["call-1"]


async def test_recreated_log(timers: Timers) -> None:
    """Commands of a recreated log are newer, although its sequences begin at 1 again."""
    await timers.schedule("other")
    await timers.schedule(due_at=DUE)
    timers.broker.stored.recreate(epoch=2)
    await timers.schedule(due_at=LATER)
    assert timers.outcomes()["rescheduled"] == 1
    assert (await timers.row())["due_at"] == LATER


async def test_several_schedules_in_one_batch(timers: Timers) -> None:
    """Each command of a batch sees the effects of the earlier commands. The last accepted data is published."""
    due = {"1": LATER, "2": DUE, "3": DUE, "4": after(minutes=3), "5": after(minutes=3)}
    for cause, due_at in due.items():
        timers.send(schedule_timer(due_at=due_at, envelope={"id": cause}), {"Timer-Reply-To": INBOX})
    await timers.consume()
    outcomes = [body["outcome"] for _, body in replies(timers)]
    timers.clock.advance(minutes=3)
    await timers.tick()
    assert outcomes == ["scheduled", "rescheduled", "unchanged", "rescheduled", "unchanged"]
    assert [(each["causationId"], each["payload"]["dueAt"]) for each in bodies(timers.broker.events)] == [
        ("4", iso(after(minutes=3)))
    ]


async def test_batch_with_old_and_new_timers(timers: Timers) -> None:
    """One batch can confirm, reschedule and create timers of several tenants, and name one timer twice."""
    await timers.schedule("known", DUE)
    await timers.schedule("moved", DUE)
    for call, tenant, due_at in [
        ("known", "acme", DUE),
        ("moved", "acme", DUE),
        ("moved", "acme", LATER),
        ("known", "other", LATER),
    ]:
        timers.send(schedule_timer(call, due_at, tenant=tenant), tenant=tenant)
    await timers.consume()
    assert timers.outcomes() == {"scheduled": 3, "unchanged": 2, "rescheduled": 1}
    rows = [await timers.row("known"), await timers.row("moved"), await timers.row("known", "other")]
    assert [(row["due_at"], row["position_sequence"]) for row in rows] == [(DUE, 3), (LATER, 5), (LATER, 6)]


async def test_rescheduled_during_publishing(timers: Timers) -> None:
    """A timer that is rescheduled while its event is being published fires for both due times, with two ids."""
    await timers.schedule()

    async def reschedule(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        await timers.schedule(due_at=LATER)

    timers.broker.before_publishing = reschedule
    await timers.tick()
    row = await timers.row()
    assert (row["state"], row["available_at"], row["attempt"]) == ("Scheduled", LATER, 0)
    assert timers.metrics.lost == 1
    timers.clock.set(LATER)
    await timers.tick()
    events = timers.broker.events
    assert [each["payload"]["dueAt"] for each in bodies(events)] == [iso(NOW), iso(LATER)]
    assert events[0].id != events[1].id


async def nothing(_: Sequence[Message]) -> None:
    pass


def once(timers: Timers, step: Callable[[], Awaitable[object]]) -> Callable[[Sequence[Message]], Awaitable[None]]:
    """Return a hook that runs `step` before the next batch is published, and does nothing afterwards."""

    async def take(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        await step()

    return take


async def test_lease_that_expires_during_publishing(timers: Timers) -> None:
    """If the lease expires during publishing, the timer is sent again with the same id and settled once."""
    await timers.schedule()

    async def stall(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
        await timers.tick()

    timers.broker.before_publishing = stall
    await timers.tick()
    assert timers.fired() == ["call-1"]
    assert (timers.metrics.settlements, timers.metrics.lost) == ({"fired": 1}, 1)


# Rejected commands


async def test_invalid_command_affects_only_itself(timers: Timers) -> None:
    """One invalid command among a thousand becomes a dead letter. The others are handled normally."""
    for number in range(1000):
        timers.send(b"{" if number == 500 else schedule_timer(f"call-{number}", DUE))
    await timers.consume()
    timers.clock.set(DUE)
    await timers.tick()
    assert timers.outcomes() == {"scheduled": 999, "rejected": 1}
    assert sorted(timers.fired()) == sorted(f"call-{number}" for number in range(1000) if number != 500)
    assert [letter.body for letter in timers.broker.dead_letters] == [b"{"]


async def test_dead_letter(timers: Timers) -> None:
    """A dead letter has the body and headers of the command, the error, and the source of the command."""
    body = b'{"type": "ScheduleTimer",\xff'
    headers = {"X-Mine": "1", "Nats-Msg-Id": "a", "nats-rollup": "all", "Nats-Expected-Stream": "OTHER"}
    position = timers.send(body, headers)
    await timers.consume()
    (letter,) = timers.broker.dead_letters
    assert letter.address == Address(Kind.DEAD_LETTER, "acme", "schedule-timer")
    assert letter.body == body
    message = letter.headers["Timer-Error-Message"]
    assert message.startswith("the body is not JSON")
    assert letter.headers == {
        "Timer-Original-Headers": json.dumps({name: [value] for name, value in headers.items()}, separators=(",", ":")),
        "Timer-Error-Code": "INVALID_JSON",
        "Timer-Error-Message": message,
        "Timer-Source-Subject": "cmd.acme.schedule-timer",
        "Timer-Source-Sequence": str(position.sequence),
    }
    assert timers.metrics.dead_letters == {"INVALID_JSON": 1}


async def test_command_rejected(timers: Timers) -> None:
    """A CommandRejected event names the command, the reason, and each invalid field."""
    body = schedule_timer("", "tomorrow", envelope={"id": "cmd-1", "correlationId": "corr-1"})
    timers.send(body, {"traceparent": TRACEPARENT})
    await timers.consume()
    (event,) = timers.broker.events
    rejection = json.loads(event.body)
    payload = rejection.pop("payload")
    assert event.address == Address(Kind.EVENT, "acme", "command-rejected")
    assert event.headers == {"traceparent": TRACEPARENT}
    assert rejection == {
        "id": event.id,
        "type": "CommandRejected",
        "tenantId": "acme",
        "correlationId": "corr-1",
        "causationId": "cmd-1",
        "timestampMs": NOW,
    }
    assert (payload["commandId"], payload["commandType"], payload["code"]) == (
        "cmd-1",
        "ScheduleTimer",
        "INVALID_PAYLOAD",
    )
    assert [each["path"] for each in payload["errors"]] == ["payload.serviceCallId", "payload.dueAt"]
    assert all(each["reason"] in payload["message"] for each in payload["errors"])


async def test_unreadable_command_is_rejected(timers: Timers) -> None:
    """If a command is unreadable, the tenant of its address gets an event with the known values."""
    timers.send(b"", message_id="m-1")
    await timers.consume()
    (rejection,) = bodies(timers.broker.events)
    assert (rejection["tenantId"], rejection["causationId"]) == ("acme", "m-1")
    assert set(rejection["payload"]) == {"commandId", "code", "message"}
    assert (rejection["payload"]["commandId"], rejection["payload"]["code"]) == ("m-1", "INVALID_JSON")


async def test_rejection_goes_to_the_addressed_tenant(timers: Timers) -> None:
    """If a command names another tenant than its address, the event goes to the tenant of the address."""
    timers.send(schedule_timer(tenant="victim"), tenant="acme")
    await timers.consume()
    (event,) = timers.broker.events
    assert (event.address.tenant, json.loads(event.body)["payload"]["code"]) == ("acme", "TENANT_MISMATCH")


async def test_address_with_an_invalid_tenant(timers: Timers) -> None:
    """A command with an invalid tenant in its address becomes a dead letter under a fixed token, without an event."""
    timers.send(schedule_timer(), tenant="Ä!")
    await timers.consume()
    (letter,) = timers.broker.dead_letters
    assert (letter.address.tenant, letter.headers["Timer-Source-Subject"]) == (
        "~unreadable",
        r"cmd.\xc4!.schedule-timer",
    )
    assert (timers.broker.events, timers.outcomes()) == ([], {"rejected": 1})


async def test_unknown_type(timers: Timers) -> None:
    """A command of an unknown type is rejected. Its name does not become a label of the metrics."""
    timers.send(command("ScheduleTime", {}), message="schedule-time")
    await timers.consume()
    (rejection,) = bodies(timers.broker.events)
    assert rejection["payload"]["code"] == "UNKNOWN_TYPE"
    assert timers.metrics.commands == {("unknown", "rejected"): 1}


# Replies


async def test_reply(timers: Timers) -> None:
    """A reply has the outcome of the command and the view of its timer."""
    timers.send(
        schedule_timer(due_at=DUE, data={"a": None}, envelope={"id": "cmd-1", "correlationId": "corr-1"}),
        {"Timer-Reply-To": INBOX},
    )
    timers.send(schedule_timer("call-2", DUE, envelope={"id": "cmd-2"}), {"Timer-Reply-To": INBOX})
    await timers.consume()
    view = {
        "tenantId": "acme",
        "serviceCallId": "call-1",
        "dueAt": iso(DUE),
        "state": "Scheduled",
        "registeredAt": iso(NOW),
        "attempt": 0,
    }
    assert replies(timers) == [
        (
            INBOX,
            {
                "commandId": "cmd-1",
                "outcome": "scheduled",
                "timer": {**view, "correlationId": "corr-1", "data": {"a": None}},
            },
        ),
        (INBOX, {"commandId": "cmd-2", "outcome": "scheduled", "timer": {**view, "serviceCallId": "call-2"}}),
    ]


async def test_reply_shows_the_timer_as_the_command_left_it(timers: Timers) -> None:
    """Each reply shows the timer after its command, even if later commands of the batch changed it again."""
    await timers.fail("bad")
    await timers.schedule("fired")
    timers.clock.advance(seconds=5)
    await timers.tick()
    reply_to = {"Timer-Reply-To": INBOX}
    timers.send(schedule_timer("a", LATER), reply_to)
    timers.send(schedule_timer("a", after(hours=3)), reply_to)
    timers.send(cancel_timer("a"), reply_to, message="cancel-timer")
    timers.send(schedule_timer("fired", LATER), reply_to)
    timers.send(cancel_timer("bad"), reply_to, message="cancel-timer")
    await timers.consume()
    views = [body["timer"] for _, body in replies(timers)]
    assert [(view["serviceCallId"], view["state"], view["dueAt"]) for view in views] == [
        ("a", "Scheduled", iso(LATER)),
        ("a", "Scheduled", iso(after(hours=3))),
        ("a", "Cancelled", iso(after(hours=3))),
        ("fired", "Reached", views[3]["dueAt"]),
        ("bad", "Cancelled", iso(NOW)),
    ]
    assert views[3]["reachedAt"] == iso(timers.clock.now())
    assert (views[4]["attempt"], views[4]["lastError"]) == (MAX_ATTEMPTS, "refused")
    assert ["reachedAt" in view for view in views] == [False, False, False, True, False]


async def test_reply_without_a_timer(timers: Timers) -> None:
    """A reply has no timer if the timer is unknown."""
    for name in ("retry", "cancel"):
        body = (retry_timer if name == "retry" else cancel_timer)("unknown", envelope={"id": name})
        timers.send(body, {"Timer-Reply-To": INBOX}, message=f"{name}-timer")
    await timers.consume()
    assert [body for _, body in replies(timers)] == [
        {"commandId": "retry", "outcome": "not_found"},
        {"commandId": "cancel", "outcome": "not_found"},
    ]


async def test_reply_to_a_rejected_command(timers: Timers) -> None:
    """The reply to a rejected command has the error."""
    timers.send(schedule_timer("", envelope={"id": "cmd-1"}), {"Timer-Reply-To": INBOX})
    await timers.consume()
    ((to, answer),) = replies(timers)
    assert (to, set(answer), answer["commandId"]) == (INBOX, {"commandId", "error"}, "cmd-1")
    assert (answer["error"]["code"], [each["path"] for each in answer["error"]["errors"]]) == (
        "INVALID_PAYLOAD",
        ["payload.serviceCallId"],
    )


@pytest.mark.parametrize("body", [schedule_timer(), b"{"], ids=["accepted", "rejected"])
async def test_reply_to_another_subject(timers: Timers, body: bytes) -> None:
    """The service sends replies only to the subject of one inbox. Without one, it handles the command all the same."""
    subjects = [
        "",
        "timer.evt.v1.other.due-time-reached",
        "_INBOX",
        "_inbox.me",
        "_INBOX.*",
        "_INBOX.a b",
        "_INBOX.>",
        "_INBOX.a..b",
        "_INBOX.a.",
        "_INBOX.ä",
        "_INBOX.\x00",
        "elsewhere.a",
    ]
    for to in subjects:
        timers.send(body, {"Timer-Reply-To": to})
        await timers.consume()
        assert timers.broker.replies == [], to
    assert sum(timers.outcomes().values()) == len(subjects)


async def test_reply_comes_after_commit(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply is sent after the commit."""
    timers.send(schedule_timer(), {"Timer-Reply-To": INBOX})
    seen: list[Any] = []
    send = timers.broker.reply

    async def look_first(answers: Any) -> None:
        seen.append((await timers.row())["state"])
        await send(answers)

    monkeypatch.setattr(timers.broker, "reply", look_first)
    await timers.consume()
    assert seen == ["Scheduled"]
    assert len(timers.broker.replies) == 1


# Failures of the broker


async def test_refused_event_is_retried_then_buried(timers: Timers) -> None:
    """A refused event is retried after a backoff and buried in the end. Other events fire at once."""
    for call in ("a", "bad", "c"):
        timers.send(schedule_timer(call))
    await timers.consume()
    timers.broker.refuses = fires("bad")
    waits: list[int] = []
    for _ in range(MAX_ATTEMPTS):
        assert await timers.tick() > 0
        if (at := await timers.next_at()) is not None:
            waits.append(at - timers.clock.now())
            timers.clock.set(at)
    row = await timers.row("bad")
    assert timers.fired() == ["a", "c"]
    assert (row["state"], row["attempt"], row["last_error"], row["due_at"]) == ("Failed", 3, "refused", NOW)
    assert len(waits) == MAX_ATTEMPTS - 1
    assert all(0 <= wait <= ceiling for wait, ceiling in zip(waits, (1000, 2000), strict=True))
    assert timers.metrics.settlements == {"fired": 2, "retried": 2, "buried": 1}
    assert (timers.metrics.given_up, timers.metrics.failures) == ({"timer_schedules": 1}, {"refused": 3})


async def test_refused_event_fires_later(timers: Timers) -> None:
    """An event that was refused at first fires with its old id, and its error is cleared."""
    await timers.schedule()
    event_id = (await timers.row())["event_id"]
    timers.broker.refuses = always
    await timers.tick()
    waiting = await timers.row()
    timers.broker.refuses = never
    timers.clock.set(waiting["available_at"])
    await timers.tick()
    row = await timers.row()
    assert (waiting["state"], waiting["last_error"]) == ("Scheduled", "refused")
    assert (row["state"], row["last_error"], [event.id for event in timers.broker.events]) == (
        "Reached",
        None,
        [event_id],
    )


async def test_buried_timer_can_be_scheduled_again(timers: Timers) -> None:
    """A buried timer can be scheduled again by a newer command, with all attempts."""
    await timers.schedule()
    timers.broker.refuses = always
    for _ in range(MAX_ATTEMPTS):
        await timers.tick()
        timers.clock.advance(minutes=10)
    timers.broker.refuses = never
    failed = await timers.row()
    await timers.schedule()
    again = await timers.row()
    await timers.tick()
    assert (failed["state"], again["state"], again["attempt"], again["last_error"]) == ("Failed", "Scheduled", 0, None)
    assert (timers.fired(), timers.outcomes()) == (["call-1"], {"scheduled": 2})


async def test_event_too_large_for_the_broker(store: Database, clock: ManualClock) -> None:
    """An event that is too large for the broker is one failure. Other events fire."""
    timers = Timers(store, MemoryBroker(features=BrokerFeatures(deduplicates=True, max_message_bytes=500)), clock)
    timers.send(schedule_timer("large", data="x" * 500))
    timers.send(schedule_timer("small"))
    await timers.consume()
    await timers.tick()
    assert timers.fired() == ["small"]
    assert (await timers.row("large"))["attempt"] == 1


async def test_outage_counts_no_attempts(timers: Timers) -> None:
    """While the broker is down no attempts are counted. Afterwards all timers fire with their ids."""
    for number in range(3):
        timers.send(schedule_timer(f"call-{number}"))
    await timers.consume()
    timers.broker.health = Health.down("gone")
    for _ in range(20):
        await timers.tick()
        timers.clock.advance(minutes=1)
    attempts = [(await timers.row(f"call-{number}"))["attempt"] for number in range(3)]
    timers.broker.health = HEALTHY
    assert (await timers.tick(), attempts) == (3, [0, 0, 0])
    assert sorted(timers.fired()) == ["call-0", "call-1", "call-2"]
    assert timers.metrics.settlements == {"fired": 3}


async def test_outage_during_publishing(timers: Timers) -> None:
    """If publishing finds the broker down, the rows are released without an attempt, after a short pause."""
    await timers.schedule()
    timers.broker.before_publishing = lambda _: go_down(timers.broker)
    first = await timers.tick()
    row = await timers.row()
    again = await timers.tick()
    timers.broker.before_publishing = nothing
    timers.broker.health = HEALTHY
    next_at = await timers.next_at()
    timers.clock.set(next_at or 0)
    assert (first, row["state"], row["attempt"], row["last_error"], again) == (1, "Scheduled", 0, None, 0)
    assert next_at == NOW + 250
    assert (await timers.tick(), timers.fired()) == (1, ["call-1"])
    assert timers.metrics.failures == {"unavailable": 1}


async def test_oldest_first_after_an_outage(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> None:
    """Rows that were released during an outage still fire before rows that became due later."""
    timers = Timers(store, memory_broker, clock, batch_size=2)
    for number in range(6):
        timers.send(schedule_timer(f"call-{number}", NOW - 60_000 + number))
    await timers.consume()
    timers.broker.before_publishing = lambda _: go_down(timers.broker)
    await timers.tick()
    timers.broker.before_publishing = nothing
    timers.broker.health = HEALTHY
    timers.clock.advance(seconds=1)
    await timers.tick()
    assert timers.fired() == [f"call-{number}" for number in range(6)]


async def go_down(broker: MemoryBroker) -> None:
    broker.health = Health.down("gone")


async def test_commands_are_accepted_while_the_broker_is_down(timers: Timers) -> None:
    """Commands are accepted while events cannot be published, because they need only the database."""
    timers.broker.health = Health.down("full")
    await timers.schedule()
    assert (await timers.row())["state"] == "Scheduled"


@pytest.mark.parametrize("deduplicates", [True, False])
async def test_lost_acknowledgement(store: Database, clock: ManualClock, deduplicates: bool) -> None:  # noqa: FBT001
    """If the acknowledgement of an event is lost, it is sent again with the same id, so the broker can drop it."""
    broker = MemoryBroker(features=BrokerFeatures(deduplicates=deduplicates, max_message_bytes=1000))
    timers = Timers(store, broker, clock)
    await timers.schedule()
    broker.loses_acknowledgement_of = always
    await timers.tick()
    broker.loses_acknowledgement_of = never
    clock.advance(seconds=1)
    await timers.tick()
    event_id = (await timers.row())["event_id"]
    assert [event.id for event in broker.events] == [event_id] * (1 if deduplicates else 2)
    assert (await timers.row())["state"] == "Reached"


async def test_some_lost_acknowledgements(timers: Timers) -> None:
    """If some acknowledgements of a batch are lost, only these rows are sent again."""
    for call in ("a", "b", "c"):
        timers.send(schedule_timer(call))
    await timers.consume()
    timers.broker.loses_acknowledgement_of = fires("b")
    await timers.tick()
    states = [(await timers.row(call))["state"] for call in "abc"]
    assert states == ["Reached", "Scheduled", "Reached"]


# Crashes and corrupt rows


def crash(_: Message) -> bool:
    """Cancel the task after the broker stored a message and before the acknowledgement arrives."""
    raise asyncio.CancelledError


async def test_crash_between_publish_and_settle(timers: Timers) -> None:
    """After a crash between publish and settle, the timer fires again with the same id when the lease expires."""
    await timers.schedule()
    timers.broker.loses_acknowledgement_of = crash
    with pytest.raises(asyncio.CancelledError):
        await timers.tick()
    timers.broker.loses_acknowledgement_of = never
    stored = list(timers.broker.events)
    timers.clock.set(NOW + VISIBILITY_TIMEOUT // timedelta(milliseconds=1) - 1)
    early = await timers.tick()
    timers.clock.advance(milliseconds=1)
    again = await timers.tick()
    row = await timers.row()
    assert (early, again) == (0, 1)
    assert [event.id for event in stored] == [event.id for event in timers.broker.events] == [row["event_id"]]
    assert (row["state"], row["attempt"]) == ("Reached", 2)


async def test_restart_takes_over_at_once(sqlite: SqliteDatabase, memory_broker: MemoryBroker) -> None:
    """If no other process can exist, a restart does not wait for the leases of the dead process."""
    timers = Timers(sqlite, memory_broker, ManualClock())
    await timers.schedule()
    await timers.schedule("later", DUE)
    timers.broker.loses_acknowledgement_of = crash
    with pytest.raises(asyncio.CancelledError):
        await timers.tick()
    timers.broker.loses_acknowledgement_of = never
    restarted = Timers(sqlite, memory_broker, ManualClock(NOW + 1))
    await take_over_claims(restarted.database, Lease(TIMERS, VISIBILITY_TIMEOUT), restarted.clock.now())
    assert await restarted.tick() == 1
    row = await restarted.row()
    assert (row["state"], row["attempt"]) == ("Reached", 2)
    assert [event.id for event in memory_broker.events] == [row["event_id"]]


async def test_row_that_kills_the_process(timers: Timers) -> None:
    """A row that kills the process is given up after three deaths alone. It costs no other row its attempts."""
    for call in ("a", "killer", "z"):
        timers.send(schedule_timer(call))
    await timers.consume()

    async def kill(messages: Sequence[Message]) -> None:
        if any(fires("killer")(message) for message in messages):
            raise asyncio.CancelledError

    timers.broker.before_publishing = kill
    deaths = 0
    async with asyncio.timeout(60):
        while (row := await timers.row("killer"))["state"] == "Scheduled":
            try:
                await timers.tick()
            except asyncio.CancelledError:
                deaths += 1
            timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
    assert deaths == MAX_ATTEMPTS + 3
    assert sorted(timers.fired()) == ["a", "z"]
    assert (row["state"], row["last_error"]) == ("Failed", "gave up: claimed and never settled")
    assert timers.metrics.given_up == {"timer_schedules": 1}


@pytest.mark.parametrize("cycles", [1, MAX_ATTEMPTS, 20])
async def test_crash_loop_with_another_cause(store: Database, memory_broker: MemoryBroker, cycles: int) -> None:
    """A process that dies again and again after its claims buries nothing. Afterwards every timer fires."""
    timers = Timers(store, memory_broker, ManualClock(), batch_size=4)
    names = [f"call-{number}" for number in range(6)]
    for call in names:
        timers.send(schedule_timer(call))
    await timers.consume()

    async def die(messages: Sequence[Message]) -> None:
        if len(messages) > 1:
            raise asyncio.CancelledError

    timers.broker.before_publishing = die
    for _ in range(cycles):
        with suppress(asyncio.CancelledError):
            await timers.tick()
        timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
    timers.broker.before_publishing = nothing
    while await timers.tick():
        pass
    assert (sorted(timers.fired()), timers.metrics.given_up) == (names, {})


async def test_exhausted_rows_after_an_outage(timers: Timers) -> None:
    """An exhausted row that meets an outage of the broker keeps its attempts, and fires after the outage."""
    await timers.schedule("a")
    await timers.schedule("b")
    await timers.sql(f"UPDATE timer_schedules SET attempt = {MAX_ATTEMPTS}")
    timers.broker.before_publishing = lambda _: go_down(timers.broker)
    await timers.tick()
    attempts = {call: (await timers.row(call))["attempt"] for call in "ab"}
    timers.broker.before_publishing = nothing
    timers.broker.health = HEALTHY
    timers.clock.advance(seconds=1)
    await timers.tick()
    assert (attempts, sorted(timers.fired())) == ({"a": MAX_ATTEMPTS, "b": MAX_ATTEMPTS}, ["a", "b"])


async def test_exhausted_row_that_is_refused(timers: Timers) -> None:
    """An exhausted row that the broker refuses is buried, as any row after its last attempt."""
    await timers.schedule()
    await timers.sql(f"UPDATE timer_schedules SET attempt = {MAX_ATTEMPTS}")
    timers.broker.refuses = always
    await timers.tick()
    assert (await timers.row())["last_error"] == "refused"
    assert timers.metrics.given_up == {"timer_schedules": 1}


async def test_corrupt_row(timers: Timers) -> None:
    """A row that cannot be encoded fails alone, and is buried after all attempts with the reason."""
    for number in range(20):
        timers.send(schedule_timer(f"call-{number}", data=number))
    await timers.consume()
    await timers.sql("UPDATE timer_schedules SET data = '{oops' WHERE service_call_id = 'call-7'")
    for _ in range(MAX_ATTEMPTS):
        await timers.tick()
        timers.clock.advance(minutes=10)
    row = await timers.row("call-7")
    assert sorted(timers.fired()) == sorted(f"call-{number}" for number in range(20) if number != 7)
    assert (row["state"], row["attempt"]) == ("Failed", MAX_ATTEMPTS)
    assert row["last_error"].startswith("cannot be encoded: ")


async def test_only_corrupt_rows(timers: Timers) -> None:
    """A batch without any valid row sends nothing to the broker and is settled."""
    await timers.schedule(data=1)
    await timers.sql("UPDATE timer_schedules SET data = '{oops'")
    assert await timers.tick() == 1
    assert (timers.metrics.publishes, timers.metrics.settlements) == (0, {"retried": 1})


async def test_database_lost_between_publish_and_settle(
    sqlite: SqliteDatabase, locker: sqlite3.Connection, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """If the database is locked during settling, the tick fails. The next tick settles and fires nothing again."""
    timers = Timers(sqlite, memory_broker, clock)
    await timers.schedule()

    async def lock(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        locker.execute("BEGIN IMMEDIATE")

    timers.broker.before_publishing = lock
    with pytest.raises(DatabaseUnavailableError):
        await timers.tick()
    locker.execute("ROLLBACK")
    assert await timers.tick() == 0
    row = await timers.row()
    assert (timers.metrics.publishes, row["state"]) == (1, "Reached")
    assert [event.id for event in timers.broker.events] == [row["event_id"]]


async def test_settled_too_late_after_an_outage(
    sqlite: SqliteDatabase, locker: sqlite3.Connection, memory_broker: MemoryBroker, clock: ManualClock
) -> None:
    """If another instance has fired the timer after the lease expired, settling changes nothing."""
    timers, other = Timers(sqlite, memory_broker, clock), Timers(sqlite, memory_broker, clock)
    await timers.schedule()

    async def lock(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        locker.execute("BEGIN IMMEDIATE")

    timers.broker.before_publishing = lock
    with pytest.raises(DatabaseUnavailableError):
        await timers.tick()
    locker.execute("ROLLBACK")
    clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
    assert await other.tick() == 1
    reached_at = (await timers.row())["reached_at"]
    clock.advance(seconds=1)
    assert await timers.tick() == 0
    row = await timers.row()
    assert (timers.metrics.lost, row["state"], row["reached_at"]) == (1, "Reached", reached_at)
    assert len(timers.broker.events) == 1

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.harness.builders import cancel_timer, command, retry_timer, schedule_timer
from tests.harness.clock import NOW, after, iso
from tests.harness.timers import Timers, always, bodies
from tests.harness.wiring import MAX_ATTEMPTS, VISIBILITY_TIMEOUT
from timer_service.adapters.memory import never
from timer_service.core.ports.health import HEALTHY, Health
from timer_service.core.values.message import Message, Position

DUE = after(minutes=1)
LATER = after(minutes=2)


async def nothing(_: Sequence[Message]) -> None:
    pass


async def fire_all(timers: Timers, until: int = LATER) -> list[str]:
    """Fire everything that can fire by `until`, also rows whose lease expires. Return the calls that fired."""
    timers.clock.set(until)
    await timers.tick()
    timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
    await timers.tick()
    return timers.fired()


def replies(timers: Timers) -> list[Any]:
    return [json.loads(reply.body) for reply in timers.broker.replies]


# Cancelling


async def test_cancelled_before_it_is_due(timers: Timers) -> None:
    """A timer that is cancelled before its due time never fires, and no loop wakes for it."""
    await timers.schedule(due_at=DUE)
    timers.clock.advance(seconds=1)
    await timers.cancel()
    row = await timers.row()
    assert (row["state"], row["cancelled_at"], row["available_at"]) == ("Cancelled", NOW + 1000, None)
    assert (await timers.next_at(), timers.wakes) == (None, [DUE])
    assert await fire_all(timers) == []
    assert timers.outcomes() == {"scheduled": 1, "cancelled": 1}


async def test_cancelled_twice(timers: Timers) -> None:
    """A second CancelTimer changes nothing."""
    await timers.schedule(due_at=DUE)
    await timers.cancel()
    first = await timers.row()
    timers.clock.advance(seconds=1)
    await timers.cancel()
    assert await timers.row() == first
    assert timers.outcomes() == {"scheduled": 1, "cancelled": 1, "unchanged": 1}


async def test_cancelled_during_publishing(timers: Timers) -> None:
    """If a timer is cancelled while its event is being published, it fires once and stays cancelled."""
    await timers.schedule()

    async def cancel(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        await timers.cancel()

    timers.broker.before_publishing = cancel
    await timers.tick()
    row = await timers.row()
    assert (row["state"], row["reached_at"], row["lease_token"]) == ("Cancelled", None, None)
    assert (timers.metrics.lost, timers.metrics.settlements) == (1, {})
    assert await fire_all(timers) == ["call-1"]


async def test_cancelled_while_the_broker_is_down(timers: Timers) -> None:
    """If a timer is cancelled while the broker is down, it does not fire when the broker is back."""
    await timers.schedule()

    async def go_down_and_cancel(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        timers.broker.health = Health.down("gone")
        await timers.cancel()

    timers.broker.before_publishing = go_down_and_cancel
    await timers.tick()
    timers.broker.health = HEALTHY
    assert await fire_all(timers) == []
    assert (await timers.row())["state"] == "Cancelled"


async def test_cancelled_before_the_next_attempt(timers: Timers) -> None:
    """A timer whose event was refused can be cancelled before the next attempt."""
    await timers.schedule()
    timers.broker.refuses = always
    await timers.tick()
    timers.broker.refuses = never
    await timers.cancel()
    assert await fire_all(timers) == []


async def test_cancelled_after_it_fired(timers: Timers) -> None:
    """A timer that has fired cannot be cancelled. It stays Reached."""
    await timers.schedule()
    await timers.tick()
    before = await timers.row()
    await timers.cancel()
    assert timers.outcomes() == {"scheduled": 1, "already_reached": 1}
    assert (await timers.row(), before["state"]) == (before, "Reached")


async def test_scheduled_again_after_the_cancel(timers: Timers) -> None:
    """A ScheduleTimer after a CancelTimer creates a new timer with another event id and a new registration time."""
    await timers.schedule(due_at=DUE, data=1)
    first = await timers.row()
    await timers.cancel()
    timers.clock.advance(seconds=1)
    await timers.schedule(due_at=DUE)
    row = await timers.row()
    assert row["event_id"] != first["event_id"]
    assert (row["state"], row["registered_at"], row["cancelled_at"], row["data"]) == (
        "Scheduled",
        NOW + 1000,
        None,
        None,
    )
    assert timers.wakes == [DUE, DUE]
    assert await fire_all(timers) == ["call-1"]


async def test_scheduled_after_a_cancel_of_nothing(timers: Timers) -> None:
    """A CancelTimer for an unknown timer writes nothing, and does not affect a newer ScheduleTimer."""
    await timers.cancel()
    await timers.schedule(due_at=DUE)
    assert timers.outcomes() == {"not_found": 1, "scheduled": 1}
    assert await fire_all(timers) == ["call-1"]


async def test_cancel_of_another_tenant(timers: Timers) -> None:
    """A tenant cannot cancel or retry the timer of another tenant with the same name."""
    await timers.schedule(due_at=DUE)
    await timers.cancel(tenant="other")
    await timers.retry(tenant="other")
    assert timers.metrics.commands == {
        ("ScheduleTimer", "scheduled"): 1,
        ("CancelTimer", "not_found"): 1,
        ("RetryTimer", "not_found"): 1,
    }
    assert await fire_all(timers) == ["call-1"]


@pytest.mark.parametrize("name", ["CancelTimer", "RetryTimer"])
async def test_unknown_field(timers: Timers, name: str) -> None:
    """A CancelTimer or RetryTimer with an unknown field is rejected with the name of the field."""
    await timers.schedule(due_at=DUE)
    payload = {"tenantId": "acme", "serviceCallId": "call-1", "dueAt": iso(DUE)}
    timers.send(command(name, payload), message=name.replace("T", "-t").lower())
    await timers.consume()
    (rejection,) = bodies(timers.broker.events)
    assert (rejection["payload"]["code"], [each["path"] for each in rejection["payload"]["errors"]]) == (
        "INVALID_PAYLOAD",
        ["payload.dueAt"],
    )
    assert (await timers.row())["state"] == "Scheduled"


# Retrying


async def test_retried(timers: Timers) -> None:
    """A retried timer fires at once with its old event id, and its attempts start again at 0."""
    await timers.fail("call-1")
    failed = await timers.row()
    await timers.retry()
    row = await timers.row()
    assert (failed["state"], row["state"], row["attempt"], row["last_error"]) == ("Failed", "Scheduled", 0, None)
    assert row["available_at"] == timers.wakes[-1] == timers.clock.now()
    await timers.tick()
    (event,) = timers.broker.events
    assert (event.id, bodies([event])[0]["payload"]["dueAt"]) == (failed["event_id"], iso(NOW))
    assert (await timers.row())["state"] == "Reached"


async def test_retried_and_refused_again(timers: Timers) -> None:
    """A retried timer whose event is refused in all attempts is buried again and can be retried again."""
    await timers.fail("call-1")
    for _ in range(2):
        await timers.retry()
        timers.broker.refuses = always
        for _ in range(MAX_ATTEMPTS):
            assert (await timers.row())["state"] == "Scheduled"
            await timers.tick()
            timers.clock.advance(minutes=10)
        timers.broker.refuses = never
        row = await timers.row()
        assert (row["state"], row["attempt"], row["last_error"]) == ("Failed", MAX_ATTEMPTS, "refused")


async def test_retry_of_a_timer_that_has_not_failed(timers: Timers) -> None:
    """A RetryTimer changes nothing if the timer is scheduled, reached, cancelled or unknown."""
    await timers.schedule("waits", LATER)
    await timers.schedule("fired")
    await timers.tick()
    await timers.schedule("cancelled", LATER)
    await timers.cancel("cancelled")
    calls = ("waits", "fired", "cancelled")
    before = [(await timers.row(call))["state"] for call in calls]
    for call in (*calls, "unknown"):
        timers.metrics.commands.clear()
        await timers.retry(call)
        assert timers.outcomes() == {
            {"fired": "already_reached", "unknown": "not_found"}.get(call, "unchanged"): 1,
        }
    assert [(await timers.row(call))["state"] for call in calls] == before
    assert (await timers.row("waits"))["available_at"] == LATER


async def test_retry_does_not_end_a_claim(timers: Timers) -> None:
    """A RetryTimer does not end the claim of a timer that is being published. The timer fires once and is settled."""
    await timers.schedule()

    async def retry(_: Sequence[Message]) -> None:
        timers.broker.before_publishing = nothing
        await timers.retry()

    timers.broker.before_publishing = retry
    await timers.tick()
    assert (timers.fired(), (await timers.row())["state"], timers.metrics.lost) == (["call-1"], "Reached", 0)


# Together


async def test_every_command_on_one_timer_in_a_batch(timers: Timers) -> None:
    """Each command of a batch sees the effects of the earlier commands on the timer. The last command wins."""
    await timers.fail("call-1")
    wakes = len(timers.wakes)
    inbox = {"Timer-Reply-To": "_INBOX.me"}
    for name, body in [
        ("retry-timer", retry_timer()),
        ("schedule-timer", schedule_timer(due_at=NOW)),
        ("schedule-timer", schedule_timer(due_at=DUE)),
        ("retry-timer", retry_timer()),
        ("cancel-timer", cancel_timer()),
        ("cancel-timer", cancel_timer()),
        ("retry-timer", retry_timer()),
        ("schedule-timer", schedule_timer(due_at=after(hours=5), data=7)),
        ("cancel-timer", cancel_timer("other")),
        ("schedule-timer", schedule_timer(due_at=after(hours=5), data=8)),
        ("schedule-timer", schedule_timer("other", after(hours=5))),
    ]:
        timers.send(body, inbox, message=name)
    await timers.consume()
    assert [each["outcome"] for each in replies(timers)] == [
        "retried",
        "unchanged",
        "rescheduled",
        "unchanged",
        "cancelled",
        "unchanged",
        "unchanged",
        "scheduled",
        "not_found",
        "updated",
        "scheduled",
    ]
    row = await timers.row()
    assert (row["state"], row["due_at"], row["data"]) == ("Scheduled", after(hours=5), "8")
    assert Position(row["position_epoch"], row["position_sequence"]) == Position(1, 11)
    assert timers.wakes[wakes:] == [DUE], "the earliest due time of the batch"
    assert sorted(await fire_all(timers, after(hours=5))) == ["call-1", "other"]


async def test_cancelled_and_retried_in_one_batch(timers: Timers) -> None:
    """A failed timer that is cancelled and then retried in one batch stays cancelled and does not fire."""
    await timers.fail("call-1")
    timers.send(cancel_timer(), message="cancel-timer")
    timers.send(retry_timer(), message="retry-timer")
    await timers.consume()
    assert (await timers.row())["state"] == "Cancelled"
    assert await fire_all(timers, timers.clock.now()) == []


async def test_scheduled_and_cancelled_in_one_batch(timers: Timers) -> None:
    """A timer that is scheduled and cancelled in one batch is stored as Cancelled and never fires."""
    timers.send(schedule_timer(due_at=NOW))
    timers.send(cancel_timer(), message="cancel-timer")
    await timers.consume()
    row = await timers.row()
    assert (row["state"], row["due_at"], row["cancelled_at"]) == ("Cancelled", NOW, NOW)
    assert await fire_all(timers) == []

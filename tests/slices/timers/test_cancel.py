"""CancelTimer and RetryTimer, and batches of all commands. test_rules.py has every outcome."""

import json

from tests.harness.builders import cancel_timer, retry_timer, schedule_timer
from tests.harness.clock import NOW, after, iso
from tests.harness.timers import Timers, bodies
from tests.harness.wiring import VISIBILITY_TIMEOUT
from timer_service.core.values.codec import REPLY_TO
from timer_service.core.values.message import Position

DUE = after(minutes=1)
LATER = after(minutes=2)


async def fire_all(timers: Timers, until: int = LATER) -> list[str]:
    """Fire everything that can fire by `until`, also rows whose lease expires. Return the calls that fired."""
    timers.clock.set(until)
    await timers.tick()
    timers.clock.advance(seconds=VISIBILITY_TIMEOUT.total_seconds())
    await timers.tick()
    return timers.fired()


async def test_cancelled_before_it_is_due(timers: Timers) -> None:
    """A timer that is cancelled before its due time never fires, and no loop wakes for it."""
    await timers.schedule(due_at=DUE)
    timers.clock.advance(seconds=1)
    await timers.cancel()
    row = await timers.row()
    assert (row["state"], row["cancelled_at"], row["available_at"]) == ("Cancelled", NOW + 1000, None)
    assert (await timers.next_at(), timers.wakes) == (None, [DUE])
    assert await fire_all(timers) == []


async def test_cancelled_during_publishing(timers: Timers) -> None:
    """If a timer is cancelled while its event is being published, it fires once and stays cancelled."""
    await timers.schedule()
    timers.interrupt(timers.cancel)
    await timers.tick()
    row = await timers.row()
    assert (row["state"], row["reached_at"], row["lease_token"]) == ("Cancelled", None, None)
    assert (timers.metrics.lost, timers.metrics.settlements) == (1, {})
    assert await fire_all(timers) == ["call-1"]


async def test_commands_of_another_tenant(timers: Timers) -> None:
    """A tenant cannot cancel or retry the timer of another tenant with the same name."""
    await timers.schedule(due_at=DUE)
    await timers.cancel(tenant="other")
    await timers.retry(tenant="other")
    assert timers.outcomes() == {"scheduled": 1, "not_found": 2}
    assert await fire_all(timers) == ["call-1"]


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


async def test_retry_does_not_end_a_claim(timers: Timers) -> None:
    """A RetryTimer does not end the claim of a timer that is being published. The timer fires once and is settled."""
    await timers.schedule()
    timers.interrupt(timers.retry)
    await timers.tick()
    assert (timers.fired(), (await timers.row())["state"], timers.metrics.lost) == (["call-1"], "Reached", 0)


async def test_every_command_on_one_timer_in_a_batch(timers: Timers) -> None:
    """Each command of a batch sees the effects of the earlier commands on the timer. The last command wins."""
    await timers.fail("call-1")
    wakes = len(timers.wakes)
    batch = [
        ("retried", "retry-timer", retry_timer()),
        ("unchanged", "schedule-timer", schedule_timer(due_at=NOW)),
        ("rescheduled", "schedule-timer", schedule_timer(due_at=DUE)),
        ("unchanged", "retry-timer", retry_timer()),
        ("cancelled", "cancel-timer", cancel_timer()),
        ("unchanged", "cancel-timer", cancel_timer()),
        ("unchanged", "retry-timer", retry_timer()),
        ("scheduled", "schedule-timer", schedule_timer(due_at=after(hours=5), data=7)),
        ("not_found", "cancel-timer", cancel_timer("other")),
        ("updated", "schedule-timer", schedule_timer(due_at=after(hours=5), data=8)),
        ("scheduled", "schedule-timer", schedule_timer("other", after(hours=5))),
    ]
    for _, name, body in batch:
        timers.send(body, {REPLY_TO: "_INBOX.me"}, message=name)
    await timers.consume()
    outcomes = [json.loads(reply.body)["outcome"] for reply in timers.broker.replies]
    assert outcomes == [outcome for outcome, _, _ in batch]
    row = await timers.row()
    assert (row["state"], row["due_at"], row["data"]) == ("Scheduled", after(hours=5), "8")
    assert Position(row["position_epoch"], row["position_sequence"]) == Position(1, 11)
    assert timers.wakes[wakes:] == [DUE], "the earliest due time of the batch"
    assert sorted(await fire_all(timers, after(hours=5))) == ["call-1", "other"]

"""Timers that expire: their event and their state if they fire too late."""

from typing import Any

import pytest

from tests.harness.clock import NOW, after, iso
from tests.harness.memory_broker import never
from tests.harness.timers import Timers, always, bodies
from tests.harness.wiring import MAX_ATTEMPTS

DUE = after(minutes=1)
EXPIRY = after(minutes=2)


def events(timers: Timers) -> list[tuple[str, dict[str, Any]]]:
    """Return the type and the payload of each event."""
    return [(each["type"], each["payload"]) for each in bodies(timers.broker.events)]


async def fire_at(timers: Timers, at: int) -> None:
    timers.clock.set(at)
    await timers.tick()


@pytest.mark.parametrize(("at", "state"), [(EXPIRY - 1, "Reached"), (EXPIRY, "Expired"), (EXPIRY + 1, "Expired")])
@pytest.mark.parametrize("fields", [{"expiresAt": iso(EXPIRY)}, {"lateBy": "PT1M"}], ids=["expiresAt", "lateBy"])
async def test_exact_instant_of_the_expiry(timers: Timers, fields: dict[str, str], at: int, state: str) -> None:
    """A timer that fires at its expiry or later expires, and one millisecond before it is reached."""
    await timers.schedule(due_at=DUE, data={"a": 1}, **fields)
    await timers.schedule("no expiry", due_at=DUE)
    await fire_at(timers, at)
    kind, field = ("DueTimeReached", "reachedAt") if state == "Reached" else ("TimerExpired", "expiredAt")
    payload = {"tenantId": "acme", "serviceCallId": "call-1", "dueAt": iso(DUE), field: iso(at), "data": {"a": 1}}
    assert sorted(kind for kind, _ in events(timers)) == sorted([kind, "DueTimeReached"])
    assert (kind, payload) in events(timers)
    row, other = await timers.row(), await timers.row("no expiry")
    assert (row["state"], row["available_at"], other["state"]) == (state, None, "Reached")
    assert (row["reached_at"], row["expired_at"]) == ((at, None) if state == "Reached" else (None, at))
    view = await timers.ask("get-timer", {"serviceCallId": "call-1"})
    assert (view["state"], view["expiresAt"], view[field]) == (state, iso(EXPIRY), iso(at))
    assert timers.metrics.settlements["expired"] == (state == "Expired")


async def test_expired_timer_is_scheduled_again(timers: Timers) -> None:
    """Nothing of the expiry is left: the timer waits, is not deleted as an old one, and fires."""
    await timers.schedule(due_at=DUE, lateBy="PT1M")
    await fire_at(timers, EXPIRY)
    await timers.schedule(due_at=after(minutes=5))
    row = await timers.row()
    assert (row["state"], row["expired_at"], row["expires_at"]) == ("Scheduled", None, None)
    await fire_at(timers, after(minutes=5))
    assert [kind for kind, _ in events(timers)] == ["TimerExpired", "DueTimeReached"]


async def test_expired_alone_and_in_a_mixed_settlement(timers: Timers) -> None:
    """The state of a timer follows from its expiry too if its claim is not settled in one statement."""
    await timers.schedule("a", DUE, lateBy="PT1M")
    await timers.schedule("b", DUE)
    await timers.schedule("refused", DUE)
    timers.broker.refuses = lambda message: b'"refused"' in message.body
    await fire_at(timers, EXPIRY)
    states = {call: (await timers.row(call))["state"] for call in ("a", "b", "refused")}
    assert states == {"a": "Expired", "b": "Reached", "refused": "Scheduled"}


async def test_event_ids(timers: Timers) -> None:
    """The two events that a timer can have differ in their ids. The id of a repeated event is the same."""
    await timers.schedule(due_at=DUE, lateBy="PT1M")
    timers.broker.loses_acknowledgement_of = always
    for at in (DUE, after(minutes=1.5), EXPIRY, after(minutes=3)):
        await fire_at(timers, at)
    timers.broker.loses_acknowledgement_of = never
    await fire_at(timers, after(minutes=4))
    reached, expired = events(timers)  # the broker drops the repeated ids
    assert (reached[0], expired[0]) == ("DueTimeReached", "TimerExpired")
    assert len({message.id for message in timers.broker.events}) == 2
    assert (await timers.row())["state"] == "Expired"


async def test_failed_timer_that_is_retried_after_its_expiry(timers: Timers) -> None:
    """A Failed timer does not expire by itself. If it is retried after its expiry, it expires."""
    await timers.schedule(due_at=NOW, lateBy="PT1M")
    timers.broker.refuses = always
    for _ in range(MAX_ATTEMPTS):
        await timers.tick()
        timers.clock.advance(minutes=10)
    timers.broker.refuses = never
    assert (await timers.row())["state"] == "Failed"
    await timers.retry()
    await timers.tick()
    assert [kind for kind, _ in events(timers)] == ["TimerExpired"]
    assert (await timers.row())["state"] == "Expired"

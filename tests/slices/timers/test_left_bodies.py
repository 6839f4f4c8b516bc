"""Commands whose bodies were left in the log wait, and are read when their turn comes."""

import json

from tests.harness.builders import cancel_timer, schedule_timer
from tests.harness.clock import NOW
from tests.harness.timers import Timers
from timer_service.core.values.message import Position

LATER = NOW + 60_000
LONG = "x" * 1000
HUGE = "x" * 60_000


def send(timers: Timers, call: str, text: str, tenant: str = "acme") -> Position:
    return timers.send(schedule_timer(call, due_at=LATER, tenant=tenant, data=text), tenant=tenant)


async def data(timers: Timers, tenant: str = "acme") -> dict[str, object]:
    """Return the data of the timers of a tenant."""
    rows = await timers.database.reader.fetch(
        "SELECT service_call_id, COALESCE(data, text) AS data FROM timer_schedules AS timers "
        "LEFT JOIN long_texts AS texts ON texts.tenant_id = timers.tenant_id AND text_id = event_id "
        "WHERE timers.tenant_id = :tenant",
        {"tenant": tenant},
    )
    return {row["service_call_id"]: json.loads(row["data"]) for row in rows}


async def test_commands_keep_their_order(timers: Timers) -> None:
    """The commands of a tenant take effect in their order, whether their bodies were left in the log or not."""
    timers.broker.stored.leaves = 500
    for text in ("first", LONG, "third", LONG + "4"):
        send(timers, "call-1", text)
    send(timers, "call-2", LONG + "5")
    timers.send(cancel_timer("call-2"), message="cancel-timer")
    send(timers, "other", "short", tenant="other")
    await timers.consume()
    rows = await timers.database.reader.fetch("SELECT service_call_id, state FROM timer_schedules ORDER BY 1")
    states = [(row["service_call_id"], row["state"]) for row in rows]
    assert states == [("call-1", "Scheduled"), ("call-2", "Cancelled"), ("other", "Scheduled")]
    assert (await data(timers))["call-1"] == LONG + "4"
    assert await data(timers, "other") == {"other": "short"}


async def test_a_command_that_the_broker_has_removed(timers: Timers) -> None:
    """If the body is gone when the turn comes, a dead letter says so. The commands behind it take effect."""
    timers.broker.stored.leaves = 500
    sent = [send(timers, f"call-{number}", HUGE) for number in range(10)]
    await timers.reader.begin()
    await timers.reader.turn()
    assert len(await data(timers)) == 8
    timers.broker.stored.remove(sent[8])
    await timers.consume()
    assert set(await data(timers)) == {f"call-{number}" for number in range(10) if number != 8}
    (letter,) = timers.broker.dead_letters
    assert letter.headers["Timer-Body-Omitted"] == "true"
    assert "the broker removed this command" in letter.headers["Timer-Error-Message"]

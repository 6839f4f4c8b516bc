"""Parked events on every store: a consumer gives an event up, and a tenant lists it, resubmits it or drops it."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.harness.cases import case
from tests.harness.clock import NOW, ManualClock
from tests.harness.in_process import InProcess
from tests.harness.memory_broker import MemoryBroker, never
from timer_service.core.intake.batch import MOST_DATA
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.ports.database import Database
from timer_service.core.service.upkeep import Retention
from timer_service.core.values.address import Address, Kind
from timer_service.events import SLICE
from timer_service.events.messages import MAX_EVENT_BYTES

LIMITS = TenantLimits(tenants={"limited": Limits(parked_events=2)})


def event(name: str = "event-1", **payload: Any) -> dict[str, Any]:
    """Return a whole event, as the service publishes it."""
    return {
        "id": name,
        "type": "DueTimeReached",
        "tenantId": "acme",
        "topic": "unpaid",
        "timestampMs": NOW,
        "payload": {"tenantId": "acme", **payload},
    }


def parking(name: str = "event-1", consumer: str = "orders", **fields: Any) -> dict[str, Any]:
    """Return the payload of a ParkEvent."""
    return {"consumer": consumer, "event": event(name), "reason": "ValueError: no such order", "attempts": 5, **fields}


class Parked(InProcess):
    """The events slice in this process. An event that the broker refuses is buried after one attempt."""

    def __init__(self, database: Database, broker: MemoryBroker, clock: ManualClock) -> None:
        super().__init__(database, broker, clock, SLICE, max_attempts=1, limits=LIMITS)

    async def do(self, *commands: tuple[str, dict[str, Any]], tenant: str = "acme") -> list[str]:
        """Send commands, handle them, and return their outcomes in order."""
        first = self.sent
        for message_type, fields in commands:
            self.send(message_type, tenant=tenant, **fields)
        await self.consume()
        return [self.reply(number)["outcome"] for number in range(first, self.sent)]

    async def park(self, *names: str, consumer: str = "orders", tenant: str = "acme", **payload: Any) -> list[str]:
        """Park events of a consumer."""
        body = {name: {**event(name, **payload), "tenantId": tenant} for name in names}
        parked = [("ParkEvent", parking(consumer=consumer, event=body[name])) for name in names]
        return await self.do(*parked, tenant=tenant)

    async def resubmit(self, *names: str, consumer: str = "orders", tenant: str = "acme") -> list[str]:
        """Resubmit events of a consumer."""
        return await self.do(
            *[("ResubmitEvent", {"consumer": consumer, "eventId": name}) for name in names], tenant=tenant
        )

    async def drop(self, *names: str, consumer: str = "orders") -> list[str]:
        """Drop events of a consumer."""
        return await self.do(*[("DropEvent", {"consumer": consumer, "eventId": name}) for name in names])

    async def names(self, **query: Any) -> list[tuple[str, str]]:
        """Return the consumer and the id of each event in a list."""
        page = await self.ask("list-parked-events", **query)
        return [(each["consumer"], each["eventId"]) for each in page["events"]]


@pytest.fixture
def parked(store: Database, memory_broker: MemoryBroker, clock: ManualClock) -> Parked:
    """The events slice on each store in turn."""
    return Parked(store, memory_broker, clock)


VIEW = {
    "tenantId": "acme",
    "consumer": "orders",
    "eventId": "event-1",
    "eventType": "DueTimeReached",
    "about": {"serviceCallId": "order-1"},
    "parkedAt": "2026-11-21T09:00:00.000Z",
    "reason": "ValueError: no such order",
    "attempts": 5,
}


async def test_resubmitted_event_goes_to_its_consumer(parked: Parked) -> None:
    """A parked event is listed with its reason. A resubmit publishes it whole to its consumer, under a new message id.

    It is not parked any more. If its consumer parks it again, the next resubmit has another message id.
    """
    whole = event(serviceCallId="order-1", data={"n": [1, 2.5, None], "long": "é" * 2000, "zero": "\0"})
    assert await parked.do(("ParkEvent", parking(event=whole))) == ["parked"]
    assert await parked.ask("list-parked-events") == {"events": [VIEW]}
    assert await parked.ask("get-parked-event", consumer="orders", eventId="event-1") == {**VIEW, "event": whole}
    assert await parked.resubmit("event-1") == ["resubmitted"]
    assert parked.command_wakes == [NOW]
    assert await parked.names() == []
    assert (await parked.ask("get-parked-event", consumer="orders", eventId="event-1"))["error"]["code"] == "NOT_FOUND"
    assert await parked.do(("ParkEvent", parking(event=whole))) == ["parked"]
    assert await parked.resubmit("event-1", "event-1") == ["resubmitted", "not_found"]
    await parked.publish()
    address = Address(Kind.EVENT, "acme", "resubmitted", "orders")
    assert [(each.address, json.loads(each.body)) for each in parked.broker.events] == [(address, whole)] * 2
    first, second = (each.id for each in parked.broker.events)
    assert first != second
    assert "event-1" not in {first, second}


async def test_resubmitted_event_is_buried_and_retried(parked: Parked) -> None:
    """A resubmitted event that the broker refuses is buried like any other, and a RetryEvent publishes it."""
    await parked.park("event-1", "event-2", serviceCallId="order-1")
    await parked.resubmit("event-1", "event-2")
    parked.broker.refuses = lambda message: b'"event-1"' in message.body
    await parked.publish()
    parked.broker.refuses = never
    (buried,) = (await parked.ask("list-buried-events"))["events"]
    assert (buried["eventType"], buried["about"]) == ("DueTimeReached", {"serviceCallId": "order-1"})
    assert await parked.do(("RetryEvent", {"eventId": buried["eventId"]})) == ["retried"]
    await parked.publish()
    assert [json.loads(each.body)["id"] for each in parked.broker.events] == ["event-2", "event-1"]


RESUBMIT = ("ResubmitEvent", {"consumer": "orders", "eventId": "event-1"})
DROP = ("DropEvent", {"consumer": "orders", "eventId": "event-1"})
PARK = ("ParkEvent", parking())
AGAIN = ("ParkEvent", parking(reason="another", attempts=1))
STORIES: dict[str, tuple[Sequence[tuple[str, dict[str, Any]]], Sequence[str], Sequence[str], int]] = {
    "nothing is parked": ([RESUBMIT, DROP], ["not_found", "not_found"], [], 0),
    "the first reason stays": ([PARK, AGAIN], ["parked", "unchanged"], ["ValueError: no such order"], 0),
    "parked again after a drop": ([PARK, DROP, AGAIN, DROP, DROP], ["parked", "dropped"] * 2 + ["not_found"], [], 0),
    "parked again after a resubmit": (
        [PARK, RESUBMIT, AGAIN, RESUBMIT, PARK],
        ["parked", "resubmitted", "parked", "resubmitted", "parked"],
        ["ValueError: no such order"],
        2,
    ),
    "dropped after a resubmit": ([PARK, RESUBMIT, DROP], ["parked", "resubmitted", "not_found"], [], 1),
}


async def test_order_of_commands(parked: Parked) -> None:
    """Commands on one event have the same outcomes and effects, in one transaction or in several."""
    for name, (commands, outcomes, reasons, sent) in STORIES.items():
        for size in (1, 2, len(commands)):
            with case(f"{name}, {size} at a time"):
                parts = [commands[start : start + size] for start in range(0, len(commands), size)]
                assert [each for part in parts for each in await parked.do(*part)] == outcomes
                found = (await parked.ask("list-parked-events"))["events"]
                assert [each["reason"] for each in found] == reasons
                await parked.publish()
                assert len(parked.broker.events) == sent
                parked.broker.events.clear()
                await parked.drop("event-1")


async def test_each_consumer_and_tenant_has_its_own(parked: Parked, caplog: pytest.LogCaptureFixture) -> None:
    """One event can be parked for two consumers, and in two tenants. A command changes only that of its own.

    A resubmit and a drop are in the audit log, because operators send them.
    """
    caplog.set_level("INFO")
    await parked.park("event-1")
    await parked.park("event-1", consumer="Billing_2")
    await parked.park("event-1", tenant="other")
    assert await parked.resubmit("event-1", consumer="billing_2") == ["not_found"]
    assert await parked.resubmit("event-1") == ["resubmitted"]
    assert await parked.names() == [("Billing_2", "event-1")]
    assert await parked.names(tenant="other") == [("orders", "event-1")]
    assert await parked.names(consumer="orders") == []
    await parked.publish()
    assert [each.address[1:] for each in parked.broker.events] == [("acme", "resubmitted", "orders")]
    assert await parked.drop("event-1") == ["not_found"]
    types = [vars(each)["type"] for each in caplog.records if each.message == "operator action"]
    assert types == ["ResubmitEvent", "ResubmitEvent", "DropEvent"]


async def test_pages(parked: Parked) -> None:
    """The pages together have each event once, oldest first, of one consumer or of all."""
    for consumer in ("b", "a"):
        await parked.park(*(f"event-{number}" for number in range(3)), consumer=consumer)
    parked.clock.advance(milliseconds=1)
    await parked.park("an-event", consumer="a")
    at_once = [(each, f"event-{number}") for number in range(3) for each in ("a", "b")]
    expected: dict[str | None, list[tuple[str, str]]] = {
        "a": [*(each for each in at_once if each[0] == "a"), ("a", "an-event")],
        None: [*at_once, ("a", "an-event")],
    }
    for chosen, wanted in expected.items():
        seen: list[tuple[str, str]] = []
        query: dict[str, Any] = {"limit": 2} if chosen is None else {"limit": 2, "consumer": chosen}
        while True:
            page = await parked.ask("list-parked-events", **query)
            seen += [(each["consumer"], each["eventId"]) for each in page["events"]]
            if "cursor" not in page:
                break
            query["cursor"] = page["cursor"]
        assert seen == wanted
    assert (await parked.ask("list-parked-events", cursor="mine"))["error"]["errors"][0]["path"] == "cursor"


async def test_list_reads_no_body(parked: Parked) -> None:
    """A list shows the short texts at the start of the payload, whatever the event has."""
    odd = {
        "event-1": event("event-1", note="x" * 200, long="x" * 201, number=1, inner={"a": "b"}),
        "event-2": {**event("event-2", note="x"), "extra": "y" * 5000},
        "event-3": event("event-3", **{f"f{number:03}": "z" * 190 for number in range(100)}),
    }
    assert await parked.do(*[("ParkEvent", parking(event=each)) for each in odd.values()]) == ["parked"] * 3
    await parked.sql("UPDATE parked_events SET body = '{'")
    first, second, third = (each["about"] for each in (await parked.ask("list-parked-events"))["events"])
    assert first == {"note": "x" * 200}
    assert second == {}
    assert 10 < len(third) < 25


async def test_large_events_are_handled_in_parts(parked: Parked) -> None:
    """One transaction has 2 Mi characters of events, or one event. Each command is applied once, in order."""
    names = [f"event-{number}" for number in range(7)]
    size = MOST_DATA // 3
    assert await parked.park(*names, data="x" * size) == ["parked"] * 7
    assert await parked.resubmit(*names) == ["resubmitted"] * 7
    await parked.publish()
    assert [json.loads(each.body)["id"] for each in parked.broker.events] == names
    assert {len(each.body) > size for each in parked.broker.events} == {True}
    assert await parked.rows("parked_events") == await parked.rows("outbox") == await parked.rows("long_texts") == []


async def test_largest_event(parked: Parked) -> None:
    """The largest event that can be parked fits into a reply, whatever it has. A larger one is rejected by its size."""
    texts = {f"text{number}": "𝄞" * 200 for number in range(10)}  # what a list shows of the event is long, too
    largest = event(**texts, data="")
    frame = len(json.dumps(largest, separators=(",", ":"), ensure_ascii=False).encode())
    largest["payload"]["data"] = "x" * (MAX_EVENT_BYTES - frame)
    assert await parked.do(("ParkEvent", parking(event=largest, reason="\x01" * 1000))) == ["parked"]
    answer = await parked.queries.answer("get-parked-event", "acme", b'{"consumer": "orders", "eventId": "event-1"}')
    assert MAX_EVENT_BYTES < len(answer.body) < 2**20
    assert json.loads(answer.body)["event"] == largest
    largest["payload"]["data"] += "x"
    error = (await parked.request("ParkEvent", **parking(event=largest)))["error"]
    assert (error["code"], error["errors"][0]["path"]) == ("TOO_LARGE", "payload.event")
    assert f"{MAX_EVENT_BYTES + 1} bytes" in error["errors"][0]["reason"]


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "consumer": ("payload.consumer", {"consumer": "a.b"}),
    "no consumer": ("payload.consumer", {"consumer": ""}),
    "reason": ("payload.reason", {"reason": ""}),
    "long reason": ("payload.reason", {"reason": "x" * 1001}),
    "reason that cannot be stored": ("payload.reason", {"reason": "a\0b"}),
    "attempts": ("payload.attempts", {"attempts": 0}),
    "attempts as text": ("payload.attempts", {"attempts": "1"}),
    "many attempts": ("payload.attempts", {"attempts": 2**31}),
    "no event": ("payload.event", {"event": "event-1"}),
    "no id": ("payload.event.id", {"event": {"type": "a", "payload": {}}}),
    "no payload": ("payload.event.payload", {"event": {"id": "1", "type": "a"}}),
    "payload": ("payload.event.payload", {"event": {"id": "1", "type": "a", "payload": []}}),
    "event of another tenant": ("payload.event", {"event": {**event(), "tenantId": "other"}}),
    "unknown field": ("payload.more", {"more": 1}),
}


async def test_wrong_commands(parked: Parked) -> None:
    """A ParkEvent with a wrong field is rejected, and the rejection names the field."""
    for name, (path, fields) in WRONG.items():
        with case(name):
            error = (await parked.request("ParkEvent", **parking(**fields)))["error"]
            assert (error["code"], [each["path"] for each in error["errors"]]) == ("INVALID_PAYLOAD", [path])
    text = json.dumps(parking(event="?")).replace('"?"', '{"id": "1", "type": "a", "payload": {"n": 1e999}}')
    body = f'{{"type": "ParkEvent", "tenantId": "acme", "payload": {text}}}'.encode()
    parked.broker.send(Address(Kind.COMMAND, "acme", "park-event"), body)
    await parked.consume()
    assert "number that JSON cannot hold" in [*await parked.dead_letters()][-1].headers["Timer-Error-Message"]
    assert await parked.names() == []


async def test_limit(parked: Parked) -> None:
    """A tenant parks up to its limit. An event that is resubmitted or dropped makes room."""
    assert await parked.park("1", "2", "3", "1", tenant="limited") == ["parked", "parked", "over_quota", "unchanged"]
    assert parked.reply(2)["limit"] == {"name": "parked_events", "most": 2}
    assert await parked.resubmit("1", tenant="limited") == ["resubmitted"]
    assert await parked.park("3", "4", tenant="limited") == ["parked", "over_quota"]
    assert await parked.park("1", "2", "3") == ["parked"] * 3


async def test_old_parked_events_are_deleted(parked: Parked) -> None:
    """An event is deleted 30 days and a millisecond after it was parked. A longer retention time counts instead."""
    await parked.park("event-1")
    parked.clock.advance(milliseconds=1)
    await parked.park("event-2")
    assert SLICE.delete_settled is not None
    assert SLICE.keep(timedelta(days=90)) == timedelta(days=90)
    retention = Retention(parked.database, SLICE.keep(timedelta(days=7)), SLICE.delete_settled)
    month = 30 * 24 * 3600 * 1000
    assert ((await retention.tick(NOW + month)).done, await parked.names()) == (
        0,
        [("orders", f"event-{n}") for n in (1, 2)],
    )
    assert ((await retention.tick(NOW + month + 1)).done, await parked.names()) == (1, [("orders", "event-2")])


async def test_schema_refuses(parked: Parked) -> None:
    """A parked event has been tried, and has a body."""
    await parked.park("event-1")
    for change in ("attempts = 0", "body = NULL", "size = 0", "reason = NULL"):
        with case(change), pytest.raises(Exception, match=r"(?i)constraint"):
            await parked.sql(f"UPDATE parked_events SET {change}")

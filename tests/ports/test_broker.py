import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import nats.errors
import pytest
from nats.js.api import ConsumerInfo

from tests.harness.brokers import HARNESSES, BrokerHarness, NatsHarness, Stored
from tests.harness.builders import command_address, event, schedule_timer
from tests.harness.clock import NOW
from tests.harness.history import MemoryHistory
from tests.harness.nats_client import round_trip
from timer_service.adapters.nats import NatsBroker, backlog, publisher
from timer_service.adapters.nats.durable import DurableConsumer
from timer_service.core.intake.rejection import Rejected
from timer_service.core.ports.broker import (
    PUBLISHED,
    PublishStatus,
    QueryHandler,
    QueryReply,
    Reply,
    SendReply,
    Subscription,
)
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Address, Kind, Message

PATIENCE_SECONDS = 30
DELAY = timedelta(seconds=1)


async def send(harness: BrokerHarness, *calls: str, tenant: str = "acme") -> None:
    for call in calls:
        await harness.send(command_address(tenant), schedule_timer(call, tenant=tenant), {"number": call}, f"id-{call}")


async def take(subscription: Subscription, count: int) -> list[Delivery]:
    """Take exactly `count` commands, in any number of batches."""
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < count:
            taken += await subscription.next_batch(count - len(taken))
    return taken


async def wait_until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Poll a condition until it is true. The broker does not announce it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await reached():
            await asyncio.sleep(0.01)


def ids(found: Sequence[Stored] | Sequence[Delivery]) -> list[str]:
    return [each.id if isinstance(each, Stored) else each.message_id for each in found]


async def statuses(harness: BrokerHarness, messages: Sequence[Message]) -> list[PublishStatus]:
    return [result.status for result in await harness.broker.publish(messages)]


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 2500])
async def test_publish_any_number(harness: BrokerHarness, count: int) -> None:
    """Any number of messages can be published in one call. Each gets a result and is stored once, in order."""
    messages = [event(number) for number in range(count)]
    assert await harness.broker.publish(messages) == [PUBLISHED] * count
    assert ids(await harness.events("acme")) == [message.id for message in messages]


async def test_stored_message_is_complete(harness: BrokerHarness) -> None:
    """A stored message has its address, id, headers and body, which may be any bytes."""
    message = Message(
        Address(Kind.EVENT, "acme", "due-time-reached"),
        "event-1",
        b'\x00\xff\r\n{"a": "\xc3\xa9"}',
        {"traceparent": "00-1-2-01", "Timer-Error-Message": "two words, and a: colon"},
    )
    await harness.broker.publish([message])
    (stored,) = await harness.events("acme")
    assert (stored.address, stored.id, stored.body) == (message.address, message.id, message.body)
    assert dict(stored.headers) | dict(message.headers) == dict(stored.headers)


async def test_publish_to_several_addresses(harness: BrokerHarness) -> None:
    """One call can publish events of several tenants and dead letters. Each goes to its own address."""
    letter = Message(Address(Kind.DEAD_LETTER, "acme", "schedule-timer"), "dlq-1", b"x", {})
    assert await statuses(harness, [event(1), letter, event(2, tenant="other")]) == [PublishStatus.PUBLISHED] * 3
    assert ids(await harness.events("acme")) == ["event-1"]
    assert ids(await harness.events("other")) == ["event-2"]
    assert ids(await harness.dead_letters("acme")) == ["dlq-1"]


async def test_dead_letter_with_an_invalid_tenant(harness: BrokerHarness) -> None:
    """A dead letter is stored even if its address has an invalid tenant name."""
    letter = Message(Address(Kind.DEAD_LETTER, "Ä!", "schedule-timer"), "dlq-1", b"x", {})
    assert await statuses(harness, [letter]) == [PublishStatus.PUBLISHED]
    assert ids(await harness.dead_letters("Ä!")) == ["dlq-1"]


async def test_same_id_in_another_call(harness: BrokerHarness) -> None:
    """A message that is published again counts as published. A broker that deduplicates stores it once."""
    copies = 1 if harness.broker.features.deduplicates else 2
    both = [await statuses(harness, [event(1)]) for _ in range(2)]
    assert both == [[PublishStatus.PUBLISHED]] * 2
    assert ids(await harness.events("acme")) == ["event-1"] * copies


async def test_same_id_among_new_messages(harness: BrokerHarness) -> None:
    """A message that is already stored does not prevent the other messages of the call from being stored."""
    await statuses(harness, [event(2)])
    copies = ["event-2"] if harness.broker.features.deduplicates else ["event-2"] * 2
    assert await statuses(harness, [event(number) for number in range(12)]) == [PublishStatus.PUBLISHED] * 12
    others = [f"event-{number}" for number in range(12) if number != 2]
    assert sorted(ids(await harness.events("acme"))) == sorted([*others, *copies])


@pytest.mark.parametrize("times", [2, 12])
async def test_same_id_twice_in_one_call(harness: BrokerHarness, times: int) -> None:
    """The same message twice in one call counts as published each time."""
    copies = 1 if harness.broker.features.deduplicates else times
    assert await statuses(harness, [event(1)] * times) == [PublishStatus.PUBLISHED] * times
    assert ids(await harness.events("acme")) == ["event-1"] * copies


async def test_message_that_is_too_large(harness: BrokerHarness) -> None:
    """A message above the size limit is refused with a reason. The other messages of the call are stored."""
    too_large = event(2, size=harness.broker.features.max_message_bytes + 1)
    results = await harness.broker.publish([event(1), too_large, event(3)])
    assert [result.status for result in results] == [
        PublishStatus.PUBLISHED,
        PublishStatus.REFUSED,
        PublishStatus.PUBLISHED,
    ]
    assert results[1].reason
    assert ids(await harness.events("acme")) == ["event-1", "event-3"]


async def test_concurrent_calls(harness: BrokerHarness) -> None:
    """Concurrent calls each get their own results."""
    too_large = event(999, size=harness.broker.features.max_message_bytes + 1)
    calls = [[event(number * 10), event(number * 10 + 1)] for number in range(10)]
    found = await asyncio.gather(*(statuses(harness, call) for call in [*calls, [too_large]]))
    assert found == [[PublishStatus.PUBLISHED] * 2] * 10 + [[PublishStatus.REFUSED]]
    assert len(await harness.events("acme")) == 20


async def test_delivery_is_complete(harness: BrokerHarness) -> None:
    """A delivery has the command as it was sent, its source and attempt 1."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await harness.send(command_address("tenant_1-A"), b"\x00 body", {"Timer-Reply-To": "_INBOX.a"}, "my-id")
    (delivery,) = await take(subscription, 1)
    assert delivery.address == Address(Kind.COMMAND, "tenant_1-A", "schedule-timer")
    assert (delivery.message_id, delivery.body, delivery.attempt) == ("my-id", b"\x00 body", 1)
    assert delivery.headers.get("Timer-Reply-To") == "_INBOX.a"
    assert "tenant_1-A" in delivery.source


async def test_batches_keep_order_and_limit(harness: BrokerHarness) -> None:
    """Commands arrive in the order they were sent, with rising positions. No batch exceeds its limit."""
    calls = [f"call-{number}" for number in range(25)]
    await send(harness, *calls)
    subscription = await harness.broker.subscribe(MemoryHistory())
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < 25:
            batch = await subscription.next_batch(10)
            assert 1 <= len(batch) <= 10
            taken += batch
    assert [delivery.headers.get("number") for delivery in taken] == calls
    positions = [delivery.position for delivery in taken]
    assert positions == sorted(set(positions))


async def test_waits_for_commands(harness: BrokerHarness) -> None:
    """If there are no commands, a subscription waits for the first one."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    waiting = asyncio.create_task(take(subscription, 1))
    await asyncio.sleep(0)
    was_done = waiting.done()
    await send(harness, "late")
    assert (was_done, ids(await waiting)) == (False, ["id-late"])


async def test_subscription_takes_every_tenant(harness: BrokerHarness) -> None:
    """One subscription gets the commands of every tenant."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a", tenant="acme")
    await send(harness, "b", tenant="other")
    taken = await take(subscription, 2)
    assert [delivery.address.tenant for delivery in taken] == ["acme", "other"]


async def test_unsettled_command_comes_again(harness: BrokerHarness) -> None:
    """An unsettled command comes again as the next attempt, at the same position and with the same command time.

    Acknowledged commands do not come again.
    """
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a", "b", "c")
    first = await take(subscription, 3)
    await subscription.acknowledge([first[0], first[2]])
    await harness.expire_deliveries()
    (again,) = await take(subscription, 1)
    assert (again.message_id, again.attempt, again.position) == ("id-b", 2, first[1].position)
    assert again.stored_at == first[1].stored_at > 0
    assert (again.body, dict(again.headers.items())) == (first[1].body, dict(first[1].headers.items()))


async def test_acknowledged_command_never_comes_again(harness: BrokerHarness) -> None:
    """An acknowledged command does not come again, to this or another subscription. Later commands arrive."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a", "b")
    await subscription.acknowledge(await take(subscription, 2))
    await harness.expire_deliveries()
    await subscription.close()
    await send(harness, "c")
    assert ids(await take(await harness.broker.subscribe(MemoryHistory()), 1)) == ["id-c"]


async def test_terminated_command_never_comes_again(harness: BrokerHarness) -> None:
    """A terminated command does not come again. Later commands arrive."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a")
    await subscription.terminate(await take(subscription, 1))
    await harness.expire_deliveries()
    await send(harness, "b")
    assert ids(await take(subscription, 1)) == ["id-b"]


async def test_retried_command_comes_again_later(harness: BrokerHarness) -> None:
    """A retried command comes again after its delay, behind the commands that already wait."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a")
    await subscription.retry(await take(subscription, 1), DELAY)
    await send(harness, "b")
    (other,) = await take(subscription, 1)
    await subscription.acknowledge([other])
    await harness.expire_deliveries()
    (again,) = await take(subscription, 1)
    assert (other.message_id, again.message_id, again.attempt) == ("id-b", "id-a", 2)


@pytest.mark.slow
async def test_command_retried_many_times(harness: BrokerHarness) -> None:
    """A command can be retried many times. Each delivery has the next attempt number."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a")
    attempts = []
    for _ in range(12):
        taken = await take(subscription, 1)
        attempts.append(taken[0].attempt)
        await subscription.retry(taken, timedelta(0))
        await harness.expire_deliveries()
    assert attempts == list(range(1, 13))


async def test_settling_nothing(harness: BrokerHarness) -> None:
    """Settling an empty list of deliveries does nothing."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await subscription.acknowledge([])
    await subscription.retry([], DELAY)
    await subscription.terminate([])
    await send(harness, "a")
    assert ids(await take(subscription, 1)) == ["id-a"]


async def test_closing_ends_the_wait(harness: BrokerHarness) -> None:
    """A subscription that is closed while it waits returns no commands, then and later."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    waiting = asyncio.create_task(subscription.next_batch(10))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await subscription.close()
        first = list(await waiting)
        await send(harness, "a")
        second = list(await subscription.next_batch(10))
    assert (first, second) == ([], [])


async def test_closed_subscription_still_settles(harness: BrokerHarness) -> None:
    """Deliveries of a closed subscription can still be settled. Its other commands go to the next subscription."""
    first = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a", "b", "c")
    taken = await take(first, 1)
    await first.close()
    await first.acknowledge(taken)
    await harness.expire_deliveries()
    second = await harness.broker.subscribe(MemoryHistory())
    assert sorted(ids(await take(second, 2))) == ["id-b", "id-c"]


async def test_put_back(harness: BrokerHarness) -> None:
    """Commands that were put back come again first, in the given order, and as the same attempt."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a", "b", "c", "d")
    first, second, third = await take(subscription, 3)
    await subscription.put_back([third, first])
    await subscription.acknowledge([second])
    again = await take(subscription, 3)
    assert ids(again) == ["id-c", "id-a", "id-d"]
    assert [delivery.attempt for delivery in again] == [1, 1, 1]
    assert [delivery.position for delivery in again[:2]] == [third.position, first.position]
    await subscription.acknowledge(again)
    await harness.expire_deliveries()
    await send(harness, "e")
    assert ids(await take(subscription, 1)) == ["id-e"]


async def test_put_back_in_parts(harness: BrokerHarness) -> None:
    """A batch takes no more than the limit of the commands that were put back, and the others keep their place."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, *"abcdef")
    taken = await take(subscription, 5)
    await subscription.put_back(taken)
    batches = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(2):
            batch = await subscription.next_batch(2)
            batches.append(ids(batch))
            await subscription.put_back(batch[1:])
            await subscription.acknowledge(batch[:1])
    assert batches == [["id-a", "id-b"], ["id-b", "id-c"]]
    assert ids(await take(subscription, 4)) == ["id-c", "id-d", "id-e", "id-f"]


@pytest.mark.parametrize("closed_first", [False, True])
async def test_put_back_and_close(harness: BrokerHarness, *, closed_first: bool) -> None:
    """Commands that were put back before or after the subscription was closed go to the next subscription."""
    first = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a", "b")
    taken = await take(first, 2)
    if closed_first:
        await first.close()
    await first.put_back(taken)
    if not closed_first:
        await first.close()
    second = await harness.broker.subscribe(MemoryHistory())
    assert sorted(ids(await take(second, 2))) == ["id-a", "id-b"]


async def test_subscriptions_share_commands(harness: BrokerHarness) -> None:
    """If there are two subscriptions, each command goes to one of them."""
    subscriptions = [await harness.broker.subscribe(MemoryHistory()) for _ in range(2)]
    await send(harness, *(f"call-{number}" for number in range(40)))

    async def work(subscription: Subscription) -> list[str]:
        mine: list[str] = []
        while batch := await subscription.next_batch(3):
            mine += ids(batch)
            await subscription.acknowledge(batch)
            done.update(ids(batch))
            if len(done) == 40:
                for each in subscriptions:
                    await each.close()
        return mine

    done: set[str] = set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        shares = await asyncio.gather(*map(work, subscriptions))
    assert sorted(shares[0] + shares[1]) == sorted(f"id-call-{number}" for number in range(40))


async def test_replies_reach_their_inboxes(harness: BrokerHarness) -> None:
    """Replies reach their inboxes, in order."""
    first, second = await harness.inbox(), await harness.inbox()
    await harness.broker.reply([Reply(first.address, b"1"), Reply(second.address, b"2"), Reply(first.address, b"3")])
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = [await first.next(), await first.next(), await second.next()]
    assert answers == [b"1", b"3", b"2"]


async def test_reply_without_a_receiver(harness: BrokerHarness) -> None:
    """A reply to an inbox without a subscriber is lost without an error. The next reply arrives."""
    inbox = await harness.inbox()
    await harness.broker.reply([Reply("_INBOX.nobody", b"1"), Reply(inbox.address, b"2")])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await inbox.next() == b"2"


async def test_publishing_during_an_outage(harness: BrokerHarness) -> None:
    """During an outage every message gets the result UNAVAILABLE, without an exception. Afterwards it is published."""
    before = harness.broker.health.reason
    await harness.stop()
    results = await harness.broker.publish([event(1), event(2)])
    away = harness.broker.health.reason
    await harness.broker.reply([Reply("_INBOX.nobody", b"1")])
    await harness.start()
    after = harness.broker.health.reason
    assert [result.status for result in results] == [PublishStatus.UNAVAILABLE] * 2
    assert all(result.reason for result in results)
    assert (before, bool(away), after) == (None, True, None)
    assert await statuses(harness, [event(1), event(2), event(3)]) == [PublishStatus.PUBLISHED] * 3
    assert sorted(set(ids(await harness.events("acme")))) == ["event-1", "event-2", "event-3"]


async def test_outage_between_publishes(harness: BrokerHarness) -> None:
    """A message from before an outage is still stored after it. Publishing it again does not store it twice."""
    copies = 1 if harness.broker.features.deduplicates else 2
    await statuses(harness, [event(1)])
    await harness.stop()
    await harness.start()
    assert await statuses(harness, [event(1)]) == [PublishStatus.PUBLISHED]
    assert ids(await harness.events("acme")) == ["event-1"] * copies


async def test_subscription_outlives_an_outage(harness: BrokerHarness) -> None:
    """A subscription continues after an outage. It gets the unsettled commands and the new ones."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a")
    await take(subscription, 1)
    await harness.stop()
    await harness.start()
    await send(harness, "b")
    await harness.expire_deliveries()
    taken = await take(subscription, 2)
    await subscription.acknowledge(taken)
    assert sorted(ids(taken)) == ["id-a", "id-b"]


# The backlog


async def reconnect(harness: BrokerHarness, *calls: str) -> None:
    """Lose the broker and get it back. Then send commands before the next question for the backlog."""
    await harness.stop()
    assert not await harness.broker.caught_up()
    await harness.start()
    await send(harness, *calls)


async def test_caught_up_without_commands(harness: BrokerHarness) -> None:
    """An instance without commands is caught up until commands arrive."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    found = [await harness.broker.caught_up()]
    await send(harness, "later")
    found.append(await harness.broker.caught_up())
    await subscription.acknowledge(await take(subscription, 1))
    await wait_until(harness.broker.caught_up)
    assert found == [True, False]


async def test_caught_up_after_an_outage(harness: BrokerHarness) -> None:
    """The commands that waited when the broker came back must all be settled. Later commands need not."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    await reconnect(harness, "a", "b", "c")
    found = [await harness.broker.caught_up()]
    await send(harness, "later")
    taken = await take(subscription, 3)
    found.append(await harness.broker.caught_up())
    await subscription.acknowledge(taken[:2])
    found.append(await harness.broker.caught_up())
    await subscription.terminate(taken[2:])
    await wait_until(harness.broker.caught_up)
    assert found == [False] * 3


async def test_caught_up_waits_for_retried_commands(harness: BrokerHarness) -> None:
    """A retried command still belongs to the backlog, until another subscription settles it."""
    await reconnect(harness, "a")
    await harness.broker.caught_up()
    first, second = [await harness.broker.subscribe(MemoryHistory()) for _ in range(2)]
    await first.retry(await take(first, 1), timedelta(0))
    assert not await harness.broker.caught_up()
    await first.close()
    await harness.expire_deliveries()
    await second.acknowledge(await take(second, 1))
    await wait_until(harness.broker.caught_up)


async def test_caught_up_after_each_outage(harness: BrokerHarness) -> None:
    """Each time the broker comes back there can be a new backlog."""
    subscription = await harness.broker.subscribe(MemoryHistory())
    for call in ("a", "b"):
        await reconnect(harness, call)
        assert not await harness.broker.caught_up()
        await subscription.acknowledge(await take(subscription, 1))
        await wait_until(harness.broker.caught_up)
    await reconnect(harness)
    await wait_until(harness.broker.caught_up)
    assert harness.broker.outages == 3


@pytest.mark.parametrize(
    ("size", "headers"), [(900_000, {}), (0, {f"{number:04}": "" for number in range(5_000)})], ids=["body", "headers"]
)
async def test_batches_are_bounded_by_bytes(harness: BrokerHarness, size: int, headers: dict[str, str]) -> None:
    """A batch never exceeds its limit in bytes, even if the limit in commands is high. All commands arrive."""
    most = 2 * max(size, 45_000) + 1_000
    for number in range(30):
        await harness.send(command_address("acme"), b"x" * size, headers, f"id-{number}")
    subscription = await harness.broker.subscribe(MemoryHistory(), batch_bytes=most)
    taken: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < 30:
            batch = await subscription.next_batch(500)
            assert 0 < sum(each.size for each in batch) <= most
            assert all(each.size >= size + 8 * len(headers) for each in batch)
            taken += ids(batch)
    assert taken == [f"id-{number}" for number in range(30)]


async def test_single_instance_gets_unsettled_commands_at_once(harness: BrokerHarness) -> None:
    """A single instance gets the unsettled commands of a dead instance at once, each of them once."""
    dead = await harness.broker.subscribe(MemoryHistory())
    await send(harness, "a", "b", "c")
    await dead.acknowledge((await take(dead, 3))[:1])
    await dead.close()
    subscription = await harness.broker.subscribe(MemoryHistory(), alone=True)
    async with asyncio.timeout(2):
        taken = await take(subscription, 2)
    await subscription.acknowledge(taken)
    await send(harness, "d")
    (later,) = await take(subscription, 1)
    assert sorted((each.message_id, each.attempt) for each in taken) == [("id-b", 2), ("id-c", 2)]
    assert (later.message_id, later.attempt) == ("id-d", 1)


# Queries


def repeated(name: str, tenant: str, body: bytes) -> QueryReply:
    """Return the reply to a query: its name, tenant and body. The body `error` gets an error."""
    answer = f"{name} of {tenant}: ".encode() + body
    if body == b"error":
        return QueryReply(answer, Code.INVALID_PAYLOAD, "the query is invalid: é, and two\r\nlines: of it")
    return QueryReply(answer)


async def repeat(name: str, tenant: str, body: bytes, send: SendReply) -> None:
    """Answer a query with `repeated`."""
    await send(repeated(name, tenant, body))


async def test_queries_are_answered(harness: BrokerHarness) -> None:
    """The handler gets the name, the tenant and the body of a query. The client gets the reply."""
    await harness.broker.serve_queries(["get-timer", "list-timers"], repeat)
    asked = [
        ("get-timer", "acme", b"1"),
        ("list-timers", "tenant_1-A", b""),
        ("get-timer", "other", b"\x00\xff\r\n"),
    ]
    answers = [await harness.ask(*query) for query in asked]
    assert answers == [repeated(*query) for query in asked]


async def test_concurrent_queries(harness: BrokerHarness) -> None:
    """Concurrent queries each get their own reply."""
    await harness.broker.serve_queries(["get-timer"], repeat)
    asked = [("get-timer", f"tenant-{number % 7}", str(number).encode()) for number in range(50)]
    answers = await asyncio.gather(*(harness.ask(*query) for query in asked))
    assert list(answers) == [repeated(*query) for query in asked]


async def test_query_error(harness: BrokerHarness) -> None:
    """The client gets the body, the code and the message of an error. The next query is answered."""
    await harness.broker.serve_queries(["get-timer"], repeat)
    error = await harness.ask("get-timer", "acme", b"error")
    assert (error.body, error.code) == (b"get-timer of acme: error", Code.INVALID_PAYLOAD)
    assert " ".join(error.message.split()) == "the query is invalid: é, and two lines: of it"
    assert await harness.ask("get-timer", "acme", b"2") == QueryReply(b"get-timer of acme: 2")


async def test_large_reply(harness: BrokerHarness) -> None:
    """A reply of the largest allowed size arrives whole."""
    body = b"x" * harness.broker.features.max_message_bytes

    async def answer(_name: str, _tenant: str, _body: bytes, send: SendReply) -> None:
        await send(QueryReply(body))

    await harness.broker.serve_queries(["list-timers"], answer)
    assert (await harness.ask("list-timers", "acme", b"")).body == body


async def test_queries_after_an_outage(harness: BrokerHarness) -> None:
    """Queries are answered again after an outage."""
    await harness.broker.serve_queries(["get-timer"], repeat)
    await harness.stop()
    await harness.start()
    assert await harness.ask("get-timer", "acme", b"1") == QueryReply(b"get-timer of acme: 1")


# Hints


async def test_hints_reach_every_listener(harness: BrokerHarness) -> None:
    """Every listener gets the loop and the instant of every hint, including its own hints."""
    notified: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    others: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await harness.broker.subscribe_hints(lambda *hint: notified.put_nowait(hint))
    await harness.broker.subscribe_hints(lambda *hint: others.put_nowait(hint))
    await harness.broker.hint("timers", 1_795_000_000_000)
    await harness.broker.hint("outbox", 0)
    async with asyncio.timeout(10):
        received = [[await each.get() for _ in range(2)] for each in (notified, others)]
    assert received == [[("timers", 1_795_000_000_000), ("outbox", 0)]] * 2


async def test_hints_are_lost_in_an_outage(harness: BrokerHarness) -> None:
    """A hint that is sent during an outage is lost without an error. Later hints arrive."""
    notified: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await harness.broker.subscribe_hints(lambda *hint: notified.put_nowait(hint))
    await harness.stop()
    await harness.broker.hint("timers", 1)
    await harness.start()
    await harness.broker.hint("timers", 2)
    async with asyncio.timeout(10):
        assert await notified.get() == ("timers", 2)


@pytest.fixture
async def nats_harness(request: pytest.FixtureRequest) -> AsyncIterator[NatsHarness]:
    """Return a NATS broker, for tests of NATS alone."""
    async with HARNESSES["nats"](request) as started:
        assert isinstance(started, NatsHarness)
        yield started


async def test_nats_micro_service(nats_harness: NatsHarness) -> None:
    """On NATS the queries are a micro service. It answers PING by its name and lists the subjects of its endpoints."""
    await nats_harness.broker.serve_queries(["get-timer", "count-timers"], repeat)
    pings = [
        json.loads((await nats_harness.user.request(subject, timeout=10)).data)
        for subject in ("$SRV.PING", "$SRV.PING.timer-service")
    ]
    info = json.loads((await nats_harness.user.request("$SRV.INFO.timer-service", timeout=10)).data)
    assert [(ping["name"], ping["version"]) for ping in pings] == [("timer-service", version("timer-service"))] * 2
    assert {each["name"]: each["subject"] for each in info["endpoints"]} == {
        "get-timer": "timer.qry.v1.*.get-timer",
        "count-timers": "timer.qry.v1.*.count-timers",
    }


async def test_nats_error_headers(nats_harness: NatsHarness) -> None:
    """On NATS an error has the headers of micro services, each on one line. Other replies have no headers."""
    await nats_harness.broker.serve_queries(["get-timer"], repeat)
    error = await nats_harness.user.request("timer.qry.v1.acme.get-timer", b"error", timeout=10)
    success = await nats_harness.user.request("timer.qry.v1.acme.get-timer", b"1", timeout=10)
    assert set(error.headers or {}) == {"Nats-Service-Error", "Nats-Service-Error-Code"}
    assert (error.headers or {})["Nats-Service-Error-Code"] == "INVALID_PAYLOAD"
    assert not success.headers


@pytest.mark.parametrize(
    "reply",
    ["timer.evt.v1.other.due-time-reached", "timer.cmd.v1.other.schedule-timer", "victim", "_INBOX", "_inbox.me", ""],
)
async def test_nats_reply_subject_outside_inboxes(nats_harness: NatsHarness, reply: str) -> None:
    """A query whose reply subject is not an inbox is ignored. Its handler does not run."""
    asked: list[bytes] = []

    async def answer(name: str, tenant: str, body: bytes, send: SendReply) -> None:
        asked.append(body)
        await repeat(name, tenant, body, send)

    await nats_harness.broker.serve_queries(["get-timer"], answer)
    seen = await nats_harness.user.subscribe(reply or ">")
    await nats_harness.user.publish("timer.qry.v1.acme.get-timer", b"elsewhere", reply=reply)
    last = await nats_harness.ask(
        "get-timer", "acme", b"1"
    )  # on the same subscription, so the query before it is handled by now
    await round_trip(nats_harness.user)
    subjects = {(await seen.next_msg(1)).subject for _ in range(seen.pending_msgs)}
    assert (asked, last.body) == ([b"1"], b"get-timer of acme: 1")
    assert {subject for subject in subjects if not subject.startswith(("_INBOX.", "timer.qry."))} == set()


async def test_nats_instances_share_queries(nats_harness: NatsHarness) -> None:
    """One of two instances answers each query. If one is closed, the other continues."""
    answered: list[int] = []

    def by(number: int) -> QueryHandler:
        async def answer(name: str, tenant: str, body: bytes, send: SendReply) -> None:
            answered.append(number)
            await repeat(name, tenant, body, send)

        return answer

    url = nats_harness.user.connected_url
    assert url is not None
    second = await NatsBroker.connect(url.geturl(), "timer", reply_prefix="_INBOX.", manage_streams=True)
    await nats_harness.broker.serve_queries(["get-timer"], by(1))
    await second.serve_queries(["get-timer"], by(2))
    for number in range(20):
        await nats_harness.ask("get-timer", "acme", str(number).encode())
    both = len(answered)
    await second.close()
    for number in range(5):
        await nats_harness.ask("get-timer", "acme", str(number).encode())
    assert (both, answered[20:]) == (20, [1] * 5)


@pytest.mark.parametrize("body", [b"", b"soon", b"-1", b"1" * 400])
async def test_nats_invalid_hint(nats_harness: NatsHarness, body: bytes) -> None:
    """On NATS a message on a hint subject that is not a valid hint is ignored."""
    notified: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await nats_harness.broker.subscribe_hints(lambda *hint: notified.put_nowait(hint))
    await nats_harness.broker._client.flush()
    await nats_harness.user.publish("timer.wake.v1.timers", body)
    await round_trip(nats_harness.user)
    await nats_harness.broker.hint("timers", 7)
    async with asyncio.timeout(10):
        assert await notified.get() == ("timers", 7)


# The consumer and its pulls, on NATS only


async def consumer(harness: NatsHarness) -> ConsumerInfo:
    info: ConsumerInfo = await harness.user.jetstream().consumer_info("TIMER_CMD", "timer-service")
    return info


async def test_nats_caught_up_by_others(nats_harness: NatsHarness) -> None:
    """An instance without a subscription sees whether other instances have settled the commands."""
    js = nats_harness.user.jetstream()
    await js.delete_stream("TIMER_EVT")  # it is not involved
    await send(nats_harness, "a", "b")
    url = nats_harness.user.connected_url
    assert url is not None
    worker = await NatsBroker.connect(url.geturl(), "timer", reply_prefix="_INBOX.", manage_streams=True)
    found = [await worker.caught_up()]
    subscription = await nats_harness.broker.subscribe(MemoryHistory())
    found.append(await worker.caught_up())
    await subscription.acknowledge(await take(subscription, 2))
    await wait_until(worker.caught_up)
    assert found == [False, False]
    await worker.close()


async def test_nats_caught_up_without_the_last_messages(nats_harness: NatsHarness) -> None:
    """Messages that are no commands or that were deleted from the stream do not belong to the backlog."""
    js = nats_harness.user.jetstream()
    config = (await js.stream_info("TIMER_CMD")).config
    await js.update_stream(config.evolve(subjects=[*(config.subjects or []), "notes"]))
    subscription = await nats_harness.broker.subscribe(MemoryHistory())
    await send(nats_harness, "a", "b")
    await js.publish("notes", b"no command")
    await js.delete_msg("TIMER_CMD", 2)
    taken = await take(subscription, 1)
    before = await nats_harness.broker.caught_up()
    await subscription.acknowledge(taken)
    await wait_until(nats_harness.broker.caught_up)
    assert not before


async def test_nats_caught_up_with_a_recreated_stream(nats_harness: NatsHarness) -> None:
    """A recreated stream has a new backlog, even if it is shorter than the old one."""
    js = nats_harness.user.jetstream()
    config = (await js.stream_info("TIMER_CMD")).config
    await nats_harness.broker.subscribe(MemoryHistory())
    await send(nats_harness, *"abcdef")
    before = await nats_harness.broker.caught_up()
    await js.delete_stream("TIMER_CMD")
    await js.add_stream(config)
    await send(nats_harness, "g")
    gone = await nats_harness.broker.caught_up()
    subscription = await nats_harness.broker.subscribe(MemoryHistory())
    between = await nats_harness.broker.caught_up()
    await subscription.acknowledge(await take(subscription, 1))
    await wait_until(nats_harness.broker.caught_up)
    assert (before, gone, between) == (False, False, False)


async def test_nats_stuck_command(nats_harness: NatsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backlog ends without a command that is never settled. It does not end without an undelivered command."""
    monkeypatch.setattr(backlog, "_STUCK_AFTER", timedelta(0))
    await send(nats_harness, "a", "b")
    subscription = await nats_harness.broker.subscribe(MemoryHistory())
    found = [await nats_harness.broker.caught_up()]
    await take(subscription, 2)
    await wait_until(nats_harness.broker.caught_up)
    assert found == [False]


async def test_nats_command_larger_than_a_batch(nats_harness: NatsHarness) -> None:
    """A command larger than a batch is delivered alone. The other commands are delivered as usual."""
    for number, size in enumerate((10, 20_000, 10, 10_001, 30_000, 10)):
        await nats_harness.send(command_address("acme"), b"x" * size, {}, f"id-{number}")
    subscription = await nats_harness.broker.subscribe(MemoryHistory(), batch_bytes=10_000)
    taken: list[list[str]] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum(map(len, taken)) < 6:
            taken.append(ids(await subscription.next_batch(500)))
    assert taken == [["id-0"], ["id-1"], ["id-2"], ["id-3"], ["id-4"], ["id-5"]]


async def test_nats_consumer_settings_of_the_operator_stay(nats_harness: NatsHarness) -> None:
    """The operator's consumer settings stay, even after an instance has shortened `ack_wait` for a moment."""
    await nats_harness.broker.subscribe(MemoryHistory())
    js = nats_harness.user.jetstream()
    chosen = {"ack_wait": 45.0, "max_ack_pending": 123, "description": "ours", "metadata": {"owner": "ops"}}
    await js.add_consumer("TIMER_CMD", (await consumer(nats_harness)).config.evolve(**chosen))
    await send(nats_harness, "a")
    dead = await nats_harness.broker.subscribe(MemoryHistory())
    await take(dead, 1)
    subscription = await nats_harness.broker.subscribe(MemoryHistory(), alone=True)
    shortened = (await consumer(nats_harness)).config
    await subscription.acknowledge(await take(subscription, 1))
    restored = (await consumer(nats_harness)).config
    assert shortened.ack_wait == 0.5
    assert (restored.ack_wait, restored.max_ack_pending, restored.description) == (45.0, 123, "ours")
    assert (restored.metadata or {}).get("owner") == "ops"
    assert "timer-service.ack-wait" not in (restored.metadata or {})


async def test_nats_crash_while_ack_wait_is_shortened(nats_harness: NatsHarness) -> None:
    """If an instance dies while `ack_wait` is shortened, the next instance to join restores it."""
    dead = await nats_harness.broker.subscribe(MemoryHistory())
    await send(nats_harness, "a")
    await take(dead, 1)
    await nats_harness.broker.subscribe(MemoryHistory(), alone=True)
    left_behind = (await consumer(nats_harness)).config.ack_wait
    await nats_harness.broker.subscribe(MemoryHistory())
    assert (left_behind, (await consumer(nats_harness)).config.ack_wait) == (0.5, 30.0)


async def test_nats_ack_wait_is_restored_at_the_second_attempt(
    nats_harness: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the broker does not answer when `ack_wait` shall be restored, it is restored later."""
    dead = await nats_harness.broker.subscribe(MemoryHistory())
    await send(nats_harness, "a")
    await take(dead, 1)
    subscription = await nats_harness.broker.subscribe(MemoryHistory(), alone=True)
    restore = DurableConsumer.restore_ack_wait
    attempts = 0

    async def fail_once(consumer: DurableConsumer) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise nats.errors.TimeoutError
        await restore(consumer)

    monkeypatch.setattr(DurableConsumer, "restore_ack_wait", fail_once)
    await subscription.acknowledge(await take(subscription, 1))
    await subscription.close()
    assert attempts == 2
    assert (await consumer(nats_harness)).config.ack_wait == 30.0


async def test_nats_commands_in_flight_come_again_after_a_lost_connection(nats_harness: NatsHarness) -> None:
    """A single instance gets the commands again soon that were on their way to it when the connection was lost."""
    await nats_harness.broker.subscribe(MemoryHistory())
    subscription = await nats_harness.broker.subscribe(MemoryHistory(), alone=True)
    await send(nats_harness, "a")
    (before,) = await take(subscription, 1)
    await reconnect(nats_harness)
    async with asyncio.timeout(10):
        (after,) = await take(subscription, 1)
    await subscription.acknowledge([after])
    await subscription.close()
    assert (before.message_id, after.message_id, after.attempt) == ("id-a", "id-a", 2)
    assert (await consumer(nats_harness)).config.ack_wait == 30.0


async def test_nats_command_that_looks_like_a_status(nats_harness: NatsHarness) -> None:
    """A command with a header `Status` and no body is delivered as a command."""
    subscription = await nats_harness.broker.subscribe(MemoryHistory())
    await nats_harness.send(command_address("acme"), b"", {"Status": "409"}, "id-a")
    assert ids(await take(subscription, 1)) == ["id-a"]


@pytest.mark.parametrize("header", [0, 65_000])
async def test_nats_dead_letter_of_the_largest_command(nats_harness: NatsHarness, header: int) -> None:
    """The dead letter of a command of the largest allowed size is stored."""
    limit = nats_harness.broker.features.max_message_bytes
    headers = {"note": "y" * header} if header else {}
    await nats_harness.send(command_address("acme"), b"x" * (limit - header - 100), headers, "id-a")
    (delivery,) = await take(await nats_harness.broker.subscribe(MemoryHistory()), 1)
    letters = Rejected(delivery, Rejection(Code.INVALID_JSON, "no"), None).messages(NOW, limit)
    assert await nats_harness.broker.publish(letters) == [PUBLISHED] * 2
    (letter,) = await nats_harness.dead_letters("acme")
    assert (letter.body == delivery.body, "Timer-Headers-Omitted" in letter.headers) == (header > 0, header > 0)


async def change_events(harness: NatsHarness, **settings: Any) -> None:
    js = harness.user.jetstream()
    await js.update_stream((await js.stream_info("TIMER_EVT")).config.evolve(**settings))


FAULTS: list[tuple[dict[str, Any], list[PublishStatus]]] = [
    ({"max_msg_size": 200}, [PublishStatus.PUBLISHED, PublishStatus.REFUSED, PublishStatus.PUBLISHED]),
    (
        {"max_msgs_per_subject": 2, "discard_new_per_subject": True},
        [PublishStatus.PUBLISHED, PublishStatus.PUBLISHED, PublishStatus.REFUSED],
    ),
    ({"max_msgs": 2}, [PublishStatus.PUBLISHED, PublishStatus.PUBLISHED, PublishStatus.FULL]),
    ({"max_bytes": 100}, [PublishStatus.FULL] * 3),
    ({"sealed": True}, [PublishStatus.UNAVAILABLE] * 3),
]


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize(("settings", "wanted"), FAULTS, ids=[",".join(settings) for settings, _ in FAULTS])
async def test_nats_fault(
    nats_harness: NatsHarness,
    settings: dict[str, Any],
    wanted: list[PublishStatus],
    atomic: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A limit that one message exceeds refuses this message. A full or sealed stream refuses none."""
    monkeypatch.setattr(publisher, "_FEW", 1)
    await change_events(nats_harness, **settings, allow_atomic=atomic and "sealed" not in settings)
    nats_harness.broker._publisher._atomic = set(Kind) if atomic else ()
    assert await statuses(nats_harness, [event(1), event(2, size=300), event(3)]) == wanted


async def test_nats_missing_stream(nats_harness: NatsHarness) -> None:
    """While the stream of events is missing, events are UNAVAILABLE, and dead letters are stored."""
    await nats_harness.user.jetstream().delete_stream("TIMER_EVT")
    letter = Message(Address(Kind.DEAD_LETTER, "acme", "schedule-timer"), "letter", b"{}", {})
    found = await statuses(nats_harness, [event(1), letter, event(2)])
    assert found == [PublishStatus.UNAVAILABLE, PublishStatus.PUBLISHED, PublishStatus.UNAVAILABLE]

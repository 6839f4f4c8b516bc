import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from importlib.metadata import version

import pytest
from nats.js.api import ConsumerInfo

from tests.harness.brokers import HARNESSES, BrokerHarness, NatsHarness, Stored
from tests.harness.builders import command_address, event, schedule_timer
from tests.harness.clock import NOW
from tests.harness.nats_client import round_trip
from timer_service.adapters.nats import NatsBroker, backlog, buffer
from timer_service.adapters.nats import subscription as subscription_module
from timer_service.core.broker import (
    BATCH_BYTES,
    PUBLISHED,
    Delivery,
    PublishStatus,
    QueryHandler,
    QueryReply,
    Reply,
    Subscription,
)
from timer_service.core.errors import Code, Rejection
from timer_service.core.message import Address, Kind, Message
from timer_service.core.rejection import Rejected

PATIENCE_SECONDS = 30
DELAY = timedelta(seconds=1)


async def send(harness: BrokerHarness, *calls: str, tenant: str = "acme") -> None:
    for call in calls:
        await harness.send(command_address(tenant), schedule_timer(call, tenant=tenant), {"number": call}, f"id-{call}")


async def take(subscription: Subscription, count: int) -> list[Delivery]:
    """Take exactly `count` commands, in as many batches as the broker makes of them."""
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < count:
            taken += await subscription.next_batch(count - len(taken))
    return taken


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what the broker does not announce."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await reached():
            await asyncio.sleep(0.01)


def ids(found: Sequence[Stored] | Sequence[Delivery]) -> list[str]:
    return [each.id if isinstance(each, Stored) else each.message_id for each in found]


async def statuses(harness: BrokerHarness, messages: Sequence[Message]) -> list[PublishStatus]:
    return [result.status for result in await harness.broker.publish(messages)]


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 2500])
async def test_publish(harness: BrokerHarness, count: int) -> None:
    """However many messages are published at once, each gets its result and is stored once, in order."""
    messages = [event(number) for number in range(count)]
    assert await harness.broker.publish(messages) == [PUBLISHED] * count
    assert ids(await harness.events("acme")) == [message.id for message in messages]


async def test_publish_keeps_everything(harness: BrokerHarness) -> None:
    """A stored message has its address, id, body (any bytes) and headers."""
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
    """Events of several tenants and dead letters can be published in one call, each to its own place."""
    letter = Message(Address(Kind.DEAD_LETTER, "acme", "schedule-timer"), "dlq-1", b"x", {})
    assert await statuses(harness, [event(1), letter, event(2, tenant="other")]) == [PublishStatus.PUBLISHED] * 3
    assert ids(await harness.events("acme")) == ["event-1"]
    assert ids(await harness.events("other")) == ["event-2"]
    assert ids(await harness.dead_letters("acme")) == ["dlq-1"]


async def test_dead_letter_of_what_is_no_tenant(harness: BrokerHarness) -> None:
    """A dead letter is stored also when the tenant it was addressed to could be none."""
    letter = Message(Address(Kind.DEAD_LETTER, "Ä!", "schedule-timer"), "dlq-1", b"x", {})
    assert await statuses(harness, [letter]) == [PublishStatus.PUBLISHED]
    assert ids(await harness.dead_letters("Ä!")) == ["dlq-1"]


async def test_same_id_in_another_call(harness: BrokerHarness) -> None:
    """A message published again counts as published, and is stored once by a broker that deduplicates."""
    copies = 1 if harness.broker.features.deduplicates else 2
    both = [await statuses(harness, [event(1)]) for _ in range(2)]
    assert both == [[PublishStatus.PUBLISHED]] * 2
    assert ids(await harness.events("acme")) == ["event-1"] * copies


async def test_same_id_among_new_ones(harness: BrokerHarness) -> None:
    """A message that is there already doesn't keep its neighbours of the same call from being stored."""
    await statuses(harness, [event(2)])
    copies = ["event-2"] if harness.broker.features.deduplicates else ["event-2"] * 2
    assert await statuses(harness, [event(1), event(2), event(3)]) == [PublishStatus.PUBLISHED] * 3
    assert sorted(ids(await harness.events("acme"))) == sorted(["event-1", "event-3", *copies])


async def test_same_id_twice_in_one_call(harness: BrokerHarness) -> None:
    """The same message twice in one call counts as published both times."""
    copies = 1 if harness.broker.features.deduplicates else 2
    assert await statuses(harness, [event(1), event(1)]) == [PublishStatus.PUBLISHED] * 2
    assert ids(await harness.events("acme")) == ["event-1"] * copies


async def test_too_large(harness: BrokerHarness) -> None:
    """A message larger than declared is refused with a reason; its neighbours of the same call are stored."""
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
    """Calls at the same time don't mix up their results."""
    too_large = event(999, size=harness.broker.features.max_message_bytes + 1)
    calls = [[event(number * 10), event(number * 10 + 1)] for number in range(10)]
    found = await asyncio.gather(*(statuses(harness, call) for call in [*calls, [too_large]]))
    assert found == [[PublishStatus.PUBLISHED] * 2] * 10 + [[PublishStatus.REFUSED]]
    assert len(await harness.events("acme")) == 20


async def test_delivery(harness: BrokerHarness) -> None:
    """A delivery carries the command as it was sent, from where, and that it is the first attempt."""
    subscription = await harness.broker.subscribe()
    await harness.send(command_address("tenant_1-A"), b"\x00 body", {"Timer-Reply-To": "_INBOX.a"}, "my-id")
    (delivery,) = await take(subscription, 1)
    assert delivery.address == Address(Kind.COMMAND, "tenant_1-A", "schedule-timer")
    assert (delivery.message_id, delivery.body, delivery.attempt) == ("my-id", b"\x00 body", 1)
    assert delivery.headers["Timer-Reply-To"] == "_INBOX.a"
    assert "tenant_1-A" in delivery.source


async def test_batches(harness: BrokerHarness) -> None:
    """Commands come in the order they were sent, with rising positions, never more at once than asked for."""
    calls = [f"call-{number}" for number in range(25)]
    await send(harness, *calls)
    subscription = await harness.broker.subscribe()
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < 25:
            batch = await subscription.next_batch(10)
            assert 1 <= len(batch) <= 10
            taken += batch
    assert [delivery.headers["number"] for delivery in taken] == calls
    positions = [delivery.position for delivery in taken]
    assert positions == sorted(set(positions))


async def test_waits_for_commands(harness: BrokerHarness) -> None:
    """Asked for commands while there are none, a subscription waits for the first."""
    subscription = await harness.broker.subscribe()
    waiting = asyncio.create_task(take(subscription, 1))
    await asyncio.sleep(0)
    was_done = waiting.done()
    await send(harness, "late")
    assert (was_done, ids(await waiting)) == (False, ["id-late"])


async def test_every_tenant(harness: BrokerHarness) -> None:
    """One subscription takes the commands of every tenant."""
    subscription = await harness.broker.subscribe()
    await send(harness, "a", tenant="acme")
    await send(harness, "b", tenant="other")
    taken = await take(subscription, 2)
    assert [delivery.address.tenant for delivery in taken] == ["acme", "other"]


async def test_unsettled_comes_again(harness: BrokerHarness) -> None:
    """A command nobody settled comes again as the next attempt, at the same position; acknowledged ones don't."""
    subscription = await harness.broker.subscribe()
    await send(harness, "a", "b", "c")
    first = await take(subscription, 3)
    await subscription.acknowledge([first[0], first[2]])
    await harness.expire_deliveries()
    (again,) = await take(subscription, 1)
    assert (again.message_id, again.attempt, again.position) == ("id-b", 2, first[1].position)
    assert (again.body, again.headers) == (first[1].body, first[1].headers)


async def test_acknowledged_never_comes_again(harness: BrokerHarness) -> None:
    """Once acknowledged a command doesn't come again, to this subscription or the next; what follows it does."""
    subscription = await harness.broker.subscribe()
    await send(harness, "a", "b")
    await subscription.acknowledge(await take(subscription, 2))
    await harness.expire_deliveries()
    await subscription.close()
    await send(harness, "c")
    assert ids(await take(await harness.broker.subscribe(), 1)) == ["id-c"]


async def test_terminated_never_comes_again(harness: BrokerHarness) -> None:
    """Once terminated a command doesn't come again; what follows it does."""
    subscription = await harness.broker.subscribe()
    await send(harness, "a")
    await subscription.terminate(await take(subscription, 1))
    await harness.expire_deliveries()
    await send(harness, "b")
    assert ids(await take(subscription, 1)) == ["id-b"]


async def test_retry(harness: BrokerHarness) -> None:
    """A command given back comes again after its delay, and not before what waits already."""
    subscription = await harness.broker.subscribe()
    await send(harness, "a")
    await subscription.retry(await take(subscription, 1), DELAY)
    await send(harness, "b")
    (other,) = await take(subscription, 1)
    await subscription.acknowledge([other])
    await harness.expire_deliveries()
    (again,) = await take(subscription, 1)
    assert (other.message_id, again.message_id, again.attempt) == ("id-b", "id-a", 2)


async def test_retried_over_and_over(harness: BrokerHarness) -> None:
    """A command can be given back many times, and each time counts."""
    subscription = await harness.broker.subscribe()
    await send(harness, "a")
    attempts = []
    for _ in range(12):
        taken = await take(subscription, 1)
        attempts.append(taken[0].attempt)
        await subscription.retry(taken, timedelta(0))
        await harness.expire_deliveries()
    assert attempts == list(range(1, 13))


async def test_settling_nothing(harness: BrokerHarness) -> None:
    """Settling no deliveries is nothing to complain about."""
    subscription = await harness.broker.subscribe()
    await subscription.acknowledge([])
    await subscription.retry([], DELAY)
    await subscription.terminate([])
    await send(harness, "a")
    assert ids(await take(subscription, 1)) == ["id-a"]


async def test_closing_ends_the_wait(harness: BrokerHarness) -> None:
    """A subscription that is closed while it waits returns no commands, and goes on returning none."""
    subscription = await harness.broker.subscribe()
    waiting = asyncio.create_task(subscription.next_batch(10))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await subscription.close()
        first = list(await waiting)
        await send(harness, "a")
        second = list(await subscription.next_batch(10))
    assert (first, second) == ([], [])


async def test_closed_subscription_still_settles(harness: BrokerHarness) -> None:
    """What a closed subscription has handed out can still be settled; what it hasn't goes to the next one."""
    first = await harness.broker.subscribe()
    await send(harness, "a", "b", "c")
    taken = await take(first, 1)
    await first.close()
    await first.acknowledge(taken)
    await harness.expire_deliveries()
    second = await harness.broker.subscribe()
    assert sorted(ids(await take(second, 2))) == ["id-b", "id-c"]


async def test_subscriptions_share(harness: BrokerHarness) -> None:
    """Two subscriptions share the commands: each command goes to one of them."""
    subscriptions = [await harness.broker.subscribe() for _ in range(2)]
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


async def test_replies(harness: BrokerHarness) -> None:
    """Answers reach the inboxes they are for, in order."""
    first, second = await harness.inbox(), await harness.inbox()
    await harness.broker.reply([Reply(first.address, b"1"), Reply(second.address, b"2"), Reply(first.address, b"3")])
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = [await first.next(), await first.next(), await second.next()]
    assert answers == [b"1", b"3", b"2"]


async def test_reply_to_nobody(harness: BrokerHarness) -> None:
    """An answer nobody waits for is lost without a complaint, and the next one arrives."""
    inbox = await harness.inbox()
    await harness.broker.reply([Reply("_INBOX.nobody", b"1"), Reply(inbox.address, b"2")])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await inbox.next() == b"2"


async def test_outage(harness: BrokerHarness) -> None:
    """While the broker is away, publishing says so for every message and raises nothing; back again, it publishes."""
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
    """What was published before an outage is there after it, and is not stored twice when it is published again."""
    copies = 1 if harness.broker.features.deduplicates else 2
    await statuses(harness, [event(1)])
    await harness.stop()
    await harness.start()
    assert await statuses(harness, [event(1)]) == [PublishStatus.PUBLISHED]
    assert ids(await harness.events("acme")) == ["event-1"] * copies


async def test_subscription_outlives_an_outage(harness: BrokerHarness) -> None:
    """A subscription goes on after an outage, and what was unsettled or unsent then is delivered."""
    subscription = await harness.broker.subscribe()
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


async def reconnect(harness: BrokerHarness, *meanwhile: str) -> None:
    """Lose the broker, and have commands sent before anybody asks again for the backlog."""
    await harness.stop()
    assert not await harness.broker.caught_up()
    await harness.start()
    await send(harness, *meanwhile)


async def test_caught_up_where_nothing_waited(harness: BrokerHarness) -> None:
    """An instance that finds no commands is caught up, until commands come."""
    subscription = await harness.broker.subscribe()
    found = [await harness.broker.caught_up()]
    await send(harness, "later")
    found.append(await harness.broker.caught_up())
    await subscription.acknowledge(await take(subscription, 1))
    await until(harness.broker.caught_up)
    assert found == [True, False]


async def test_caught_up_after_an_outage(harness: BrokerHarness) -> None:
    """What waited when the broker came back must be settled, to the last command; what came later need not."""
    subscription = await harness.broker.subscribe()
    await reconnect(harness, "a", "b", "c")
    found = [await harness.broker.caught_up()]
    await send(harness, "later")
    taken = await take(subscription, 3)
    found.append(await harness.broker.caught_up())
    await subscription.acknowledge(taken[:2])
    found.append(await harness.broker.caught_up())
    await subscription.terminate(taken[2:])
    await until(harness.broker.caught_up)
    assert found == [False] * 3


async def test_caught_up_waits_for_what_is_given_back(harness: BrokerHarness) -> None:
    """A command that was given back still belongs to the backlog; once another one has settled it that is over."""
    await reconnect(harness, "a")
    await harness.broker.caught_up()
    first, second = [await harness.broker.subscribe() for _ in range(2)]
    await first.retry(await take(first, 1), timedelta(0))
    assert not await harness.broker.caught_up()
    await first.close()
    await harness.expire_deliveries()
    await second.acknowledge(await take(second, 1))
    await until(harness.broker.caught_up)


async def test_caught_up_again_and_again(harness: BrokerHarness) -> None:
    """Each time the broker comes back there may be another backlog."""
    subscription = await harness.broker.subscribe()
    for call in ("a", "b"):
        await reconnect(harness, call)
        assert not await harness.broker.caught_up()
        await subscription.acknowledge(await take(subscription, 1))
        await until(harness.broker.caught_up)
    await reconnect(harness)
    await until(harness.broker.caught_up)


async def test_batches_are_bounded_by_bytes(harness: BrokerHarness) -> None:
    """A batch has no more bytes than it may, however many commands are asked for, and none is left behind."""
    body = b"x" * 900_000
    for number in range(30):
        await harness.send(command_address("acme"), body, {}, f"id-{number}")
    subscription = await harness.broker.subscribe()
    taken: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < 30:
            batch = await subscription.next_batch(500)
            assert 0 < sum(len(each.body) for each in batch) <= BATCH_BYTES
            taken += ids(batch)
    assert taken == [f"id-{number}" for number in range(30)]


async def test_alone(harness: BrokerHarness) -> None:
    """An instance that is alone gets at once what a dead one has left unsettled, and each command once."""
    dead = await harness.broker.subscribe()
    await send(harness, "a", "b", "c")
    await dead.acknowledge((await take(dead, 3))[:1])
    await dead.close()
    subscription = await harness.broker.subscribe(alone=True)
    async with asyncio.timeout(2):
        taken = await take(subscription, 2)
    await subscription.acknowledge(taken)
    await send(harness, "d")
    (later,) = await take(subscription, 1)
    assert sorted((each.message_id, each.attempt) for each in taken) == [("id-b", 2), ("id-c", 2)]
    assert (later.message_id, later.attempt) == ("id-d", 1)


# Queries


async def repeat(name: str, tenant: str, body: bytes) -> QueryReply:
    """Answer a query with what the service is told of it; one that asks for an error gets one."""
    answer = f"{name} of {tenant}: ".encode() + body
    if body == b"error":
        return QueryReply(answer, Code.INVALID_PAYLOAD, "the query is invalid: é, and two\r\nlines: of it")
    return QueryReply(answer)


async def test_queries(harness: BrokerHarness) -> None:
    """A query reaches the service with its name, tenant and body (any bytes), and its answer whoever asked."""
    await harness.broker.serve_queries(["get-timer", "list-timers"], repeat)
    asked = [
        ("get-timer", "acme", b"1"),
        ("list-timers", "tenant_1-A", b""),
        ("get-timer", "other", b"\x00\xff\r\n"),
    ]
    answers = [await harness.ask(*query) for query in asked]
    assert answers == [await repeat(*query) for query in asked]


async def test_queries_at_once(harness: BrokerHarness) -> None:
    """Queries asked at the same time each get their own answer."""
    await harness.broker.serve_queries(["get-timer"], repeat)
    asked = [("get-timer", f"tenant-{number % 7}", str(number).encode()) for number in range(50)]
    answers = await asyncio.gather(*(harness.ask(*query) for query in asked))
    assert list(answers) == [await repeat(*query) for query in asked]


async def test_query_error(harness: BrokerHarness) -> None:
    """An error reaches whoever asked with its body, its code and its message, and the next query is answered."""
    await harness.broker.serve_queries(["get-timer"], repeat)
    error = await harness.ask("get-timer", "acme", b"error")
    assert (error.body, error.code) == (b"get-timer of acme: error", Code.INVALID_PAYLOAD)
    assert " ".join(error.message.split()) == "the query is invalid: é, and two lines: of it"
    assert await harness.ask("get-timer", "acme", b"2") == QueryReply(b"get-timer of acme: 2")


async def test_large_answer(harness: BrokerHarness) -> None:
    """An answer as large as the broker takes arrives whole."""
    body = b"x" * harness.broker.features.max_message_bytes

    async def answer(_name: str, _tenant: str, _body: bytes) -> QueryReply:
        return QueryReply(body)

    await harness.broker.serve_queries(["list-timers"], answer)
    assert (await harness.ask("list-timers", "acme", b"")).body == body


async def test_queries_after_an_outage(harness: BrokerHarness) -> None:
    """Queries are answered again after an outage."""
    await harness.broker.serve_queries(["get-timer"], repeat)
    await harness.stop()
    await harness.start()
    assert await harness.ask("get-timer", "acme", b"1") == QueryReply(b"get-timer of acme: 1")


# Hints


async def test_hints(harness: BrokerHarness) -> None:
    """Whoever hears is told of every hint, its own too, by loop and instant."""
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    others: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await harness.broker.subscribe_hints(lambda *hint: heard.put_nowait(hint))
    await harness.broker.subscribe_hints(lambda *hint: others.put_nowait(hint))
    await harness.broker.hint("timers", 1_795_000_000_000)
    await harness.broker.hint("outbox", 0)
    async with asyncio.timeout(10):
        told = [[await each.get() for _ in range(2)] for each in (heard, others)]
    assert told == [[("timers", 1_795_000_000_000), ("outbox", 0)]] * 2


async def test_hints_are_lost_in_an_outage(harness: BrokerHarness) -> None:
    """A hint without a broker disturbs nobody, and is not kept until it is of no use any more; later ones are heard."""
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await harness.broker.subscribe_hints(lambda *hint: heard.put_nowait(hint))
    await harness.stop()
    await harness.broker.hint("timers", 1)
    await harness.start()
    await harness.broker.hint("timers", 2)
    async with asyncio.timeout(10):
        assert await heard.get() == ("timers", 2)


@pytest.fixture
async def nats_harness(request: pytest.FixtureRequest) -> AsyncIterator[NatsHarness]:
    """NATS, for what only it has."""
    async with HARNESSES["nats"](request) as started:
        assert isinstance(started, NatsHarness)
        yield started


async def test_nats_micro_service(nats_harness: NatsHarness) -> None:
    """On NATS the queries are a micro service: it answers pings by its name, and tells its endpoints' subjects."""
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
    """On NATS an error has the headers of micro services, in one line each, and what is no error has none."""
    await nats_harness.broker.serve_queries(["get-timer"], repeat)
    error = await nats_harness.user.request("timer.qry.v1.acme.get-timer", b"error", timeout=10)
    fine = await nats_harness.user.request("timer.qry.v1.acme.get-timer", b"1", timeout=10)
    assert set(error.headers or {}) == {"Nats-Service-Error", "Nats-Service-Error-Code"}
    assert (error.headers or {})["Nats-Service-Error-Code"] == "INVALID_PAYLOAD"
    assert not fine.headers


@pytest.mark.parametrize(
    "reply",
    ["timer.evt.v1.other.due-time-reached", "timer.cmd.v1.other.schedule-timer", "victim", "_INBOX", "_inbox.me", ""],
)
async def test_nats_reply_elsewhere(nats_harness: NatsHarness, reply: str) -> None:
    """The service can't be made to publish anywhere but to an inbox, and doesn't even look for the answer."""
    asked: list[bytes] = []

    async def answer(name: str, tenant: str, body: bytes) -> QueryReply:
        asked.append(body)
        return await repeat(name, tenant, body)

    await nats_harness.broker.serve_queries(["get-timer"], answer)
    seen = await nats_harness.user.subscribe(reply or ">")
    await nats_harness.user.publish("timer.qry.v1.acme.get-timer", b"elsewhere", reply=reply)
    last = await nats_harness.ask("get-timer", "acme", b"1")  # on the same subscription: what came before is done with
    await round_trip(nats_harness.user)
    subjects = {(await seen.next_msg(1)).subject for _ in range(seen.pending_msgs)}
    assert (asked, last.body) == ([b"1"], b"get-timer of acme: 1")
    assert {subject for subject in subjects if not subject.startswith(("_INBOX.", "timer.qry."))} == set()


async def test_nats_instances_share_queries(nats_harness: NatsHarness) -> None:
    """Of two instances one answers a query, and when one is closed the other goes on."""
    answered: list[int] = []

    def by(number: int) -> QueryHandler:
        async def answer(name: str, tenant: str, body: bytes) -> QueryReply:
            answered.append(number)
            return await repeat(name, tenant, body)

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
async def test_nats_what_is_no_hint(nats_harness: NatsHarness, body: bytes) -> None:
    """On NATS anyone who may could publish where hints go; what is none is passed over."""
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await nats_harness.broker.subscribe_hints(lambda *hint: heard.put_nowait(hint))
    await nats_harness.broker._client.flush()
    await nats_harness.user.publish("timer.wake.v1.timers", body)
    await round_trip(nats_harness.user)
    await nats_harness.broker.hint("timers", 7)
    async with asyncio.timeout(10):
        assert await heard.get() == ("timers", 7)


# What only NATS has: a consumer, and pulls


async def consumer(harness: NatsHarness) -> ConsumerInfo:
    info: ConsumerInfo = await harness.user.jetstream().consumer_info("TIMER_CMD", "timer-service")
    return info


async def test_nats_caught_up_by_others(nats_harness: NatsHarness) -> None:
    """An instance that takes no commands itself sees that others have handled them, and that nobody has yet."""
    js = nats_harness.user.jetstream()
    await js.delete_stream("TIMER_EVT")  # has no part in it
    await send(nats_harness, "a", "b")
    url = nats_harness.user.connected_url
    assert url is not None
    worker = await NatsBroker.connect(url.geturl(), "timer", reply_prefix="_INBOX.", manage_streams=True)
    found = [await worker.caught_up()]
    subscription = await nats_harness.broker.subscribe()
    found.append(await worker.caught_up())
    await subscription.acknowledge(await take(subscription, 2))
    await until(worker.caught_up)
    assert found == [False, False]
    await worker.close()


async def test_nats_caught_up_where_the_last_are_gone(nats_harness: NatsHarness) -> None:
    """Messages that are no commands, or that the stream has deleted, are nobody's to handle."""
    js = nats_harness.user.jetstream()
    config = (await js.stream_info("TIMER_CMD")).config
    await js.update_stream(config.evolve(subjects=[*(config.subjects or []), "notes"]))
    subscription = await nats_harness.broker.subscribe()
    await send(nats_harness, "a", "b")
    await js.publish("notes", b"no command")
    await js.delete_msg("TIMER_CMD", 2)
    taken = await take(subscription, 1)
    before = await nats_harness.broker.caught_up()
    await subscription.acknowledge(taken)
    await until(nats_harness.broker.caught_up)
    assert not before


async def test_nats_caught_up_with_a_recreated_stream(nats_harness: NatsHarness) -> None:
    """A stream that was made again has a backlog of its own, and a shorter one may do."""
    js = nats_harness.user.jetstream()
    config = (await js.stream_info("TIMER_CMD")).config
    await nats_harness.broker.subscribe()
    await send(nats_harness, *"abcdef")
    before = await nats_harness.broker.caught_up()
    await js.delete_stream("TIMER_CMD")
    await js.add_stream(config)
    await send(nats_harness, "g")
    gone = await nats_harness.broker.caught_up()
    subscription = await nats_harness.broker.subscribe()
    between = await nats_harness.broker.caught_up()
    await subscription.acknowledge(await take(subscription, 1))
    await until(nats_harness.broker.caught_up)
    assert (before, gone, between) == (False, False, False)


async def test_nats_stuck_command(nats_harness: NatsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that can never be settled is not waited for without end; one that waits in the stream is."""
    monkeypatch.setattr(backlog, "_STUCK_AFTER", timedelta(0))
    await send(nats_harness, "a", "b")
    subscription = await nats_harness.broker.subscribe()
    found = [await nats_harness.broker.caught_up()]
    await take(subscription, 2)
    await until(nats_harness.broker.caught_up)
    assert found == [False]


async def test_nats_larger_than_a_batch(nats_harness: NatsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command larger than a batch may be is handed over alone, and those around it as always."""
    for module in (subscription_module, buffer):
        monkeypatch.setattr(module, "BATCH_BYTES", 10_000)
    for number, size in enumerate((10, 20_000, 10, 10_001, 30_000, 10)):
        await nats_harness.send(command_address("acme"), b"x" * size, {}, f"id-{number}")
    subscription = await nats_harness.broker.subscribe()
    taken: list[list[str]] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sum(map(len, taken)) < 6:
            taken.append(ids(await subscription.next_batch(500)))
    assert taken == [["id-0"], ["id-1"], ["id-2"], ["id-3"], ["id-4"], ["id-5"]]


async def test_nats_settings_of_the_consumer_are_kept(nats_harness: NatsHarness) -> None:
    """What an operator has set of the consumer stays, also when an instance hurries it after a crash."""
    await nats_harness.broker.subscribe()
    js = nats_harness.user.jetstream()
    chosen = {"ack_wait": 45.0, "max_ack_pending": 123, "description": "ours", "metadata": {"owner": "ops"}}
    await js.add_consumer("TIMER_CMD", (await consumer(nats_harness)).config.evolve(**chosen))
    await send(nats_harness, "a")
    dead = await nats_harness.broker.subscribe()
    await take(dead, 1)
    subscription = await nats_harness.broker.subscribe(alone=True)
    hurried = (await consumer(nats_harness)).config
    await subscription.acknowledge(await take(subscription, 1))
    calm = (await consumer(nats_harness)).config
    assert hurried.ack_wait == 0.5
    assert (calm.ack_wait, calm.max_ack_pending, calm.description) == (45.0, 123, "ours")
    assert (calm.metadata or {}).get("owner") == "ops"
    assert "timer-service.ack-wait" not in (calm.metadata or {})


async def test_nats_death_in_a_hurry(nats_harness: NatsHarness) -> None:
    """An instance that dies while the consumer is hurried leaves no trace: the next one to join sets it back."""
    dead = await nats_harness.broker.subscribe()
    await send(nats_harness, "a")
    await take(dead, 1)
    await nats_harness.broker.subscribe(alone=True)
    left_behind = (await consumer(nats_harness)).config.ack_wait
    await nats_harness.broker.subscribe()
    assert (left_behind, (await consumer(nats_harness)).config.ack_wait) == (0.5, 30.0)


async def test_nats_command_that_looks_like_a_status(nats_harness: NatsHarness) -> None:
    """A command with a header `Status` and no body is a command, which can be settled."""
    subscription = await nats_harness.broker.subscribe()
    await nats_harness.send(command_address("acme"), b"", {"Status": "409"}, "id-a")
    assert ids(await take(subscription, 1)) == ["id-a"]


@pytest.mark.parametrize("header", [0, 65_000])
async def test_nats_dead_letter_of_the_largest_command(nats_harness: NatsHarness, header: int) -> None:
    """The dead letter of a command as large as the server takes is stored."""
    limit = nats_harness.broker.features.max_message_bytes
    headers = {"note": "y" * header} if header else {}
    await nats_harness.send(command_address("acme"), b"x" * (limit - header - 100), headers, "id-a")
    (delivery,) = await take(await nats_harness.broker.subscribe(), 1)
    letters = Rejected(delivery, Rejection(Code.INVALID_JSON, "no"), None).messages(NOW, limit)
    assert await nats_harness.broker.publish(letters) == [PUBLISHED] * 2
    (letter,) = await nats_harness.dead_letters("acme")
    assert (letter.body == delivery.body, "Timer-Headers-Omitted" in letter.headers) == (header > 0, header > 0)

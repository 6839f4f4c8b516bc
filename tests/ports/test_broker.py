import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.harness.broker_harness import BrokerHarness
from tests.harness.brokers import HARNESSES, NatsHarness
from tests.harness.builders import command_address, event
from tests.harness.nats_client import round_trip
from tests.harness.wire import Stored
from timer_service.core.intake.rejection import Rejected
from timer_service.core.ports.broker import (
    PUBLISHED,
    PublishStatus,
    Reply,
)
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Message

PATIENCE_SECONDS = 30


def ids(found: Sequence[Stored]) -> list[str]:
    return [each.id for each in found]


async def statuses(harness: BrokerHarness, messages: Sequence[Message]) -> list[PublishStatus]:
    return [result.status for result in await harness.broker.publish(messages)]


@pytest.mark.parametrize("count", [0, 1, 2500])
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


async def test_publish_with_a_topic(harness: BrokerHarness) -> None:
    """Events of one call can have topics, of any form, or none. Each goes to its own address."""
    topics = [None, "unpaid", "0_a-b", "Orders-2"] * 5
    address = Address(Kind.EVENT, "acme", "due-time-reached")
    messages = [Message(address._replace(topic=each), f"event-{n}", b"{}", {}) for n, each in enumerate(topics)]
    for part in (messages[:4], messages[4:]):  # singles and a batch
        assert await statuses(harness, part) == [PublishStatus.PUBLISHED] * len(part)
    assert [each.address for each in await harness.events("acme")] == [each.address for each in messages]


async def test_publish_to_several_addresses(harness: BrokerHarness) -> None:
    """One call can publish events of several tenants and dead letters. Each goes to its own address."""
    letter = Message(Address(Kind.DEAD_LETTER, "acme", "schedule-timer"), "dlq-1", b"x", {})
    assert await statuses(harness, [event(1), letter, event(2, tenant="other")]) == [PublishStatus.PUBLISHED] * 3
    assert ids(await harness.events("acme")) == ["event-1"]
    assert ids(await harness.events("other")) == ["event-2"]
    assert ids(await harness.dead_letters("acme")) == ["dlq-1"]


async def test_same_id_among_new_messages(harness: BrokerHarness) -> None:
    """A message that is already stored does not prevent the other messages of the call from being stored."""
    await statuses(harness, [event(2)])
    assert await statuses(harness, [event(number) for number in range(12)]) == [PublishStatus.PUBLISHED] * 12
    found = ids(await harness.events("acme"))
    assert sorted(set(found)) == sorted(f"event-{number}" for number in range(12))
    assert len(found) == (12 if harness.deduplicates else 13)


@pytest.mark.parametrize("times", [2, 12])
async def test_same_id_twice_in_one_call(harness: BrokerHarness, times: int) -> None:
    """The same message twice in one call counts as published each time."""
    assert await statuses(harness, [event(1)] * times) == [PublishStatus.PUBLISHED] * times
    assert ids(await harness.events("acme")) == ["event-1"] * (1 if harness.deduplicates else times)


async def test_message_that_is_too_large(harness: BrokerHarness) -> None:
    """A message above the size limit is refused with a reason. The other messages of the call are stored."""
    too_large = event(2, size=harness.broker.max_message_bytes + 1)
    results = await harness.broker.publish([event(1), too_large, event(3)])
    assert [result.status for result in results] == [
        PublishStatus.PUBLISHED,
        PublishStatus.REFUSED,
        PublishStatus.PUBLISHED,
    ]
    assert results[1].reason
    assert ids(await harness.events("acme")) == ["event-1", "event-3"]


async def test_replies_reach_their_inboxes(harness: BrokerHarness) -> None:
    """Replies reach their inboxes, in order."""
    first, second = await harness.inbox(), await harness.inbox()
    await harness.broker.reply([Reply(first.address, b"1"), Reply(second.address, b"2"), Reply(first.address, b"3")])
    async with asyncio.timeout(PATIENCE_SECONDS):
        answers = [await first.next(), await first.next(), await second.next()]
    assert answers == [b"1", b"3", b"2"]


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


async def test_nats_invalid_hint(nats_harness: NatsHarness) -> None:
    """On NATS a message on a hint subject that is not a valid hint is ignored."""
    notified: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    await nats_harness.broker.subscribe_hints(lambda *hint: notified.put_nowait(hint))
    async with asyncio.timeout(10):
        await nats_harness.broker.hint("timers", 6)
        assert await notified.get() == ("timers", 6)
        for body in (b"", b"soon", b"-1", b"1" * 400):
            await nats_harness.user.publish("timer.wake.v1.timers", body)
        await round_trip(nats_harness.user)
        await nats_harness.broker.hint("timers", 7)
        assert await notified.get() == ("timers", 7)


async def test_nats_dead_letter_of_the_largest_command(nats_harness: NatsHarness) -> None:
    """The dead letter of a command of the largest allowed size is stored."""
    limit = nats_harness.broker.max_message_bytes
    await nats_harness.send(command_address("acme"), b"x" * (limit - 65_100), {"note": "y" * 65_000}, "id-a")
    await nats_harness.broker.log.open(None, "ours")
    (raw,) = (await nats_harness.broker.log.read(1, limit, PATIENCE_SECONDS)).commands
    rejected = Rejected(raw, Rejection(Code.INVALID_JSON, "no"), None)
    assert await nats_harness.broker.publish([rejected.letter(limit)]) == [PUBLISHED]
    (letter,) = await nats_harness.dead_letters("acme")
    assert (letter.body == raw.body, "Timer-Headers-Omitted" in letter.headers) == (True, True)


async def change_events(harness: NatsHarness, **settings: Any) -> None:
    js = harness.user.jetstream()
    await js.update_stream((await js.stream_info("TIMER_EVT")).config.evolve(**settings))


P, R, F = PublishStatus.PUBLISHED, PublishStatus.REFUSED, PublishStatus.FULL


@pytest.mark.parametrize("count", [3, 12], ids=["singly", "as a batch"])
@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"max_msg_size": 200}, [P, R, P]),
        ({"max_msgs_per_subject": 2, "discard_new_per_subject": True}, [P, P, R]),
        ({"max_msgs": 2}, [P, P, F]),
        ({"max_bytes": 100}, [F, F, F]),
        ({"sealed": True, "allow_atomic": False}, [PublishStatus.UNAVAILABLE] * 3),
    ],
    ids=["max_msg_size", "max_msgs_per_subject", "max_msgs", "max_bytes", "sealed"],
)
async def test_nats_fault(
    nats_harness: NatsHarness, settings: dict[str, Any], wanted: list[PublishStatus], count: int
) -> None:
    """A limit that one message exceeds refuses this message. A full or sealed stream refuses none."""
    await change_events(nats_harness, **settings)
    messages = [event(1), event(2, size=300), *map(event, range(3, count + 1))]
    assert await statuses(nats_harness, messages) == [*wanted, *wanted[2:] * (count - 3)]


async def test_nats_missing_stream(nats_harness: NatsHarness) -> None:
    """While the stream of events is missing, events are UNAVAILABLE, and dead letters are stored."""
    await nats_harness.user.jetstream().delete_stream("TIMER_EVT")
    letter = Message(Address(Kind.DEAD_LETTER, "acme", "schedule-timer"), "letter", b"{}", {})
    found = await statuses(nats_harness, [event(1), letter, event(2)])
    assert found == [PublishStatus.UNAVAILABLE, PublishStatus.PUBLISHED, PublishStatus.UNAVAILABLE]

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from typing import Any

import pytest

from tests.harness.brokers import HARNESSES, BrokerHarness, NatsHarness, Stored
from tests.harness.builders import command_address, event
from tests.harness.nats_client import round_trip
from timer_service.adapters.nats import NatsBroker, publisher
from timer_service.core.intake.rejection import Rejected
from timer_service.core.ports.broker import (
    PUBLISHED,
    PublishStatus,
    QueryHandler,
    QueryReply,
    Reply,
    SendReply,
)
from timer_service.core.values.errors import Code, Rejection
from timer_service.core.values.message import Address, Kind, Message

PATIENCE_SECONDS = 30


def ids(found: Sequence[Stored]) -> list[str]:
    return [each.id for each in found]


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


@pytest.mark.parametrize("header", [0, 65_000])
async def test_nats_dead_letter_of_the_largest_command(nats_harness: NatsHarness, header: int) -> None:
    """The dead letter of a command of the largest allowed size is stored."""
    limit = nats_harness.broker.features.max_message_bytes
    headers = {"note": "y" * header} if header else {}
    await nats_harness.send(command_address("acme"), b"x" * (limit - header - 100), headers, "id-a")
    await nats_harness.broker.log.open(None, "ours")
    (raw,) = (await nats_harness.broker.log.read(1, limit, PATIENCE_SECONDS)).commands
    rejected = Rejected(raw, Rejection(Code.INVALID_JSON, "no"), None)
    assert await nats_harness.broker.publish([rejected.letter(limit)]) == [PUBLISHED]
    (letter,) = await nats_harness.dead_letters("acme")
    assert (letter.body == raw.body, "Timer-Headers-Omitted" in letter.headers) == (header > 0, header > 0)


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

"""The publisher against a scripted driver: what it sends, and how it reads each answer."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import pytest
from nats import errors

from timer_service.adapters.nats.driver import GuardedClient
from timer_service.adapters.nats.publisher import Publisher
from timer_service.adapters.nats.subjects import Subjects
from timer_service.core.ports.broker import PublishStatus
from timer_service.core.values.address import Address, Kind
from timer_service.core.values.message import Message

PUBLISHED, REFUSED, FULL, UNAVAILABLE = PublishStatus
STORED = b'{"stream":"TIMER_EVT","seq":1}'
MIB = 1024 * 1024


def error(http: int, code: int, description: str = "no") -> bytes:
    return json.dumps({"error": {"code": http, "err_code": code, "description": description}}).encode()


class Reply(NamedTuple):
    data: bytes


class Sent(NamedTuple):
    """A message that the publisher sent. `requested`: it asked for an acknowledgement."""

    id: str
    size: int
    headers: dict[str, str]
    requested: bool


def read_frames(text: bytes) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Return the bodies and the headers of messages in the protocol."""
    while text:
        line, _, rest = text.partition(b"\r\n")
        operation, _subject, header_size, size = line.split(b" ")
        assert operation == b"HPUB"
        version, *headers = rest[: int(header_size)].decode().removesuffix("\r\n\r\n").split("\r\n")
        assert version == "NATS/1.0"
        yield (
            rest[int(header_size) : int(size)],
            {name: value for name, _, value in (each.partition(": ") for each in headers)},
        )
        assert rest[int(size) :].startswith(b"\r\n")
        text = rest[int(size) + 2 :]


Script = Callable[[Sent], bytes | Exception | None]


class ScriptedDriver:
    """A connection whose every acknowledgement is scripted. None: it never comes."""

    max_payload = MIB
    is_connected = True

    def __init__(self, script: Script) -> None:
        self.script = script
        self.sent: list[Sent] = []
        self.now = 0.0
        self.seconds_per_request = 0.0

    async def send(self, frames: bytes) -> None:
        for payload, headers in read_frames(frames):
            self._send(payload, headers, requested=False)

    async def request(self, _subject: str, payload: bytes, *, timeout: float, headers: dict[str, str]) -> Reply:  # noqa: ARG002, ASYNC109
        answer = self.script(self._send(payload, headers, requested=True))
        self.now += self.seconds_per_request
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return Reply(answer or b"")

    def _send(self, payload: bytes, headers: dict[str, str], *, requested: bool) -> Sent:
        if "bad header" in headers:
            raise ValueError("nats: invalid header")
        sent = Sent(headers["Nats-Msg-Id"], len(payload), headers, requested)
        self.sent.append(sent)
        return sent

    @property
    def requests(self) -> list[str]:
        return [sent.id for sent in self.sent if sent.requested]

    def batches(self) -> list[int]:
        """Return the sizes of the atomic batches, in the order of their commits."""
        return [int(sent.headers["Nats-Batch-Sequence"]) for sent in self.sent if "Nats-Batch-Commit" in sent.headers]


def publisher_of(driver: ScriptedDriver, *, atomic: bool = True) -> Publisher:
    return Publisher(
        cast("GuardedClient", driver),
        Subjects("timer"),
        atomic=set(Kind) if atomic else (),
        on_answers=lambda _kind, _answers: None,
        monotonic=lambda: driver.now,
    )


def message(number: int, size: int = 10, kind: Kind = Kind.EVENT, headers: dict[str, str] | None = None) -> Message:
    return Message(Address(kind, "acme", "something"), f"id-{number}", b"x" * size, headers or {})


async def publish(driver: ScriptedDriver, *messages: Message, atomic: bool = True) -> list[PublishStatus]:
    return [result.status for result in await publisher_of(driver, atomic=atomic).publish(messages)]


async def test_too_many_requests_are_not_sent_again() -> None:
    """If the broker answers 429, no message counts as refused, and none of the batch is sent one by one."""
    driver = ScriptedDriver(lambda _: error(429, 10210, "atomic publish too many inflight"))
    assert await publish(driver, *map(message, range(1000))) == [UNAVAILABLE] * 1000
    assert driver.requests == ["id-999"]


@pytest.mark.parametrize(
    "answer",
    [error(400, 10109, "sealed"), error(503, 10008), errors.NoRespondersError(), errors.TimeoutError(), OSError("cut")],
)
async def test_nothing_more_is_sent_after_a_failed_window(answer: bytes | Exception) -> None:
    """If nothing of a window is stored and no message is at fault, the next windows are not sent."""
    driver = ScriptedDriver(lambda _: answer)
    assert await publish(driver, *map(message, range(1600)), atomic=False) == [UNAVAILABLE] * 1600
    assert len(driver.requests) == 500


@pytest.mark.parametrize(("count", "size", "batches"), [(10, 10, []), (11, 10, [11]), (10, MIB // 10 + 1, [10])])
async def test_few_messages_are_published_singly(count: int, size: int, batches: list[int]) -> None:
    """Up to ten small messages are no batch, in their order: the broker stores single ones sooner."""
    driver = ScriptedDriver(lambda _: STORED)
    assert await publish(driver, *(message(number, size) for number in range(count))) == [PUBLISHED] * count
    assert [sent.id for sent in driver.sent] == [f"id-{number}" for number in range(count)]
    assert driver.batches() == batches


async def test_full_stream() -> None:
    """The messages of a batch that does not fit are stored one by one, as far as they fit. The rest is FULL."""
    room = 14

    def script(sent: Sent) -> bytes:
        nonlocal room
        size = int(sent.headers.get("Nats-Batch-Sequence", 1))
        if size > room:
            return error(503, 10077, "maximum bytes exceeded")
        room -= size
        return STORED

    driver = ScriptedDriver(script)
    found = await publish(driver, *map(message, range(24)))
    assert found == [PUBLISHED] * 14 + [FULL] * 10
    assert driver.batches() == [24]


async def test_batches_are_bounded() -> None:
    """A batch has at most 1000 messages and 8 MiB. A window of single messages has at most 1 MiB."""
    driver = ScriptedDriver(lambda _: STORED)
    await publish(driver, *map(message, range(1001)))
    await publish(driver, *(message(number, 900_000) for number in range(10)))
    assert driver.batches() == [1000, 9]
    numbers = [int(sent.headers.get("Nats-Batch-Sequence", 1)) for sent in driver.sent]
    assert numbers == [*range(1, 1001), 1, *range(1, 10), 1]
    waiting = ScriptedDriver(lambda _: None)
    task = asyncio.create_task(publish(waiting, *(message(n, 300_000) for n in range(10)), atomic=False))
    while len(waiting.sent) < 3:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(waiting.requests) == 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("header", "status"), [(100, PUBLISHED), (3000, REFUSED)])
@pytest.mark.parametrize("kind", [Kind.EVENT, Kind.DEAD_LETTER])
async def test_headers_count_for_the_size(kind: Kind, header: int, status: PublishStatus) -> None:
    """A message whose body fits into `max_payload` and whose headers do not is refused, and is not sent."""
    driver = ScriptedDriver(lambda _: STORED)
    assert await publish(driver, message(1, MIB - 2000, kind, {"tracestate": "x" * header})) == [status]
    assert len(driver.sent) == (status is PUBLISHED)


async def test_lost_connection_ends_all_publishes() -> None:
    """If the connection is lost, no publish waits for its acknowledgement any more, in batches and windows."""
    driver = ScriptedDriver(lambda _: None)
    publisher = publisher_of(driver)
    parts = [*map(message, range(11))], [message(11, kind=Kind.DEAD_LETTER)]
    calls = [asyncio.create_task(publisher.publish(part)) for part in parts]
    while len(driver.requests) < 2:
        await asyncio.sleep(0)
    publisher.connection_lost()
    async with asyncio.timeout(5):
        results = [result for found in await asyncio.gather(*calls) for result in found]
    assert [(result.status, result.reason) for result in results] == [(UNAVAILABLE, "connection lost")] * 12


async def test_nothing_more_is_sent_after_the_connection_was_lost() -> None:
    """If a part of a window was stored before, the driver would send the next one after the outage."""

    def script(sent: Sent) -> bytes | Exception:
        driver.is_connected = sent.id != "id-499"
        return STORED if driver.is_connected else errors.ConnectionClosedError()

    driver = ScriptedDriver(script)
    found = await publish(driver, *map(message, range(1000)), atomic=False)
    assert found == [PUBLISHED] * 499 + [UNAVAILABLE] * 501
    assert len(driver.requests) == 500


@pytest.mark.parametrize("others", [2, 12])
async def test_message_that_the_driver_refuses(others: int) -> None:
    """A message that the driver cannot send is refused. The others are stored."""
    driver = ScriptedDriver(lambda _: STORED)
    messages = [message(-1, headers={"bad header": "x"}), *map(message, range(others))]
    assert await publish(driver, *messages) == [REFUSED, *[PUBLISHED] * others]


async def test_slow_broker_does_not_hold_a_call() -> None:
    """A call stops to send after ten seconds, so that it ends before the lease of its rows."""
    driver = ScriptedDriver(lambda _: STORED)
    driver.seconds_per_request = 4
    found = await publish(driver, *(message(number, 900_000) for number in range(40)))
    assert found == [PUBLISHED] * 27 + [UNAVAILABLE] * 13
    assert driver.now == 12


async def test_nothing_more_is_sent_to_a_full_stream() -> None:
    """If the stream has no room for any event of a window, the next windows of the batch are not sent."""
    driver = ScriptedDriver(lambda _: error(503, 10077, "maximum bytes exceeded"))
    assert await publish(driver, *map(message, range(900))) == [FULL] * 900
    assert (driver.batches(), driver.requests[-1]) == ([900], "id-499")

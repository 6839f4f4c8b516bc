"""The command log against a scripted server: answers that are cut, or do not come. Each shows: nothing is skipped."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.harness.log_caller import OWNER, LogCaller
from tests.harness.nats_peer import ScriptedPeer, scripted_peer
from tests.harness.raw_nats import header_block
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats import log as log_module
from timer_service.core.ports.log import LogUnavailableError

SUBJECT = b"timer.cmd.v1.acme.schedule-timer"
CREATED = "2026-01-01T00:00:00.000000001Z"


def answer(subject: str, body: bytes) -> dict[str, Any] | None:
    """Answer as a JetStream with an empty stream and no consumer. Pulls have no answer."""
    state = {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0}
    if subject.startswith("$JS.API.STREAM.CREATE."):
        return {"config": {"max_bytes": -1, "max_msgs": -1, **json.loads(body)}, "state": state, "created": CREATED}
    if subject == "$JS.API.STREAM.INFO.TIMER_CMD" and body == b"":
        return {"config": {}, "state": state, "created": CREATED}
    if subject.startswith(("$JS.API.STREAM.INFO.", "$JS.API.CONSUMER.INFO.")):
        return {"error": {"code": 404, "err_code": 10059, "description": "not found"}}
    return None if ".MSG.NEXT." in subject else {}


class Site:
    """A scripted server, and a log that is open and has asked for commands."""

    def __init__(self, peer: ScriptedPeer, caller: LogCaller) -> None:
        self.peer = peer
        self.caller = caller

    @property
    def pulls(self) -> list[tuple[str, dict[str, Any]]]:
        """The requests for commands: their inboxes and what they ask for."""
        return [(reply, json.loads(body)) for subject, reply, body in self.peer.published if ".MSG.NEXT." in subject]

    async def deliver(self, sequence: int, delivery: int) -> None:
        """Deliver a command."""
        reply = b"$JS.ACK.TIMER_CMD.timer-service.1.%d.%d.1800000000000000000.0" % (sequence, delivery)
        await self.peer.deliver(self._pattern, SUBJECT, b"%d" % sequence, reply=reply)

    async def end(self, status: bytes, *lines: bytes) -> None:
        """End the last pull with a status."""
        block = header_block(*lines).replace(b"NATS/1.0", b"NATS/1.0 " + status, 1)
        await self.peer.deliver(self._pattern, self.pulls[-1][0].encode(), headers=block)

    async def read(self, seconds: float = 5) -> list[str]:
        """Read a batch."""
        before = len(self.caller.commands)
        await self.caller.read(seconds=seconds)
        return self.caller.bodies[before:]

    async def read_on(self) -> None:
        """Read until an error."""
        while True:
            await self.read()

    async def until_pulled(self, count: int) -> None:
        """Wait for a pull while a read waits. The read goes on."""
        await self.peer.until(lambda: len(self.pulls) >= count)

    @property
    def _pattern(self) -> str:
        return self.pulls[-1][0].rpartition(".")[0] + ".*"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with scripted_peer() as peer:
        peer.answer = _create
        broker = await NatsBroker.connect(peer.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
        peer.answer = answer
        caller = LogCaller(broker.log)
        await caller.open()
        assert await Site(peer, caller).read(0.01) == []
        site = Site(peer, caller)
        await site.until_pulled(1)
        yield site
        await broker.close()


def _create(subject: str, body: bytes) -> dict[str, Any] | None:
    """Answer as before the streams are created."""
    if subject.startswith("$JS.API.STREAM.INFO."):
        return {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
    return answer(subject, body)


async def assert_opened_again(site: Site) -> None:
    """Check that the log can be read when it is opened again: from its cursor, with new numbers of deliveries."""
    pulls = len(site.pulls)
    await site.caller.log.open(site.caller.cursor, OWNER)
    reading = asyncio.create_task(site.read())
    await site.until_pulled(pulls + 1)
    await site.deliver(9, 1)
    assert await reading == ["9"]


@pytest.mark.parametrize("missing", [1, 2, 3])
async def test_delivery_that_is_missing(site: Site, missing: int) -> None:
    """If a delivery is missing, at the beginning or later, what came before is lost too, and an error says so."""
    for number in (each for each in range(1, 5) if each != missing):
        await site.deliver(number, number)
    with pytest.raises(LogUnavailableError, match="a delivery is missing"):
        await site.read_on()
    assert site.caller.bodies == [f"{number}" for number in range(1, len(site.caller.bodies) + 1)]
    assert len(site.caller.bodies) < missing
    await assert_opened_again(site)


@pytest.mark.parametrize("status", [b"409 Consumer Deleted", b"503"])
async def test_end_of_the_consumer(site: Site, status: bytes) -> None:
    """If the server ends a pull for another reason than its time or its size, an error has this reason."""
    await site.end(status)
    with pytest.raises(LogUnavailableError, match=status.decode()):
        await site.read()
    await assert_opened_again(site)


async def test_end_of_an_answer_that_is_missing(site: Site) -> None:
    """If the server has delivered more of a pull than has arrived, an error says so."""
    _, asked = site.pulls[-1]
    await site.deliver(1, 1)
    await site.end(b"408 Request Timeout", b"Nats-Pending-Messages: %d" % (asked["batch"] - 2))
    with pytest.raises(LogUnavailableError, match="missing"):
        await site.read_on()
    await assert_opened_again(site)


async def test_command_that_is_larger_than_a_batch(site: Site) -> None:
    """If the next command is larger than a batch, bodies are left in the stream from then on."""
    await site.end(b"409 Message Size Exceeds MaxBytes")
    reading = asyncio.create_task(site.read())
    await site.until_pulled(2)
    await site.deliver(1, 1)
    assert await reading == ["1"]
    written = [json.loads(body) for subject, _, body in site.peer.published if ".CONSUMER.DURABLE.CREATE." in subject]
    asked = [(each["action"], each["config"]["headers_only"]) for each in written]
    assert asked == [("create", False), ("update", True)]


async def test_pull_without_an_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server does not even end a pull, an error says so after some seconds."""
    monkeypatch.setattr(log_module, "PULL_SECONDS", 0)
    monkeypatch.setattr(log_module, "LATE_SECONDS", 0)
    await site.caller.log.open(site.caller.cursor, OWNER)
    with pytest.raises(LogUnavailableError, match="the broker does not answer"):
        await site.read()

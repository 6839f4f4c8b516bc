"""The subscription against a scripted server: statuses, forged messages, lost connections, and what it sends."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.harness.subscription_site import SUBJECT, Site, open_site
from timer_service.adapters.nats import inbox, pulls, recovery, subscription
from timer_service.core.ports.health import HEALTHY
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.message import Address, Kind

SECOND = 1_000_000_000
LONG = 30
"""Seconds that no test waits for."""


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return an open subscription."""
    async with open_site() as opened:
        yield opened


async def test_a_pull_names_its_limits(site: Site) -> None:
    """A pull asks for a batch, bounded in bytes, and ends after a second."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(1)
    (delivery,) = await waiting
    assert site.pulls[0][1] == {"batch": 10, "expires": SECOND, "max_bytes": 10_000}
    assert delivery.address == Address(Kind.COMMAND, "acme", "schedule-timer")
    assert (delivery.attempt, delivery.position.sequence, delivery.stored_at) == (1, 1, 17)


@pytest.mark.parametrize("line", ["999 Unknown", "409 Exceeded MaxWaiting"])
async def test_refused_pull(site: Site, line: str) -> None:
    """After a status that no one knows the next pull waits a second. The health gives the reason until a pull works."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    before = time.monotonic()
    await site.status(line)
    await site.until_pulls(2)
    paused = time.monotonic() - before
    refused = site.subscription.health
    await site.command(1)
    await waiting
    assert paused >= 0.9
    assert (refused.usable, line in (refused.reason or "")) == (False, True)
    assert site.subscription.health.usable


@pytest.mark.parametrize("line", ["503", "409 Consumer Deleted"])
async def test_consumer_is_gone(site: Site, line: str) -> None:
    """If the consumer is gone, the subscription creates it again and pulls."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    site.js.consumer = None
    await site.status(line)
    await site.until_pulls(2)
    assert site.js.consumer is not None
    await site.command(1)
    assert len(await waiting) == 1


@pytest.mark.parametrize("number", [0, 2, 99])
async def test_status_of_another_pull(site: Site, number: int) -> None:
    """A status with the number of another pull ends nothing. The outstanding pull brings its command."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.status("503", pull=number)
    await site.command(1)
    assert len(await waiting) == 1
    assert len(site.pulls) == 1


@pytest.mark.parametrize(
    ("subject", "reply", "headers"),
    [
        (None, b"", b""),
        (None, b"$JS.ACK.TIMER_CMD.timer-service.1.1.1.17.0", b""),
        (None, b"$JS.ACK.TIMER_CMD.timer-service.1.1.1.17.0", b"NATS/1.0\r\nStatus: 503\r\n\r\n"),
        (SUBJECT, b"", b""),
        (SUBJECT, b"$JS.ACK.", b""),
        (SUBJECT, b"$JS.ACK.TIMER_CMD.timer-service.a.b.c.d.e", b""),
        (SUBJECT, b"$JS.ACK.TIMER_CMD.timer-service.1.2", b""),
        (b"other", b"_INBOX.x", b"NATS/1.0 503\r\n\r\n"),
    ],
)
async def test_foreign_message_in_the_inbox(site: Site, subject: bytes | None, reply: bytes, headers: bytes) -> None:
    """A message that no consumer delivered is ignored, whatever it says. The next command arrives."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.peer.deliver(
        site.inbox, subject or site.inbox.replace("*", "x").encode(), b"forged", reply=reply, headers=headers
    )
    await site.command(7, b"real")
    found = await waiting
    while not found:
        found = await site.next_batch()
    assert [delivery.body for delivery in found] == [b"real"]


@pytest.mark.parametrize("headers", [b"NATS/1.0\r\nStatus: 404\r\n\r\n", b"NATS/1.0\r\nStatus: 503\r\n\r\n"])
async def test_command_that_looks_like_a_status(site: Site, headers: bytes) -> None:
    """A command without a body and with a header `Status` is a command."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(1, b"", headers=headers)
    assert [delivery.position.sequence for delivery in await waiting] == [1]


async def test_reply_subject_with_a_domain(site: Site) -> None:
    """The reply subject of a server with a domain has two more tokens, and a random one at its end."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(0, reply=b"$JS.ACK.hub.hash.TIMER_CMD.timer-service.3.42.7.19.0.random")
    (delivery,) = await waiting
    assert (delivery.attempt, delivery.position.sequence, delivery.stored_at) == (3, 42, 19)


async def test_settlements(site: Site) -> None:
    """Each settlement is one message to the reply subject of the delivery. A retry has its delay in nanoseconds."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    for sequence in (1, 2, 3):
        await site.command(sequence)
    found = await waiting
    while len(found) < 3:
        found += await site.next_batch()
    await site.subscription.acknowledge(found[:1])
    await site.subscription.retry(found[1:2], timedelta(seconds=1))
    await site.subscription.terminate(found[2:])
    await site.client.flush()
    assert site.settlements == [("1", b"+ACK"), ("2", b'-NAK {"delay": 1000000000}'), ("3", b"+TERM")]


async def test_close_returns_what_is_buffered(site: Site) -> None:
    """A subscription that is closed waits for its pull, and returns the commands that no one has taken."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(1)
    found = await waiting
    closing = asyncio.create_task(site.subscription.close())
    await site.command(2)
    await site.status("408 Request Timeout")
    await closing
    await site.client.flush()
    assert [delivery.position.sequence for delivery in found] == [1]
    assert site.settlements == [("2", b"-NAK")]


async def test_a_lost_connection_forgets_the_pull(site: Site) -> None:
    """After a reconnect the subscription joins again and pulls at once. What it had buffered is still handed out."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(1)
    await waiting
    await site.buffered_command(2)
    await site.lose_connection()
    before = time.monotonic()
    buffered = await site.next_batch()
    await site.until_pulls(2)
    assert time.monotonic() - before < 1
    assert [delivery.position.sequence for delivery in buffered] == [2]


async def test_nothing_is_settled_in_another_stream(site: Site) -> None:
    """If the stream is another one after a reconnect, old commands are neither handed out nor settled."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(1)
    old = await waiting
    site.history.handle(1, 17)
    await site.buffered_command(2)
    site.js.created = "2026-01-02T00:00:00Z"
    site.js.consumer = None
    await site.lose_connection()
    await site.subscription.acknowledge(old)
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(2)
    await site.command(1, b"new")
    (new,) = await waiting
    await site.subscription.acknowledge([new])
    await site.client.flush()
    assert (new.body, new.position > old[0].position) == (b"new", True)
    assert site.settlements == [("1", b"+ACK")]
    assert len(site.pulls) == 2


async def test_settling_waits_for_the_stream(site: Site) -> None:
    """A settlement during an outage is sent after the stream is recognized again."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(1)
    found = await waiting
    await site.lose_connection()
    await site.subscription.acknowledge(found)
    await site.client.flush()
    assert site.settlements == [("1", b"+ACK")]
    assert site.peer.connections == 2


# Empty commands, after which the server may drop the rest of a pull


async def cut(site: Site, *, delivered: int) -> asyncio.Task[list[Delivery]]:
    """Deliver the empty command 1. Return a task that waits for the next batch."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    site.js.delivered = delivered
    await site.command(1, b"")
    return waiting


async def test_lost_commands_are_returned(site: Site) -> None:
    """The pull is forgotten, its lost commands are returned to the server, and come with the next pull."""
    waiting = await cut(site, delivered=4)
    first_inbox = site.inbox
    assert [each.position.sequence for each in await waiting] == [1]
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(11)
    assert site.inbox != first_inbox
    assert site.settlements == [("2", b"-NAK"), ("3", b"-NAK"), ("4", b"-NAK")]
    assert [request for _, request in site.pulls[1:]] == [{"batch": 1, "expires": SECOND, "max_bytes": 1000}] * 10
    assert len({reply for reply, _ in site.pulls[1:]}) == 1
    await site.command(2, reply=b"$JS.ACK.TIMER_CMD.timer-service.2.2.5.17.0")
    assert [each.position.sequence for each in await waiting] == [2]


async def test_lost_commands_of_a_late_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull is given up, and its late commands count for the next one. An empty command then cuts the late answer."""
    monkeypatch.setattr(pulls, "_GRACE_SECONDS", -pulls.PULL_SECONDS)  # a pull is given up as soon as anything arrives
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.status("100 Wake Up", pull=0)
    await site.until_pulls(2)
    site.js.delivered = 12
    for sequence in range(1, 10):
        await site.command(sequence)
    await site.command(10, b"")
    await site.peer.until(lambda: site.settlements == [("11", b"-NAK"), ("12", b"-NAK")])
    assert len(await waiting) == 10


async def test_lost_commands_that_came_again(site: Site) -> None:
    """Another instance returns commands, which come again before an empty one. Older ones are lost with it, too."""
    found = await site.take(5)
    await site.subscription.acknowledge(found)
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(len(site.pulls))
    site.js.delivered, site.js.settled = 6, 1
    await site.command(3, b"", reply=b"$JS.ACK.TIMER_CMD.timer-service.2.3.7.17.0")
    await site.peer.until(lambda: len(site.settlements) >= 4)
    assert site.settlements == [("5", b"+ACK"), ("2", b"-NAK"), ("4", b"-NAK"), ("6", b"-NAK")]
    assert [each.position.sequence for each in await waiting] == [3]


async def test_commands_that_arrive_are_not_lost(site: Site) -> None:
    """Without a fence the server sends the rest. Nothing is returned then."""
    waiting = await cut(site, delivered=3)
    await site.command(2)
    await site.command(3)
    found = await waiting
    while len(found) < 3:
        found += await site.next_batch()
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(11)
    waiting.cancel()
    assert site.settlements == []


async def test_second_look_for_lost_commands(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the pull has expired, commands are returned that were lost after the first look or again."""
    monkeypatch.setattr(recovery, "LOOK_AGAIN_SECONDS", 0.1)
    await (await cut(site, delivered=2))
    await site.peer.until(lambda: len(site.settlements) == 1)
    site.js.delivered = 3
    await site.peer.until(lambda: len(site.settlements) == 3)
    assert [sequence for sequence, _ in site.settlements] == ["2", "2", "3"]
    assert not site.subscription._puller.recovery.goes_on


async def test_lost_commands_after_an_outage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If JetStream does not answer to the look, it is repeated, and commands are pulled meanwhile."""
    monkeypatch.setattr(recovery, "LOOK_AGAIN_SECONDS", 0.1)
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    site.js.is_down = True
    await site.command(1, b"")
    await waiting
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(11)
    assert site.settlements == []
    site.js.is_down, site.js.delivered = False, 2
    await site.peer.until(lambda: site.settlements == [("2", b"-NAK")])
    waiting.cancel()


async def test_close_waits_for_the_lost_commands(site: Site) -> None:
    """A subscription that is closed returns what is lost, so that another instance gets it at once."""
    waiting = await cut(site, delivered=2)
    async with asyncio.timeout(10):
        while not site.subscription._puller.recovery.goes_on:
            await asyncio.sleep(0)
    closing = asyncio.create_task(site.subscription.close())
    await waiting
    await closing
    await site.client.flush()
    assert ("2", b"-NAK") in site.settlements


async def test_inbox_is_replaced_after_many_pulls(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between accounts the server keeps something for each pull until its inbox is closed. No command is lost."""
    monkeypatch.setattr(inbox, "_MOST_REQUESTS", 2)
    found = []
    for sequence in range(1, 6):
        waiting = asyncio.create_task(site.next_batch())
        await site.until_pulls(sequence)
        await site.command(sequence)
        await site.status("408 Request Timeout")
        found += [each.position.sequence for each in await waiting]
    assert found == [1, 2, 3, 4, 5]
    assert len({reply.rpartition(".")[0] for reply, _ in site.pulls}) == 3
    assert site.settlements == []


# Commands that were put back


async def test_settling_waits_once_in_an_outage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the stream is not recognized in time, other settlements of the same outage do not wait again."""
    monkeypatch.setattr(subscription, "_SETTLE_SECONDS", 0.5)
    found = await site.take(*range(1, 21))
    site.js.is_down = True
    await site.lose_connection()
    began = time.monotonic()
    for delivery in found:
        await site.subscription.retry([delivery], timedelta(seconds=1))
    seconds = time.monotonic() - began
    assert 0.5 <= seconds < 3, "once, and not 20 times"
    site.js.is_down = False
    waiting = asyncio.create_task(site.next_batch())
    async with asyncio.timeout(10):
        while not site.subscription.health.usable:
            await asyncio.sleep(0.01)
    await site.subscription.retry(found[:1], timedelta(seconds=1))
    waiting.cancel()
    await site.client.flush()
    assert ("1", b'-NAK {"delay": 1000000000}') in site.settlements


async def test_putting_back_tells_the_server_nothing(site: Site) -> None:
    """A command that is put back and handled later is settled once. The server sees nothing before."""
    found = await site.take(1, 2)
    await site.subscription.put_back(found)
    again = await site.next_batch()
    await site.client.flush()
    assert (again, site.settlements) == (found, [])
    await site.subscription.acknowledge(again)
    await site.client.flush()
    assert site.settlements == [("1", b"+ACK"), ("2", b"+ACK")]


async def test_close_returns_commands_that_were_put_back(site: Site) -> None:
    """A subscription that is closed returns the commands that were put back, before it or after it, to the server."""
    found = await site.take(1, 2)
    await site.subscription.put_back(found[:1])
    closing = asyncio.create_task(site.subscription.close())
    await site.status("408 Request Timeout")
    await closing
    await site.subscription.put_back(found[1:])
    await site.client.flush()
    assert site.settlements == [("1", b"-NAK"), ("2", b"-NAK")]


async def test_the_first_command_wakes_the_reader(site: Site) -> None:
    """A command that arrives while nothing is buffered is handed out at once, although the pull has not ended."""
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    began = time.monotonic()
    await site.command(1)
    assert [each.position.sequence for each in await waiting] == [1]
    assert time.monotonic() - began < 0.5, "a pull lasts a second"


async def test_long_waiting_commands_are_in_progress(site: Site) -> None:
    """The server is told from time to time that commands are in progress, those in the buffer too."""
    found = await site.take(1, 2, 3)
    await site.subscription.put_back(found)
    await site.buffered_command(4)
    site.subscription._stay.returned._renew_at = 0.0
    await site.subscription.next_batch(1)
    await site.subscription.next_batch(1)
    await site.client.flush()
    assert site.settlements == [(sequence, b"+WPI") for sequence in ("1", "2", "3", "4")]


async def test_redelivered_while_it_waits(site: Site) -> None:
    """A command that the server delivers again while it waits is handed out once, and settled by its newest reply."""
    found = await site.take(1, 2)
    await site.subscription.put_back(found[1:])
    await site.command(2, reply=b"$JS.ACK.TIMER_CMD.timer-service.2.2.9.17.0")
    async with asyncio.timeout(10):
        while not site.subscription._stay.buffer:
            await asyncio.sleep(0)
    again = await site.next_batch()
    assert ([each.position.sequence for each in again], again[0].attempt) == ([2], 1)
    await site.subscription.acknowledge(again)
    await site.client.flush()
    assert [subject for subject, _, body in site.peer.published if body == b"+ACK"] == [
        "$JS.ACK.TIMER_CMD.timer-service.2.2.9.17.0"
    ]


async def test_nothing_is_put_back_into_another_stream(site: Site) -> None:
    """If the stream is another one after a reconnect, commands that were put back before or after it are dropped."""
    found = await site.take(1, 2)
    await site.subscription.put_back(found[:1])
    site.history.handle(2, 17)
    site.js.created = "2026-01-02T00:00:00Z"
    site.js.consumer = None
    await site.lose_connection()
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(2)
    await site.subscription.put_back(found[1:])
    await site.command(1, b"new")
    assert [delivery.body for delivery in await waiting] == [b"new"]


async def test_consumer_that_counts_lost_commands(site: Site) -> None:
    """If the stream lost commands that the consumer counts as delivered, it begins behind the last settled command."""
    site.history.handle(9, 1)
    site.js.last_sequence, site.js.delivered, site.js.settled = 7, 9, 3
    site.js.stored_at = "1970-01-01T00:00:00Z"
    await site.lose_connection()
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    waiting.cancel()
    assert site.js.consumer is not None
    assert (site.js.consumer["deliver_policy"], site.js.consumer["opt_start_seq"]) == ("by_start_sequence", 4)


async def test_put_back_commands_survive_a_reconnect(site: Site) -> None:
    """After a reconnect to the same stream, commands that were put back are handed out and settled."""
    found = await site.take(1)
    await site.subscription.put_back(found)
    await site.lose_connection()
    assert await site.next_batch() == found
    await site.subscription.acknowledge(found)
    await site.client.flush()
    assert site.settlements == [("1", b"+ACK")]


async def test_the_buffer_waits_for_commands_that_were_put_back(site: Site) -> None:
    """New commands are handed out after those that were put back, also in the same batch."""
    found = await site.take(1, 2)
    await site.subscription.put_back(found)
    await site.buffered_command(3)
    batches = [await site.subscription.next_batch(1), await site.next_batch()]
    assert [[each.position.sequence for each in batch] for batch in batches] == [[1], [2, 3]]


# Joining


async def test_deliveries_that_are_counted_again_after_a_reconnect(site: Site) -> None:
    """After a reconnect another leader may count the deliveries from an earlier one. Its commands are handed out."""
    await site.take(7, 8)
    await site.lose_connection()
    pulls = len(site.pulls)
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(pulls + 1)
    await site.command(9, reply=b"$JS.ACK.TIMER_CMD.timer-service.1.9.3.17.0")
    assert [each.position.sequence for each in await waiting] == [9]
    assert (site.settlements, site.subscription.health) == ([], HEALTHY)


@pytest.mark.parametrize(("in_flight", "seconds"), [(0, 0), (1, 30)])
async def test_hold_of_the_express_lane(site: Site, in_flight: int, seconds: int) -> None:
    """If commands are in flight at the start, nothing is read ahead for 30 s: one of them may end the process."""
    site.js.in_flight = in_flight
    began = time.monotonic()
    await site.subscription.open(alone=False)
    held = site.subscription._stay.lane._next_round_at - began
    assert seconds <= held < seconds + 5


async def test_the_last_command_of_the_server_is_handed_out_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription waits for commands that follow only if the server has some."""
    monkeypatch.setattr(subscription, "_LINGER_SECONDS", LONG)
    assert [each.position.sequence for each in await site.take(1)] == [1]


async def test_commands_that_follow_are_in_the_same_batch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server has more commands, a batch waits for them."""

    async def receive_another(_seconds: float) -> None:
        await site.command(2)
        while len(site.subscription._stay.buffer) < 2:
            await asyncio.sleep(0)

    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    monkeypatch.setattr(subscription, "asyncio", SimpleNamespace(sleep=receive_another))
    await site.command(1, reply=b"$JS.ACK.TIMER_CMD.timer-service.1.1.1.17.1")
    assert [each.position.sequence for each in await waiting] == [1, 2]

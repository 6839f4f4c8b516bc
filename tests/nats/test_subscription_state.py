"""What the subscription remembers of a stay, a connection and an outage, and when it forgets it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import NoReturn

import nats.errors
import pytest
from nats.js.errors import NotFoundError

from tests.harness.builders import command_address, delivery
from tests.harness.subscription_site import Site, open_site
from timer_service.adapters.nats import membership, puller, recovery, subscription
from timer_service.adapters.nats.durable import DurableConsumer, InFlight
from timer_service.adapters.nats.redelivery import Redelivery
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import ConflictError, DatabaseUnavailableError, StartError
from timer_service.core.values.message import Position

LONG = 30
"""Seconds that no test waits for."""


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return an open subscription."""
    async with open_site() as opened:
        yield opened


async def until_joined(site: Site) -> None:
    """Let the subscription try to join until it has, as it does before each batch."""
    async with asyncio.timeout(10):
        while not site.subscription.health.usable:
            await site.subscription._keep_pulling(10)
            await asyncio.sleep(0.001)


async def rejoin(site: Site) -> None:
    """Lose the connection, and wait until the subscription has joined again."""
    await site.lose_connection()
    await until_joined(site)


async def meet_another_stream(site: Site) -> None:
    """Replace the stream during an outage."""
    site.history.handle(1, 17)
    site.js.created = "2026-01-02T00:00:00Z"
    site.js.consumer = None
    await rejoin(site)


def read_ahead(site: Site, sequence: int) -> Delivery:
    """Return a command as it is read ahead of the consumer now."""
    position = Position(site.history.parts[-1].epoch, sequence)
    return delivery(address=command_address("b"), position=position, stored_at=17)


async def test_each_reconnect_joins_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reconnect, or if the database knows another stream, the pause after the last attempt does not count."""
    monkeypatch.setattr(membership, "_REJOIN_SECONDS", LONG)
    for _ in range(2):
        await rejoin(site)
    for _ in range(2):
        site.subscription.stream_changed()
        await until_joined(site)


async def test_attempts_to_join_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """While JetStream does not answer, the subscription does not try again before a pause is over."""
    monkeypatch.setattr(membership, "_REJOIN_SECONDS", LONG)
    site.js.is_down = True
    site.subscription.stream_changed()
    site.js.requests.clear()
    for _ in range(3):
        await site.subscription._keep_pulling(10)
    assert site.js.requests == ["CONSUMER.INFO"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (nats.errors.TimeoutError(), "JetStream does not answer"),
        (NotFoundError(), "stream TIMER_CMD is missing"),
        (StartError("the consumer belongs to another database"), "the consumer belongs to another database"),
        (DatabaseUnavailableError("away"), "away"),
        (ConflictError("again"), "again"),
        (ConnectionResetError("reset"), "reset"),
        (KeyError("config"), "KeyError"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_failed_attempt_to_join(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """If an attempt to join fails, the health says why, and the next attempt may succeed."""
    monkeypatch.setattr(membership, "_REJOIN_SECONDS", 0)

    async def fail(*_: object, **__: object) -> NoReturn:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(DurableConsumer, "join", fail)
        site.subscription.stream_changed()
        await site.subscription._keep_pulling(10)
        assert reason in (site.subscription.health.reason or "")
        assert not site.subscription.health.usable
    await until_joined(site)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_look_while_the_consumer_is_lost(site: Site, *, answers: bool) -> None:
    """If the consumer is lost while the subscription looks at it, the answer of this look does not count."""
    looking = site.subscription._membership
    confirm = looking.consumer.confirm

    async def confirm_and_lose(within: float) -> bool:
        found = await confirm(within)
        looking.lose("connection lost")
        if not answers:
            raise nats.errors.TimeoutError
        return found

    looking.consumer.confirm = confirm_and_lose  # type: ignore[method-assign, assignment]
    assert not await looking.confirm(10)


async def test_a_closed_subscription_looks_no_more(site: Site) -> None:
    """A look that is in progress ends when the subscription is closed."""
    looking = site.subscription._membership
    look = looking.look = asyncio.create_task(asyncio.sleep(LONG, result=True))
    await site.subscription.close()
    await asyncio.wait([look], timeout=5)
    assert look.cancelled()


async def test_settling_waits_in_each_outage(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settlement that gave up in one outage does not keep those in the next outage from waiting."""
    monkeypatch.setattr(subscription, "_SETTLE_SECONDS", 0)
    found = await site.take(1, 2)
    site.js.is_down = True
    await site.lose_connection()
    await site.subscription.retry(found[:1], timedelta(0))
    site.js.is_down = False
    await rejoin(site)
    monkeypatch.setattr(subscription, "_SETTLE_SECONDS", 5)
    await site.lose_connection()
    await site.subscription.acknowledge(found[1:])
    await site.client.flush()
    assert site.settlements == [("2", b"+ACK")]


async def test_what_was_read_ahead_of_another_stream_is_dropped(site: Site) -> None:
    """If the stream is another one, the commands that were read ahead of the last one are dropped with its lane."""
    await site.take(1)
    lane = site.subscription._stay.lane
    lane._read.append(delivery(address=command_address("b"), position=Position(1, 9)))
    await meet_another_stream(site)
    assert site.subscription._stay.lane is not lane
    assert lane.take(10) == []


@pytest.mark.parametrize("settle", ["acknowledge", "terminate"])
async def test_a_command_read_ahead_of_another_stream_hides_nothing(site: Site, settle: str) -> None:
    """If a command that was read ahead is settled after the stream was replaced, the one in its place is handed out."""
    await site.take(1)
    old = read_ahead(site, 2)
    await meet_another_stream(site)
    await getattr(site.subscription, settle)([old])
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(2)
    await site.command(2)
    assert [each.position.sequence for each in await waiting] == [2]
    await site.client.flush()
    assert site.settlements == []


@pytest.mark.parametrize("settle", ["acknowledge", "terminate"])
async def test_a_command_that_was_settled_ahead_is_not_handed_out(site: Site, settle: str) -> None:
    """If the consumer delivers a command that was read ahead and settled, it is acknowledged, and not handled again."""
    await site.take(1)
    await getattr(site.subscription, settle)([read_ahead(site, 2)])
    waiting = asyncio.create_task(site.next_batch())
    await site.command(2)
    await site.command(3)
    assert [each.position.sequence for each in await waiting] == [3]
    await site.client.flush()
    assert site.settlements == [("2", b"+ACK")]


async def test_the_next_pull_does_not_wait_for_commands_that_were_settled_ahead(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all commands of a pull were settled ahead, the next pull is sent at once."""
    monkeypatch.setattr(puller, "PULL_SECONDS", LONG)
    await site.take(1)
    before = len(site.pulls)
    waiting = asyncio.create_task(site.subscription.next_batch(1))
    for sequence in range(2, 11):  # the last pull asked for ten commands, and brought one
        await site.subscription.acknowledge([read_ahead(site, sequence)])
        await site.command(sequence)
    await site.until_pulls(before + 1)
    await site.command(11)
    async with asyncio.timeout(5):
        assert [each.position.sequence for each in await waiting] == [11]


async def test_a_stream_that_is_replaced_while_a_batch_is_taken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the stream is replaced while commands handled ahead are acknowledged, the rest of the batch is dropped."""
    await site.take(1)
    await site.subscription.acknowledge([read_ahead(site, 2)])
    await site.buffered_command(2)
    await site.command(3)
    joined = site.subscription._membership

    async def settle(*_: object) -> None:
        joined._begin_stay(2, joined.stay.epochs, 0)

    monkeypatch.setattr(site.subscription, "_settle", settle)
    async with asyncio.timeout(5):
        while len(site.subscription._stay.buffer) < 2:
            await asyncio.sleep(0)
    assert await site.subscription._take(10) == []


async def test_closing_restores_the_ack_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that is closed while commands are delivered again does not leave a short `ack_wait` behind."""
    restored: list[bool] = []

    async def restore(_consumer: DurableConsumer) -> None:
        restored.append(True)

    monkeypatch.setattr(DurableConsumer, "restore_ack_wait", restore)
    site.subscription._membership.redelivery = Redelivery(InFlight(number=2, last=9))
    await site.subscription.close()
    assert restored == [True]


async def test_a_retry_of_another_stream_sets_nothing_back(site: Site) -> None:
    """A retry of a command that was read ahead of another stream does not change where this stream is read ahead."""
    await site.take(1)
    old = read_ahead(site, 100)
    await meet_another_stream(site)
    await site.subscription.retry([old], timedelta(0))
    assert site.subscription._stay.lane._ahead == {}


async def test_commands_of_another_stream_that_are_on_their_way(site: Site) -> None:
    """Another stream begins with another inbox: what the last one has sent late would get the epoch of the new one."""
    await site.take(1)
    inbox = site.inbox
    site.history.handle(1, 17)
    site.js.created = "2026-01-02T00:00:00Z"
    site.js.consumer = None
    site.subscription.stream_changed()
    await until_joined(site)
    assert not site.peer.subscribed(inbox)


async def test_lost_commands_of_another_stream_are_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the stream is another one, no command of it is returned because the last stream has lost some."""
    monkeypatch.setattr(recovery, "LOOK_AGAIN_SECONDS", LONG)
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    site.js.delivered = 1
    await site.command(1, b"")
    await waiting
    goes_on = site.subscription._puller.recovery.goes_on
    await meet_another_stream(site)
    assert (goes_on, site.subscription._puller.recovery.goes_on) == (True, False)
    site.subscription._puller.recovery.cancel()


async def test_commands_in_flight_of_the_last_connection(site: Site) -> None:
    """Each join of a process that is alone finds out anew which commands are in flight, and waits for these."""
    waits: list[bool] = []
    await site.subscription.open(alone=True)
    site.js.last_sequence = site.js.delivered = 1
    for in_flight in (2, 0, 1):
        site.js.in_flight = in_flight
        await rejoin(site)
        waits.append(site.subscription._membership.redelivery is not None)
    assert waits == [True, False, True]
    await site.take(1)
    await site.subscription._keep_pulling(10)
    assert site.subscription._membership.redelivery is None
    assert site.js.consumer is not None
    assert "timer-service.ack-wait" not in site.js.consumer["metadata"]


async def test_a_command_without_a_stream_comes_later(site: Site) -> None:
    """A command that arrives while the stream is not recognized comes again after 2 s, longer than a pull lasts."""
    await site.take(1)
    site.js.is_down = True
    site.subscription.stream_changed()
    await site.command(2)
    await site.peer.until(lambda: bool(site.settlements))
    assert site.settlements == [("2", b'-NAK {"delay": 2000000000}')]
    assert not site.subscription._stay.buffer


async def test_commands_that_were_handled_ahead_have_come_too(site: Site) -> None:
    """A command that was read ahead and settled is left out when the consumer delivers it, and counts as delivered."""
    await site.subscription.open(alone=True)
    site.js.last_sequence = site.js.delivered = site.js.in_flight = 1
    await rejoin(site)
    await site.subscription.acknowledge([read_ahead(site, 1)])
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    await site.command(1)
    await site.command(2)
    assert [each.position.sequence for each in await waiting] == [2]
    await site.subscription._keep_pulling(10)
    await site.client.flush()
    assert (site.settlements, site.subscription._membership.redelivery) == ([("1", b"+ACK")], None)


async def test_the_express_lane_knows_of_retries(site: Site) -> None:
    """While commands wait for a retry, the express lane looks for others: the consumer may be full of retries."""
    found = await site.take(1)
    before = site.subscription._stay.lane.awaits_retries
    await site.subscription.retry(found, timedelta(seconds=LONG))
    assert (before, site.subscription._stay.lane.awaits_retries) == (False, True)


@pytest.mark.parametrize("number", [1, 2])
async def test_a_consumer_that_was_created_again(site: Site, number: int) -> None:
    """If the deliveries are counted again, another consumer delivers. Its commands come again after another join."""
    await site.take(1, 2)
    await site.command(3, reply=b"$JS.ACK.TIMER_CMD.timer-service.1.3.%d.17.0" % number)
    await site.peer.until(lambda: bool(site.settlements))
    assert site.settlements == [("3", b'-NAK {"delay": 2000000000}')]
    assert site.subscription.health.reason == "not subscribed to the commands: the consumer was created again"


@pytest.mark.parametrize(("seconds", "is_handed_out"), [(2, True), (3, False)])
async def test_an_old_look_is_repeated_before_a_batch(site: Site, seconds: float, *, is_handed_out: bool) -> None:
    """A process that is alone hands out nothing if it has not seen its token for 2.5 s, and cannot see it now."""
    await site.subscription.open(alone=True)
    waiting = asyncio.create_task(site.next_batch())
    await site.until_pulls(1)
    holding = site.subscription._membership.consumer.holding
    holding._confirmed_at = holding.look() - seconds
    site.js.is_down = True
    await site.command(1)
    async with asyncio.timeout(10):
        while not waiting.done() and site.subscription.health.usable:
            await asyncio.sleep(0.001)
    assert waiting.done() is is_handed_out
    waiting.cancel()


async def test_the_next_batch_is_asked_for_before_this_one_is_handled(site: Site) -> None:
    """With a batch, the next pull is sent, so that commands arrive while the caller handles the batch."""
    waiting = asyncio.create_task(site.subscription.next_batch(1))
    await site.until_pulls(1)
    await site.command(1)
    async with asyncio.timeout(10):
        await waiting
    await site.client.flush()
    assert len(site.pulls) == 2

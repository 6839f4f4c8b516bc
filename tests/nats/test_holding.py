"""Which process has the commands of a database that processes cannot share, on a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext

from tests.harness.history import MemoryHistory
from tests.harness.processes import PATIENCE_SECONDS, NatsServer
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.holding import HOLDER
from timer_service.adapters.nats.subscription import NatsSubscription
from timer_service.core.values.delivery import Delivery

CONSUMER = ("TIMER_CMD", "timer-service")


@pytest.fixture
async def js(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1) as user:
        yield user.jetstream()


@asynccontextmanager
async def joined(
    server: NatsServer, history: MemoryHistory, *, alone: bool = True
) -> AsyncIterator[tuple[NatsBroker, NatsSubscription]]:
    """Connect as a process of its own, and join the consumer."""
    broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
    try:
        yield broker, await broker.subscribe(history, alone=alone)
    finally:
        await broker.close()


async def send(js: JetStreamContext, *calls: str) -> None:
    for call in calls:
        await js.publish("timer.cmd.v1.acme.schedule-timer", call.encode())


async def take(subscription: NatsSubscription, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(taken) < count:
            taken += await subscription.next_batch(count - len(taken))
    return taken


async def metadata(js: JetStreamContext) -> dict[str, Any]:
    return dict((await js.consumer_info(*CONSUMER)).config.metadata or {})


@pytest.mark.parametrize("settle", [NatsSubscription.acknowledge, NatsSubscription.terminate])
async def test_take_over_before_a_settlement(settle: Any, server: NatsServer, js: JetStreamContext) -> None:
    """What a process has handled and not settled when another one takes over comes to the other one, and soon.

    The first one hands out nothing any more, and says why.
    """
    history = MemoryHistory()
    async with joined(server, history) as (broker, first):
        await send(js, "1", "2")
        handled = await take(first, 2)
        async with joined(server, history) as (_, second):
            await settle(first, handled)
            await send(js, "3")
            waiting = asyncio.create_task(first.next_batch(10))
            taken = await take(second, 3)
            await second.acknowledge(taken)
            why = await asyncio.wait_for(broker.wait_taken_over(), PATIENCE_SECONDS)
            assert sorted(each.body for each in taken) == [b"1", b"2", b"3"]
            assert ("copy of this database" in why, first.health.usable, waiting.done()) == (True, False, False)
            await first.close()
            assert await waiting == []
            assert second.health.usable


async def test_lost_process_does_not_come_back(server: NatsServer, js: JetStreamContext) -> None:
    """A process that has lost the commands does not take them back after a reconnect, even if the other one is gone."""
    history = MemoryHistory()
    async with joined(server, history) as (broker, first):
        async with joined(server, history) as (_, second):
            await second.close()
        await server.terminate()
        await server.start()
        await send(js, "1")
        waiting = asyncio.create_task(first.next_batch(10))
        await asyncio.wait_for(broker.wait_taken_over(), PATIENCE_SECONDS)
        await first.close()
        assert await waiting == []
        info = await js.consumer_info(*CONSUMER)
        assert (info.num_pending, info.delivered.consumer_seq if info.delivered else None) == (1, 0)


async def test_own_token_after_a_reconnect(server: NatsServer, js: JetStreamContext) -> None:
    """A process finds its own token after a restart of the broker, and goes on."""
    async with joined(server, MemoryHistory()) as (_, subscription):
        before = (await metadata(js))[HOLDER]
        await server.terminate()
        await server.start()
        await send(js, "1")
        await subscription.acknowledge(await take(subscription, 1))
        assert (await metadata(js))[HOLDER] == before


async def test_token_that_somebody_removed(server: NatsServer, js: JetStreamContext) -> None:
    """If an operator replaces the metadata of the consumer or deletes it, the process joins again and goes on."""
    async with joined(server, MemoryHistory()) as (_, subscription):
        token = (await metadata(js))[HOLDER]
        config = (await js.consumer_info(*CONSUMER)).config
        await js.add_consumer("TIMER_CMD", config.evolve(metadata={"owner": "me"}))
        taking = asyncio.create_task(take(subscription, 1))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await metadata(js)).get(HOLDER) != token:
                await asyncio.sleep(0.02)
        await js.delete_consumer(*CONSUMER)
        await send(js, "1")
        await subscription.acknowledge(await taking)
        assert (await metadata(js))[HOLDER] == token


async def test_look_while_a_batch_is_handled(server: NatsServer, js: JetStreamContext) -> None:
    """With a batch, a look begins if the last one is old, so that to settle the batch need not wait for a look."""
    async with joined(server, MemoryHistory()) as (_, subscription):
        holding = subscription._membership.consumer.holding
        await send(js, "1")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await take(subscription, 1) or subscription._membership.look is None:
                await send(js, "2")
            before = holding._confirmed_at
            assert await subscription._membership.look
        assert holding._confirmed_at > before


async def test_shared_database_has_no_holder(server: NatsServer, js: JetStreamContext) -> None:
    """Processes that share a database share the consumer: none of them writes a token."""
    history = MemoryHistory()
    async with joined(server, history, alone=False) as (_, first), joined(server, history, alone=False) as (_, second):
        await send(js, "1")
        await first.acknowledge(await take(first, 1))
        assert HOLDER not in await metadata(js)
        assert (first.health.usable, second.health.usable) == (True, True)


async def test_look_without_an_answer(
    server: NatsServer, js: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that answers late is no outage. Only without an answer for some seconds, nothing is settled."""
    async with joined(server, MemoryHistory()) as (_, subscription):
        await send(js, "1")
        taken = await take(subscription, 1)

        async def confirm(_within: float) -> bool:
            raise nats.errors.TimeoutError

        monkeypatch.setattr(subscription._membership.consumer, "confirm", confirm)
        found = [await subscription._membership.confirm(0.25)]
        monkeypatch.setattr(subscription._membership.consumer.holding, "is_confirmed", lambda _seconds: False)
        found.append(await subscription._membership.confirm(0.25))
        assert (len(taken), found) == (1, [True, False])
        assert subscription.health.reason == "not subscribed to the commands: JetStream does not answer"

"""Empty commands behind the fence of deploy/nats.conf and without a fence, on a real server."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.harness.fence import CONFIG, PASSWORDS
from tests.harness.history import MemoryHistory
from tests.harness.processes import NatsServer
from tests.harness.raw_nats import RawMessage, RawNats
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.login import Login
from timer_service.core.ports.broker import Subscription

SUBJECT = b"timer.cmd.v1.tenant-a.schedule-timer"
EMPTY = RawMessage(SUBJECT)
NO_SYNC = CONFIG.replace("sync_interval: always", "")
"""A sync for each command takes seconds on a busy disk, and the server delivers little meanwhile."""
SECONDS = 15
"""How long to wait. Lost commands that are not found come after 30 s."""


async def read(subscriptions: Sequence[Subscription], count: int) -> Counter[int]:
    """Settle commands until `count` different ones have come. Return how often each sequence came."""
    found: Counter[int] = Counter()
    ended = asyncio.Event()

    async def read_one(subscription: Subscription) -> None:
        while not ended.is_set():
            batch = await subscription.next_batch(200)
            found.update(each.position.sequence for each in batch)
            await subscription.acknowledge(batch)
            if len(found) >= count and not ended.is_set():
                ended.set()
                await asyncio.gather(*(each.close() for each in subscriptions))

    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(read_one(each) for each in subscriptions))
    return found


async def start(stack: AsyncExitStack, folder: Path, count: int, *, fence: bool) -> tuple[RawNats, list[Subscription]]:
    """Start a server, a publisher, and `count` instances of the subscription, which share the consumer."""
    config, passwords = (NO_SYNC, PASSWORDS) if fence else (None, {})
    server = await stack.enter_async_context(NatsServer(folder / "nats", config=config, **passwords))
    login = Login(user="timer-service", password=PASSWORDS["TIMER_SERVICE_PASSWORD"]) if fence else Login()
    history = MemoryHistory()
    subscriptions: list[Subscription] = []
    for _ in range(count):
        broker = await NatsBroker.connect(server.url, "timer", login=login, reply_prefix="_INBOX.", manage_streams=True)
        stack.push_async_callback(broker.close)
        subscriptions.append(await broker.subscribe(history))
    user = {"user": "tenant-a", "pass": PASSWORDS["TENANT_A_PASSWORD"]} if fence else {}
    return await stack.enter_async_context(RawNats.connect(server.port, **user)), subscriptions


@pytest.mark.parametrize("instances", [1, 2])
async def test_all_commands_arrive(instances: int, tmp_path: Path) -> None:
    """Empty commands anywhere among 2,000 others delay none of them, with one instance or two."""
    async with AsyncExitStack() as stack:
        publisher, subscriptions = await start(stack, tmp_path, instances, fence=True)
        messages = [RawMessage(SUBJECT, b"any")] * 2_000
        for place in (1_990, 1_500, 907, 300, 299, 0):
            messages.insert(place, EMPTY)
        await publisher.publish(messages)
        found = await read(subscriptions, len(messages))
    assert set(found) == set(range(1, len(messages) + 1))
    if instances == 1:  # otherwise the other instance may have some that look lost
        assert found.total() - len(messages) <= 32, "only what is on its way at the second look may come twice"


async def test_a_waiting_pull(tmp_path: Path) -> None:
    """Empty commands among others that come one by one, while the pull waits, delay none of them."""
    async with AsyncExitStack() as stack:
        publisher, subscriptions = await start(stack, tmp_path, 1, fence=True)
        reading = asyncio.create_task(read(subscriptions, 60))
        for number in range(60):
            await publisher.publish([EMPTY if number % 20 == 0 else RawMessage(SUBJECT, b"any")])
        assert len(await reading) == 60


async def test_without_a_fence(tmp_path: Path) -> None:
    """Within one account nothing is lost, so nothing comes twice."""
    async with AsyncExitStack() as stack:
        publisher, subscriptions = await start(stack, tmp_path, 1, fence=False)
        messages = [RawMessage(SUBJECT, b"any")] * 1_000
        messages.insert(300, EMPTY)
        await publisher.publish(messages)
        found = await read(subscriptions, len(messages))
    assert set(found.values()) == {1}

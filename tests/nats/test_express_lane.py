"""Fair intake: commands of other tenants are not delayed by the backlog of one tenant, on a real server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from nats.js.errors import Error as JetStreamError

from tests.harness.brokers import HARNESSES, NatsHarness
from tests.harness.history import MemoryHistory
from timer_service.adapters.nats import express_lane
from timer_service.adapters.nats import subscription as nats_subscription
from timer_service.core.ports.broker import Subscription
from timer_service.core.values.delivery import Delivery

FLOOD = 3000
LIMIT = 50
QUIET = 1000
MESSAGES = ["schedule-timer", "cancel-timer"]


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[NatsHarness]:
    """Return a NATS broker and a user."""
    async with HARNESSES["nats"](request) as started:
        assert isinstance(started, NatsHarness)
        yield started


async def publish(harness: NatsHarness, tenant: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        await harness.user.publish(f"timer.cmd.v1.{tenant}.schedule-timer", b"%d" % number, headers={"a": "b"})
    await harness.user.flush()


async def take_until(subscription: Subscription, ends: Callable[[list[Delivery]], bool]) -> list[Delivery]:
    """Take and settle commands, slowly, as a service with a database does. Return them in their order."""
    taken: list[Delivery] = []
    async with asyncio.timeout(60):
        while not ends(taken):
            batch = await subscription.next_batch(LIMIT)
            taken += batch
            await asyncio.sleep(0.01)  # the time that a transaction takes
            await subscription.acknowledge(batch)
    return taken


async def read_all(harness: NatsHarness, count: int) -> list[Delivery]:
    """Subscribe, take and settle `count` commands."""
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=MESSAGES)
    taken = await take_until(subscription, lambda taken: len(taken) >= count)
    await subscription.close()
    await harness.broker._client.flush()
    return taken


def keys(taken: list[Delivery]) -> list[str]:
    return [f"{delivery.address.tenant} {delivery.body.decode()}" for delivery in taken]


async def until_settled(harness: NatsHarness) -> None:
    """Return when all commands are settled. The server handles acknowledgements a moment after it has received them."""
    async with asyncio.timeout(60):
        while True:
            info = await harness.user.jetstream().consumer_info("TIMER_CMD", "timer-service")
            if (info.num_ack_pending, info.num_pending) == (0, 0):
                return


async def test_others_overtake_a_flood(harness: NatsHarness) -> None:
    """Commands behind the backlog of one tenant overtake it. Each command is taken once, and all are settled."""
    await publish(harness, "flood", FLOOD)
    await publish(harness, "good", 3)
    await publish(harness, "other", 1)
    await publish(harness, "flood", 1, first=FLOOD)
    taken = await read_all(harness, FLOOD + 5)
    assert Counter(keys(taken)).most_common(1)[0][1] == 1
    tenants = [delivery.address.tenant for delivery in taken]
    assert max(tenants.index("good"), tenants.index("other")) < FLOOD / 2
    assert [delivery.body for delivery in taken if delivery.address.tenant == "good"] == [b"0", b"1", b"2"]
    await until_settled(harness)


async def test_others_overtake_what_follows_a_slow_command(
    harness: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one slow command is handled, others come behind more slow ones. They need not wait for a second one."""
    monkeypatch.setattr(express_lane, "_BACKLOG_SECONDS", 0.001)
    monkeypatch.setattr(express_lane, "_ROUND_SECONDS", 0)
    for name in ("_WAIT_SECONDS", "_LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(express_lane, name, 30)
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=MESSAGES)
    assert isinstance(subscription, nats_subscription.NatsSubscription)
    await publish(harness, "evil", 1)
    batch = await subscription.next_batch(LIMIT)
    assert keys(list(batch)) == ["evil 0"]
    stay = subscription._stay
    async with asyncio.timeout(30):
        while stay.lane._task is not None:  # it lists what is stored
            await asyncio.sleep(0.001)
        monkeypatch.setattr(stay.lane._search, "_listing_seconds", 0.0)  # after a slow listing, the next one waits
        await publish(harness, "evil", 2 * LIMIT, first=1)
        await harness.user.jetstream().publish("timer.cmd.v1.good.schedule-timer", b"0")  # until it is stored
        while not stay.has_commands:
            await asyncio.sleep(0.001)
    await subscription.acknowledge(batch)
    assert keys(list(await subscription.next_batch(LIMIT))) == ["good 0"]


async def test_slow_commands_that_overtake_take_turns_with_those_before_them(
    harness: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow commands that overtake others do not keep those waiting that came first, however many of them follow."""
    monkeypatch.setattr(express_lane, "_BACKLOG_SECONDS", 0.001)
    monkeypatch.setattr(express_lane, "_ROUND_SECONDS", 0)
    for name in ("_WAIT_SECONDS", "_LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(express_lane, name, 30)
    await publish(harness, "early", LIMIT)
    await publish(harness, "late", LIMIT)
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=MESSAGES)
    tenants: list[str] = []
    async with asyncio.timeout(30):
        while len(tenants) < 12:
            (delivery,) = await subscription.next_batch(1)
            tenants.append(delivery.address.tenant)
            await asyncio.sleep(0.01)
            await subscription.acknowledge([delivery])
    assert "late" in tenants
    assert tenants.count("early") >= 5, tenants


async def test_waits_little_after_a_batch_that_was_not_cut(
    harness: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch from which commands were put back lets only those wait that were, not all that come after slow ones."""
    monkeypatch.setattr(express_lane, "_BACKLOG_SECONDS", 0.001)
    monkeypatch.setattr(express_lane, "_ROUND_SECONDS", 0)
    monkeypatch.setattr(express_lane, "_LONGEST_WAIT_SECONDS", 0)
    await publish(harness, "flood", 3 * LIMIT)
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=MESSAGES)
    assert isinstance(subscription, nats_subscription.NatsSubscription)
    cut = await subscription.next_batch(LIMIT)
    lane = subscription._stay.lane
    monkeypatch.setattr(lane._search, "find", lambda *_: asyncio.sleep(60, []))  # a round of many tenants
    began, size, behind = lane._last_batch
    lane._last_batch = began - 60, size, behind
    await subscription.put_back(cut)
    batch = await subscription.next_batch(LIMIT)
    assert keys(list(batch)) == keys(list(cut))
    monkeypatch.setattr(express_lane, "_LONGEST_WAIT_SECONDS", 60)
    await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        await subscription.acknowledge(batch)
        await subscription.next_batch(LIMIT)
    assert lane._task is not None, "the round goes on"
    await subscription.close()


@pytest.mark.slow
async def test_overtaking_commands_are_complete(harness: NatsHarness) -> None:
    """A command that is read ahead is the same as if the consumer delivered it."""
    await publish(harness, "flood", FLOOD)
    body, headers = b'\x00\xff{"a": "\xc3\xa9"}', {"Timer-Reply-To": "_INBOX.a", "Nats-Msg-Id": "my-id"}
    await harness.user.publish("timer.cmd.v1.good.cancel-timer", body, headers=headers)
    taken = await read_all(harness, FLOOD + 1)
    (good,) = (delivery for delivery in taken if delivery.address.tenant == "good")
    assert taken.index(good) < FLOOD / 2
    assert good.handle is None, "it was read ahead"
    await harness.user.jetstream().delete_consumer("TIMER_CMD", "timer-service")
    (again,) = (each for each in await read_all(harness, FLOOD + 1) if each.address.tenant == "good")
    for field in ("address", "source", "message_id", "body", "size", "position", "stored_at", "attempt"):
        assert getattr(good, field) == getattr(again, field), field
    assert list(good.headers.items()) == list(again.headers.items())


async def test_a_retried_command_comes_again(harness: NatsHarness) -> None:
    """A command that was read ahead and could not be handled is delivered by the consumer later."""
    await publish(harness, "flood", FLOOD)
    await publish(harness, "good", 1)
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=MESSAGES)
    seen: list[int] = []
    async with asyncio.timeout(60):
        while len(seen) < 2:
            batch = await subscription.next_batch(LIMIT)
            good = [delivery for delivery in batch if delivery.address.tenant == "good"]
            seen += [delivery.position.sequence for delivery in good]
            if len(seen) == 1 and good:
                await subscription.retry(good, timedelta(0))
            await subscription.acknowledge([delivery for delivery in batch if delivery not in good])
            await asyncio.sleep(0.005)
    assert seen == [FLOOD + 1] * 2


async def test_others_overtake_a_consumer_full_of_retries(harness: NatsHarness) -> None:
    """Commands that wait for a retry can fill the consumer, so that it delivers nothing. Others need not wait for them.

    For example, the dead letters of one tenant cannot be stored for minutes.
    """
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=MESSAGES)
    jetstream = harness.user.jetstream()
    config = (await jetstream.consumer_info("TIMER_CMD", "timer-service")).config
    config.max_ack_pending = 20
    await jetstream.add_consumer("TIMER_CMD", config)
    await publish(harness, "evil", 30)
    retried = 0
    async with asyncio.timeout(60):
        while retried < 20:
            batch = await subscription.next_batch(LIMIT)
            await subscription.retry(batch, timedelta(minutes=5))
            retried += len([each for each in batch if each.handle is not None])
        await publish(harness, "good", 1)
        taken: list[Delivery] = []
        while "good 0" not in keys(taken):
            taken = list(await subscription.next_batch(LIMIT))
            await subscription.retry([each for each in taken if each.address.tenant == "evil"], timedelta(minutes=5))
    info = await jetstream.consumer_info("TIMER_CMD", "timer-service")
    assert info.num_ack_pending == 20


async def test_what_was_handled_before_a_restart_is_not_read_ahead(
    harness: NatsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, an old command still waits for its retries. Those behind it were handled, and come no more."""
    monkeypatch.setattr(nats_subscription, "_HOLD_SECONDS", 0)
    await publish(harness, "evil", 1)
    await publish(harness, "good", 3)
    history = MemoryHistory()
    for goods in (3, 0):
        subscription = await harness.broker.subscribe(history, messages=MESSAGES)
        taken: list[Delivery] = []
        retried = 0
        async with asyncio.timeout(60):
            while retried < 4 or len(taken) < goods:
                batch = await subscription.next_batch(LIMIT)
                evil = [delivery for delivery in batch if delivery.address.tenant == "evil"]
                await subscription.retry(evil, timedelta(seconds=0.7))
                retried += len(evil)
                others = [delivery for delivery in batch if delivery not in evil]
                await subscription.acknowledge(others)
                taken += others
        assert len(taken) == goods
        await subscription.close()
        await harness.broker._client.flush()


async def test_two_floods(harness: NatsHarness) -> None:
    """The tenant behind two floods overtakes both."""
    await publish(harness, "flood-1", FLOOD // 2)
    await publish(harness, "flood-2", FLOOD // 2)
    await publish(harness, "good", 1)
    tenants = [delivery.address.tenant for delivery in await read_all(harness, FLOOD + 1)]
    assert tenants.index("good") < FLOOD / 2


async def publish_quiet(harness: NatsHarness) -> None:
    """Publish one command of each of many tenants."""
    for number in range(QUIET):
        await publish(harness, f"quiet-{number}", 1)


async def test_quiet_tenants(harness: NatsHarness) -> None:
    """Tenants whose commands are handled and still stored do not delay a tenant that waits behind a flood."""
    await publish_quiet(harness)
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=MESSAGES)
    await take_until(subscription, lambda taken: len(taken) == QUIET)
    await publish(harness, "flood", 3 * FLOOD)
    await take_until(subscription, lambda taken: len(taken) > FLOOD / 2)
    listings = await harness.user.subscribe("$JS.API.STREAM.INFO.TIMER_CMD")
    await publish(harness, "good", 1)
    taken = await take_until(subscription, lambda taken: any(each.address.tenant == "good" for each in taken))
    await subscription.close()
    assert taken[-1].handle is None, "it was read ahead"
    rounds = listings.pending_msgs / len(MESSAGES)
    assert 0 < rounds <= 3, "the search lists all tenants in each round, and has found the good one at once"


@pytest.mark.slow
async def test_quiet_tenants_at_the_start(harness: NatsHarness) -> None:
    """A service that starts with a backlog finds a tenant that waits among many that do not."""
    await publish_quiet(harness)
    await read_all(harness, QUIET)
    await publish(harness, "flood", 3 * FLOOD)
    await publish(harness, "good", 1)
    taken = await read_all(harness, 3 * FLOOD + 1)
    tenants = [delivery.address.tenant for delivery in taken]
    assert tenants.index("good") < FLOOD * 2


async def test_without_permission_to_read(harness: NatsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the stream cannot be read directly, commands come in the order of the stream."""

    async def refuse(*_arguments: object) -> None:
        raise JetStreamError

    monkeypatch.setattr("timer_service.adapters.nats.durable.DurableConsumer.subjects", refuse)
    await publish(harness, "flood", FLOOD // 4)
    await publish(harness, "good", 1)
    taken = await read_all(harness, FLOOD // 4 + 1)
    assert [delivery.position.sequence for delivery in taken] == list(range(1, FLOOD // 4 + 2))


@pytest.mark.slow
async def test_others_overtake_commands_that_are_put_back(harness: NatsHarness) -> None:
    """While a tenant's slow commands are put back again and again, other tenants overtake them, in their own order."""
    await publish(harness, "slow", LIMIT)
    await publish(harness, "both", 1)
    await publish(harness, "slow", FLOOD // 10, first=LIMIT)
    await publish(harness, "good", 2)
    await publish(harness, "both", 1, first=1)
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=["schedule-timer", "cancel-timer"])
    taken: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(taken) < LIMIT + FLOOD // 10 + 4:
            batch = await subscription.next_batch(LIMIT)
            taken.append(batch[0])
            await subscription.put_back(batch[1:])
            await subscription.acknowledge(batch[:1])
            await asyncio.sleep(0.01)  # the time that a transaction takes
    handled = keys(taken)
    assert Counter(handled).most_common(1)[0][1] == 1
    assert handled.index("good 0") < handled.index("good 1") < FLOOD // 20
    assert handled.index("both 0") < handled.index("both 1")
    slow = [each for each in handled if each.startswith("slow")]
    assert slow == [f"slow {number}" for number in range(LIMIT + FLOOD // 10)]
    await subscription.close()


async def test_others_come_first_after_putting_back(harness: NatsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was published while a slow one was handled comes before the commands that are put back."""
    monkeypatch.setattr(express_lane, "_WAIT_SECONDS", 30)  # the look may be slow here
    monkeypatch.setattr(express_lane, "_LONGEST_WAIT_SECONDS", 30)
    await publish(harness, "slow", 10)
    subscription = await harness.broker.subscribe(MemoryHistory(), messages=["schedule-timer", "cancel-timer"])
    firsts = []
    async with asyncio.timeout(60):
        batch = await subscription.next_batch(10)
        for name in ("good", "other"):
            await publish(harness, name, 1)
            await asyncio.sleep(0.3)  # the time that a slow command takes
            await subscription.acknowledge(batch[:1])
            await subscription.put_back(batch[1:])
            batch = await subscription.next_batch(5)
            firsts.append(keys(list(batch)))
            await subscription.acknowledge(batch)
            batch = await subscription.next_batch(5)
    assert firsts == [["good 0"], ["other 0"]]
    await subscription.close()

"""A command stream that is recreated, rolled back or replaced while the service is connected, on a real server."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from tests.harness.history import MemoryHistory
from tests.harness.processes import NatsServer
from timer_service.adapters.nats import NatsBroker
from timer_service.adapters.nats.subscription import NatsSubscription
from timer_service.core.intake.epochs import Epochs
from timer_service.core.values.delivery import Delivery
from timer_service.core.values.errors import StartError
from timer_service.core.values.message import Position

PATIENCE_SECONDS = 20
CONSUMER = ("TIMER_CMD", "timer-service")


class Site:
    """A server, a user, and the subscription of a service that remembers its history."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.history = MemoryHistory()
        self.user: Client
        self.broker: NatsBroker
        self.subscription: NatsSubscription

    async def send(self, *calls: str) -> None:
        """Publish commands as a user."""
        for call in calls:
            await self.user.jetstream().publish("timer.cmd.v1.acme.schedule-timer", call.encode())

    async def take(self, count: int) -> list[Delivery]:
        """Take commands and record them as handled, but do not settle them."""
        taken: list[Delivery] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(taken) < count:
                taken += await self.subscription.next_batch(count - len(taken))
        for delivery in taken:
            self.history.handle(delivery.position.sequence, delivery.stored_at)
        return taken

    async def handle(self, count: int) -> list[Delivery]:
        """Take commands and acknowledge them."""
        taken = await self.take(count)
        await self.subscription.acknowledge(taken)
        await self.broker._client.flush()
        return taken

    async def restart(self, change: Callable[[], Any] = lambda: None) -> None:
        """Restart the server, and change its files in between. Return when the user is connected again."""
        await self.server.terminate()
        change()
        await self.server.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.user.is_connected:
                await asyncio.sleep(0.01)
        await self.user.flush()

    def copy_of_store(self) -> Path:
        """Return where a copy of the server's files is kept."""
        return self.folder.with_name("copy")

    def put_copy_back(self) -> None:
        """Replace the server's files by their copy."""
        shutil.rmtree(self.folder / "js")
        shutil.copytree(self.copy_of_store(), self.folder / "js")


async def _ignore(_error: Exception) -> None:
    """Ignore connection errors: the tests stop the server."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Return a running site."""
    folder = tmp_path / "nats"
    wait: Any = 0.05
    async with NatsServer(folder) as server:
        started = Site(server, folder)
        options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": wait, "error_cb": _ignore}
        started.broker = await NatsBroker.connect(server.url, "timer", reply_prefix="_INBOX.", manage_streams=True)
        started.subscription = await started.broker.subscribe(started.history)
        async with await nats.connect(server.url, **options) as user:
            started.user = user
            yield started
        await started.subscription.close()
        await started.broker.close()


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.body.decode() for delivery in deliveries]


async def test_recreated_stream(site: Site) -> None:
    """Commands of a recreated stream are newer. A command taken from the old stream settles nothing in the new one."""
    js = site.user.jetstream()
    await site.send("1", "2", "3")
    old = await site.take(3)
    config = (await js.stream_info("TIMER_CMD")).config
    await js.delete_stream("TIMER_CMD")
    await js.add_stream(config)
    await site.send("new 1", "new 2", "new 3")
    new = await site.take(3)
    await site.subscription.acknowledge(old)
    await site.subscription.retry(new, timedelta(0))
    again = await site.handle(3)
    assert bodies(new) == ["new 1", "new 2", "new 3"] == bodies(again)
    assert min(each.position for each in new) > max(each.position for each in old)


async def test_stream_replaced_during_an_outage(site: Site) -> None:
    """The same holds if another, empty server takes the place of the first."""
    await site.send("1", "2")
    old = await site.take(2)

    def replace() -> None:
        shutil.rmtree(site.folder / "js")

    await site.restart(replace)
    js = site.user.jetstream()
    await js.add_stream(name="TIMER_CMD", subjects=["timer.cmd.v1.*.*"])
    await site.send("new 1", "new 2")
    acknowledging = asyncio.create_task(site.subscription.acknowledge(old))
    new = await site.take(2)
    await acknowledging
    await site.subscription.acknowledge(new[:1])
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await js.consumer_info(*CONSUMER)).num_ack_pending != 1:
            await asyncio.sleep(0.01)
    assert bodies(new) == ["new 1", "new 2"]
    assert min(each.position for each in new) > max(each.position for each in old)


@pytest.mark.parametrize("new_commands", [2, 12])
async def test_stream_rolled_back(site: Site, new_commands: int) -> None:
    """After a rollback the new commands are newer than the lost ones, whether the stream is longer again or not.

    The kept commands keep their positions. The command that was not settled comes again.
    """
    await site.send("1", "2", "3")
    kept = await site.take(3)
    await site.subscription.acknowledge(kept[:2])
    await site.broker._client.flush()
    await site.restart(lambda: shutil.copytree(site.folder / "js", site.copy_of_store()))
    await site.send(*(f"lost {number}" for number in range(6)))
    lost = [each for each in await site.handle(6) if each.body.startswith(b"lost")]
    await site.restart(site.put_copy_back)
    calls = [f"new {number}" for number in range(new_commands)]
    await site.send(*calls)
    taken: list[Delivery] = []
    while not set(calls) <= set(bodies(taken)):
        taken += await site.handle(1)
    newest_kept = max(each.position for each in kept)
    new = [each for each in taken if each.body.startswith(b"new")]
    assert lost
    assert bodies(sorted(new, key=lambda each: each.position)) == calls
    assert newest_kept < max(each.position for each in lost) < min(each.position for each in new)
    assert {each.position for each in taken if each.body in {b"1", b"2", b"3"}} <= {each.position for each in kept}


@pytest.mark.parametrize("first", [False, True])
async def test_stream_rolled_back_during_a_join(site: Site, monkeypatch: pytest.MonkeyPatch, *, first: bool) -> None:
    """If the connection is lost while the consumer is joined, for example because the database is slow, it joins again.

    What it has found out about the stream was true before. The stream was rolled back since then. This also holds for
    the first join of a service that starts.
    """
    await site.send("1")
    await site.handle(1)
    await site.restart(lambda: shutil.copytree(site.folder / "js", site.copy_of_store()))
    await site.send("2", "3")
    *_, lost = await site.handle(2)
    if first:
        await site.subscription.close()
    recognize = site.history.recognize

    async def recognize_slowly(*arguments: Any) -> Epochs:
        monkeypatch.undo()
        epochs = await recognize(*arguments)
        await site.restart(site.put_copy_back)
        await site.send("4")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not site.broker.health.usable:
                await asyncio.sleep(0.01)
        return epochs

    monkeypatch.setattr(site.history, "recognize", recognize_slowly)
    if first:
        site.subscription = await site.broker.subscribe(site.history)
    else:
        site.subscription.connection_lost()
        site.subscription.connection_restored()
    (new,) = await site.take(1)
    assert (lost.body, new.body) == (b"3", b"4")
    assert new.position > lost.position


async def test_stream_recreated_during_a_join(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds if the stream is deleted and created again meanwhile."""
    js = site.user.jetstream()
    await site.send("1", "2")
    *_, old = await site.handle(2)
    recognize = site.history.recognize

    async def recognize_slowly(*arguments: Any) -> Epochs:
        monkeypatch.undo()
        epochs = await recognize(*arguments)
        config = (await js.stream_info("TIMER_CMD")).config
        await js.delete_stream("TIMER_CMD")
        await js.add_stream(config)
        await site.send("new")
        return epochs

    monkeypatch.setattr(site.history, "recognize", recognize_slowly)
    site.subscription.connection_lost()
    site.subscription.connection_restored()
    (new,) = await site.take(1)
    assert (new.body, new.position > old.position) == (b"new", True)


async def test_deleted_consumer(site: Site) -> None:
    """If the consumer is deleted, it is created again. Every command comes again, at its old position."""
    await site.send("1", "2")
    before = await site.handle(2)
    await site.user.jetstream().delete_consumer(*CONSUMER)
    after = await site.handle(2)
    assert [each.position for each in after] == [each.position for each in before]


async def add_consumer_without_marks(site: Site) -> None:
    """Create the consumer again, as an operator can."""
    js = site.user.jetstream()
    config = (await js.consumer_info(*CONSUMER)).config
    await js.delete_consumer(*CONSUMER)
    await js.add_consumer("TIMER_CMD", config.evolve(metadata={}))


async def request_replay(site: Site) -> None:
    site.history.replay(0)


async def delete_consumer(site: Site) -> None:
    await site.user.jetstream().delete_consumer(*CONSUMER)


@pytest.mark.parametrize(
    ("change", "deliverable"), [(request_replay, [0]), (delete_consumer, []), (add_consumer_without_marks, [3])]
)
async def test_no_limit_for_commands_that_come_again(
    site: Site, change: Callable[[Site], Awaitable[None]], deliverable: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before commands come again, the database learns up to which one. A join that repeats nothing tells nothing.

    `deliverable`: how many commands an existing consumer would deliver at that time.
    """
    found: list[int | None] = []
    exempt_until = site.history.exempt_until

    async def look_and_exempt(position: Position) -> None:
        with suppress(NotFoundError):
            found.append((await site.user.jetstream().consumer_info(*CONSUMER)).num_pending)
        await exempt_until(position)

    monkeypatch.setattr(site.history, "exempt_until", look_and_exempt)
    await site.send("1", "2", "3")
    before = await site.handle(3)
    first = site.history.exempt
    await site.subscription.close()
    await change(site)
    site.subscription = await site.broker.subscribe(site.history)
    assert (first, site.history.exempt) == (before[0].position._replace(sequence=0), before[-1].position)
    assert found == deliverable
    assert [each.position for each in await site.handle(3)] == [each.position for each in before]
    await site.send("4")
    await site.handle(1)
    await site.restart()
    await site.send("5")
    await site.handle(1)
    assert site.history.exempt == before[-1].position


async def test_another_database(site: Site) -> None:
    """A service with another database is refused, and the message says what to do. The first one goes on."""
    url = site.user.connected_url
    assert url is not None
    other = await NatsBroker.connect(url.geturl(), "timer", reply_prefix="_INBOX.", manage_streams=True)
    with pytest.raises(StartError, match=r"another database.*TIMER_SUBJECT_PREFIX.*nats consumer rm TIMER_CMD"):
        await other.subscribe(MemoryHistory("other"))
    await other.close()
    await site.send("1")
    assert bodies(await site.handle(1)) == ["1"]


async def test_worker_with_another_database(site: Site) -> None:
    """An instance that handles no commands is refused too if the commands belong to another database."""
    await site.broker.check_database(site.history)
    with pytest.raises(StartError, match="another database"):
        await site.broker.check_database(MemoryHistory("other"))
    await site.user.jetstream().delete_consumer(*CONSUMER)
    await site.broker.check_database(MemoryHistory("other"))


async def consume(subscription: NatsSubscription) -> None:
    """Handle commands as a service does, until the subscription is closed."""
    while batch := await subscription.next_batch(10):
        await subscription.acknowledge(batch)


@pytest.mark.slow
async def test_copy_of_the_database(site: Site) -> None:
    """A service with a copy of the database is refused while the other one lives, idle or busy, and joins after it."""
    url = site.user.connected_url
    assert url is not None
    other = await NatsBroker.connect(url.geturl(), "timer", reply_prefix="_INBOX.", manage_streams=True)
    living = await other.subscribe(site.history)
    consuming = asyncio.create_task(consume(living))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not living._puller._pulls.outstanding:
            await asyncio.sleep(0.01)
    with pytest.raises(StartError, match="a copy of this database"):
        await site.broker.subscribe(site.history, alone=True)
    await living.close()
    await consuming
    await other.close()
    joined = await site.broker.subscribe(site.history, alone=True)
    await site.send("1")
    assert bodies(list(await joined.next_batch(10))) == ["1"]
    await joined.close()


async def test_another_database_after_an_outage(site: Site) -> None:
    """If the consumer belongs to another database after an outage, nothing is handled, and the health says why."""
    js = site.user.jetstream()
    config = (await js.consumer_info(*CONSUMER)).config
    await js.add_consumer("TIMER_CMD", config.evolve(metadata={"timer-service.database": "other"}))
    await site.restart()
    await site.send("1")
    waiting = asyncio.create_task(site.subscription.next_batch(10))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "another database" not in (site.subscription.health.reason or ""):
            await asyncio.sleep(0.01)
    refused = (site.subscription.health.usable, waiting.done())
    await js.delete_consumer(*CONSUMER)
    assert bodies(list(await waiting)) == ["1"]
    assert (refused, site.subscription.health.usable) == ((False, False), True)


@pytest.mark.slow
async def test_consumer_created_again_by_another_instance(site: Site) -> None:
    """An instance that has no pull outstanding when others recreate stream and consumer notices it with a command."""
    await site.send("1")
    (before,) = await site.handle(1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while site.subscription._puller._pulls.at(time.monotonic()).outstanding:
            await asyncio.sleep(0.01)
    js = site.user.jetstream()
    config = (await js.stream_info("TIMER_CMD")).config
    await js.delete_stream("TIMER_CMD")
    await js.add_stream(config)
    other = await site.broker.subscribe(site.history)
    await site.send("2")
    (after,) = await site.take(1)
    await other.close()
    assert (before.body, after.body) == (b"1", b"2")
    assert after.position > before.position


async def test_rollback_loses_commands_that_were_not_handled(site: Site) -> None:
    """If a rollback loses commands that have arrived but are not handled, later commands are newer than they."""
    await site.send("1")
    await site.handle(1)
    await site.server.terminate()
    shutil.copytree(site.folder / "js", site.copy_of_store())
    await site.restart()
    await site.send("2", "3", "4")
    (lost,) = await site.subscription.next_batch(1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(site.subscription._stay.buffer) < 2:
            await site.subscription._keep_pulling(10)
            await asyncio.sleep(0.01)
    await site.restart(site.put_copy_back)
    await site.send("5")
    (later,) = await site.take(1)
    assert (lost.body, later.body, lost.position.sequence) == (b"2", b"5", later.position.sequence)
    assert later.position > lost.position
    assert later.newest_epoch > lost.newest_epoch


@pytest.mark.slow
async def test_replay_that_is_requested_again(site: Site) -> None:
    """A second restore of the same backup is replayed too, although the replay of the first was interrupted."""
    await site.send("1", "2")
    await site.handle(2)
    await site.subscription.close()
    site.history.replay(0)
    site.subscription = await site.broker.subscribe(site.history)
    first = bodies(await site.handle(2))
    await site.subscription.close()
    site.history.replay(0)
    site.subscription = await site.broker.subscribe(site.history)
    assert (first, bodies(await site.handle(2))) == (["1", "2"], ["1", "2"])


async def test_replay_delivers_older_commands_that_wait(site: Site) -> None:
    """A replay keeps commands that were stored before its instant and are not settled."""
    await site.send("1")
    await site.handle(1)
    await site.subscription.close()
    await site.send("2", "3")
    stored = await site.user.jetstream().get_msg("TIMER_CMD", 3)
    assert stored.time is not None
    site.history.replay(int(stored.time.timestamp() * 1000) + 1)
    site.subscription = await site.broker.subscribe(site.history)
    assert bodies(await site.handle(2)) == ["2", "3"]


async def test_replay_without_a_consumer(site: Site) -> None:
    """If the consumer is missing, a replay begins with the oldest command: nobody knows which ones are settled."""
    await site.send("1")
    await site.handle(1)
    await site.subscription.close()
    await site.send("2", "3")
    stored = await site.user.jetstream().get_msg("TIMER_CMD", 3)
    assert stored.time is not None
    site.history.replay(int(stored.time.timestamp() * 1000))
    await site.user.jetstream().delete_consumer(*CONSUMER)
    site.subscription = await site.broker.subscribe(site.history)
    assert bodies(await site.handle(3)) == ["1", "2", "3"]


async def test_oldest_unsettled_command(site: Site) -> None:
    """The broker tells when it stored the oldest command that is not settled; nothing if all are settled."""
    before = await site.broker.oldest_unsettled()
    await site.send("1", "2", "3")
    first, *others = await site.take(2)
    await site.subscription.acknowledge(others)
    await site.broker._client.flush()
    during = await site.broker.oldest_unsettled()
    await site.subscription.acknowledge([first, *await site.take(1)])
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await site.broker.oldest_unsettled() is not None:
            await asyncio.sleep(0.01)
    assert (before, during) == (None, first.stored_at // 1_000_000)


@pytest.mark.slow
async def test_replay(site: Site) -> None:
    """A replay delivers the commands again that were stored since an instant, once."""
    await site.send("1")
    (first,) = await site.handle(1)
    await site.send("2")
    await site.handle(1)
    await site.subscription.close()
    stored = await site.user.jetstream().get_msg("TIMER_CMD", 2)
    assert stored.time is not None
    since = int(stored.time.timestamp() * 1000)
    replay = site.history.replay(since)
    site.subscription = await site.broker.subscribe(site.history)
    before = await site.broker.replayed(replay)
    again = await site.handle(1)
    await site.subscription.close()
    site.subscription = await site.broker.subscribe(site.history)  # during the replay
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await site.broker.replayed(replay):
            await asyncio.sleep(0.01)
    site.history.replay_ended()
    await site.broker.forget_replay()
    await site.send("3")
    later = await site.handle(1)
    assert (before, bodies(again), bodies(later)) == (False, ["2"], ["3"])
    await site.subscription.close()
    site.history.replay(since)
    site.subscription = await site.broker.subscribe(site.history)
    assert bodies(await site.handle(2)) == ["2", "3"], "the same backup can be restored again"
    assert again[0].position.epoch == first.position.epoch

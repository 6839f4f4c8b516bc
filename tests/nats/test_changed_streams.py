"""What the service applies after its command stream was replaced, rolled back or cut, on a real server and SQLite.

No command is skipped. What is applied again is exactly known: the commands that another stream has and that were stored
since a minute before the last one that was read (TIMER_COMMANDS_OVERLAP).
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext

from tests.harness.builders import schedule_timer
from tests.harness.clock import ManualClock
from tests.harness.metrics import RecordingMetrics
from tests.harness.processes import PATIENCE_SECONDS, NatsServer
from tests.harness.stores import open_sqlite
from tests.harness.wiring import make_parts
from timer_service.adapters.nats import NatsBroker
from timer_service.core.intake.route import CommandResult, Route
from timer_service.core.ports.database import Database, Transaction
from timer_service.core.values.message import Command, Position
from timer_service.timers import SLICE

OVERLAP = timedelta(minutes=1)
NONE = timedelta(0)
CONSUMER = ("TIMER_CMD", "timer-service")


class Site:
    """A server, a user, and a service with a SQLite database that applies commands by noting them."""

    def __init__(self, server: NatsServer, folder: Path, user: Client) -> None:
        self.server = server
        self.folder = folder
        self.user = user
        self.applied: list[str] = []
        """The timers of all commands that were applied, in order."""
        self.positions: list[Position] = []
        self.reason: str | None = None
        """Why the reader cannot read, at the last look."""

    @property
    def js(self) -> JetStreamContext:
        """The operator's access to the streams."""
        return self.user.jetstream()

    async def send(self, *calls: str) -> None:
        """Publish commands as a user."""
        for call in calls:
            await self.js.publish("timer.cmd.v1.acme.schedule-timer", schedule_timer(call))

    @asynccontextmanager
    async def running(self, overlap: timedelta = OVERLAP, database: str = "timers.db") -> AsyncIterator[None]:
        """Run the service."""
        broker = await NatsBroker.connect(
            self.server.url, "timer", reply_prefix="_INBOX.", manage_streams=True, overlap=overlap
        )
        async with open_sqlite(self.folder / database) as opened:
            await self._run(broker, opened)
            yield
            await self._stop()
        await broker.close()

    async def until_applied(self, call: str) -> None:
        """Wait until a command was applied after this call, or is the last one that was."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.applied[-1:] != [call]:
                await asyncio.sleep(0.01)

    async def handle(self, *calls: str, overlap: timedelta = OVERLAP) -> None:
        """Run the service until it has applied these commands, which are published first."""
        await self.send(*calls)
        async with self.running(overlap):
            await self.until_applied(calls[-1])

    async def until_reading(self) -> None:
        """Wait until the reader has opened the log."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self._reader.health.usable:
                await asyncio.sleep(0.01)

    async def until_down(self, reason: str) -> str:
        """Wait until the reader has a reason not to read. Return it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while reason not in (found := self._reader.health.reason or ""):
                await asyncio.sleep(0.01)
        return found

    async def recreate(self) -> None:
        """Delete the stream and create it again, empty."""
        config = (await self.js.stream_info("TIMER_CMD")).config
        await self.js.delete_stream("TIMER_CMD")
        await self.js.add_stream(config)

    async def copy_files(self) -> None:
        """Stop the server, copy its files, and start it again."""
        await self.server.terminate()
        await asyncio.to_thread(shutil.copytree, self.server_files, self.folder / "copy")
        await self.restart()

    async def put_files_back(self) -> None:
        """Stop the server, replace its files by the copy, and start it again."""
        await self.server.terminate()
        await asyncio.to_thread(shutil.rmtree, self.server_files)
        await asyncio.to_thread(shutil.copytree, self.folder / "copy", self.server_files)
        await self.restart()

    async def restart(self) -> None:
        """Start the server, and wait for the user."""
        await self.server.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.user.is_connected:
                await asyncio.sleep(0.01)
        await self.user.flush()

    @property
    def server_files(self) -> Path:
        """Where the server has its streams."""
        return self.folder / "nats" / "js"

    async def _run(self, broker: NatsBroker, database: Database) -> None:
        parts = make_parts(database, broker, ManualClock(), RecordingMetrics())
        self._reader = parts.reader([Route(SLICE.commands, self._apply, self._wake)], self._wake_outbox)
        self._task = asyncio.create_task(self._reader.run())

    async def _stop(self) -> None:
        await self._reader.stop()
        await self._task

    async def _apply(self, _tx: Transaction, commands: Sequence[Command], _now: int) -> Sequence[CommandResult]:
        for command in commands:
            payload: Any = command.payload
            self.applied.append(payload.service_call_id)
            self.positions.append(command.position)
        return [CommandResult("noted")] * len(commands)

    async def _wake(self, _at: int, _loop: str | None) -> None:
        """Do nothing: there are no loops."""

    async def _wake_outbox(self) -> None:
        """Do nothing: nothing is published."""


async def _ignore(_error: Exception) -> None:
    """Ignore connection errors: the tests stop the server."""


@pytest.fixture
async def site(server: NatsServer, tmp_path: Path) -> AsyncIterator[Site]:
    """Yield a site whose service has created the streams and opened the log, and does not run."""
    options: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.05, "error_cb": _ignore}
    async with await nats.connect(server.url, **options) as user:
        site = Site(server, tmp_path, user)
        async with site.running():
            await site.until_reading()
        yield site


# The stream was replaced


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
async def test_stream_that_was_recreated(site: Site, *, running: bool) -> None:
    """All commands of a stream that was deleted and created again are applied, once, at later positions."""
    await site.send("1", "2", "3")
    async with site.running():
        await site.until_applied("3")
        if running:
            await site.recreate()
            await site.send("new 1", "new 2")
            await site.until_applied("new 2")
    if not running:
        await site.recreate()
        await site.handle("new 1", "new 2")
    assert site.applied == ["1", "2", "3", "new 1", "new 2"]
    assert site.positions == sorted(set(site.positions))


# The stream was rolled back


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("overlap", [NONE, OVERLAP], ids=["no overlap", "a minute"])
async def test_stream_that_was_rolled_back(site: Site, overlap: timedelta, *, running: bool) -> None:
    """All new commands of a stream whose files were replaced by an older copy are applied.

    The commands of the copy that were stored within the overlap are applied again, at later positions.
    """
    await site.handle("kept 1", "kept 2", overlap=overlap)
    await site.copy_files()
    calls = [f"new {number}" for number in range(3)]  # one less than were lost
    await site.send("lost 1", "lost 2", "lost 3", "lost 4")
    async with site.running(overlap):
        await site.until_applied("lost 4")
        if running:
            await site.put_files_back()
            await site.send(*calls)
            await site.until_applied(calls[-1])
    if not running:
        await site.put_files_back()
        await site.handle(*calls, overlap=overlap)
    kept, lost = ["kept 1", "kept 2"], ["lost 1", "lost 2", "lost 3", "lost 4"]
    repeated = kept if overlap else []
    assert site.applied == [*kept, *lost, *repeated, *calls]
    assert site.positions == sorted(set(site.positions))


# The stream was moved to another server


# Commands were removed


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
async def test_stream_that_was_purged(site: Site, caplog: pytest.LogCaptureFixture, *, running: bool) -> None:
    """After a purge of commands that were applied, the service reads on, and reports no loss."""
    await site.send("1", "2")
    async with site.running():
        await site.until_applied("2")
        if running:
            await site.js.purge_stream("TIMER_CMD")
            await site.send("3")
            await site.until_applied("3")
    if not running:
        await site.js.purge_stream("TIMER_CMD")
        await site.handle("3")
    assert site.applied == ["1", "2", "3"]
    assert len({position.epoch for position in site.positions}) == 1
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.parametrize("read", [0, 2])
async def test_commands_that_expired_unread(site: Site, caplog: pytest.LogCaptureFixture, read: int) -> None:
    """If commands were removed before they were read, an error has their number. Later ones are applied."""
    calls = [f"read {number}" for number in range(read)]
    if calls:
        await site.handle(*calls)
    await site.send("expired 1", "expired 2", "expired 3")
    await site.js.purge_stream("TIMER_CMD")
    await site.handle("later")
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert site.applied == [*calls, "later"]
    assert [(each.message, each.__dict__["count"]) for each in errors] == [
        ("commands were removed from the log before they were read", 3)
    ]


# Another database


async def test_another_database(site: Site) -> None:
    """A service with a new database is refused, and its health says what to do.

    When the operator has deleted the consumer, it applies all commands that the stream has.
    """
    await site.handle("1", "2")
    async with site.running(database="new.db"):
        reason = await site.until_down("another database")
        assert site.applied == ["1", "2"]
        await site.js.delete_consumer(*CONSUMER)
        await site.send("3")
        await site.until_applied("3")
    assert "nats consumer rm TIMER_CMD timer-service" in reason
    assert site.applied == ["1", "2", "1", "2", "3"]

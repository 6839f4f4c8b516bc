"""The wiring of an instance, in this process and on a real broker: what it starts, recovers and stops."""

import asyncio
import http.client
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import SecretStr

from tests.harness.builders import scheduled
from tests.harness.clock import NOW
from tests.harness.databases import Databases
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, unused_port
from tests.harness.timers import put_timers
from timer_service.adapters.nats.log import NatsLog
from timer_service.app.service import App
from timer_service.app.startup import open_app
from timer_service.client import State, TimerClient
from timer_service.config import Config
from timer_service.core.due import loop as loop_module
from timer_service.core.intake.backlog import BacklogGate
from timer_service.core.limits import quotas as quotas_module
from timer_service.core.limits.tenant_limits import Limits, TenantLimits
from timer_service.core.values.errors import StartError
from timer_service.supervisor import Supervisor

TOMORROW = datetime.now(UTC) + timedelta(days=1)
PAST = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def config(tmp_path: Path, broker: NatsServer) -> Config:
    return Config(broker_url=broker.url, db_path=tmp_path / "timers.db", http_port=unused_port())


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[tuple[App, asyncio.Task[None]]]:
    """Run an instance until the end of the block. The block may end it earlier."""
    async with open_app(config) as app:
        task = asyncio.create_task(app.run())
        await until(lambda: is_ready(config))
        try:
            yield app, task
        finally:
            app.stop()
            await asyncio.wait([task])


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await reached():
            await asyncio.sleep(0.01)


async def page(config: Config, path: str) -> dict[str, Any]:
    def get() -> dict[str, Any]:
        with closing(http.client.HTTPConnection(config.http_host, config.http_port, timeout=5)) as connection:
            connection.request("GET", path)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found

    return await asyncio.to_thread(get)


async def is_ready(config: Config) -> bool:
    try:
        return set((await page(config, "/readyz")).values()) == {"ok"}
    except OSError:
        return False


async def is_served(config: Config) -> bool:
    try:
        return bool(await page(config, "/livez"))
    except OSError:
        return False


async def test_asked_to_stop(config: Config) -> None:
    """An instance that is asked to stop returns without an error."""
    async with running(config) as (app, task):
        app.stop()
        await task


class Questions(Supervisor):
    """A supervisor that keeps how to ask whether the service is ready and alive."""

    stopped = 0

    def __init__(self) -> None:
        super().__init__({})

    async def report(self, *, ready: Callable[[], bool], alive: Callable[[], bool]) -> None:
        self.ready, self.alive = ready, alive

    def stopping(self) -> None:
        self.stopped += 1


async def test_supervisor_gets_what_the_pages_say(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systemd gets READY and WATCHDOG by the rules of /readyz and /livez, and STOPPING once."""
    asked = Questions()
    async with open_app(config) as app:
        task = asyncio.create_task(app.run(asked))
        await until(lambda: is_ready(config))
        assert (asked.ready(), asked.alive(), asked.stopped) == (True, True, 0)
        app._parts.publishing.record("no stream has this subject")
        assert (asked.ready(), asked.alive()) == (False, True)
        with monkeypatch.context() as patch:
            patch.setattr(loop_module, "_LONGEST_PASS_SECONDS", -1000)  # any pass that has begun counts as stalled
            assert not asked.alive()
            assert (await page(config, "/livez"))["stalled"]
        app.stop()
        await task
    assert asked.stopped == 1


async def test_readiness_says_draining_when_a_part_fails(config: Config) -> None:
    """If the connection to the broker is closed for good, readiness says so during draining. Then it fails."""
    async with running(config) as (app, task):
        lock = sqlite3.connect(config.db_path, isolation_level=None, check_same_thread=False)
        with closing(lock):
            await asyncio.to_thread(lock.execute, "BEGIN IMMEDIATE")  # the loops cannot end, so draining lasts
            for loop in app._loops:
                loop.wake(0)
            await app._broker._client.close()

            async def is_draining() -> bool:
                return bool((await page(config, "/readyz"))["service"] == "draining")

            await until(is_draining)
        with pytest.raises(StartError, match="the connection to the broker is closed and cannot be restored"):
            await task


async def test_http_server_that_ends(config: Config) -> None:
    """If the HTTP server ends, the instance drains, and the error names it."""
    async with running(config) as (_, task):
        (server,) = [each for each in asyncio.all_tasks() if each.get_name() == "http"]
        server.cancel()
        with pytest.raises(StartError, match="a task ended unexpectedly: http"):
            await task


@pytest.mark.slow
async def test_reader_that_fails_begins_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error of the reader stops the flow of commands for a second only. The instance keeps running."""

    async def fail(_log: NatsLog, limit: int, _most_bytes: int, _seconds: float) -> NoReturn:
        raise RuntimeError(f"no batch of {limit}")

    async with running(config) as (_, task), TimerClient.connect(str(config.broker_url)) as client:

        async def is_failing() -> bool:
            reason: str = (await page(config, "/readyz"))["commands"]
            return reason == "commands cannot be applied: RuntimeError: no batch of 1000"

        with monkeypatch.context() as patch:
            patch.setattr(NatsLog, "read", fail)
            await client.schedule("acme", "call-1", TOMORROW)  # it has its batch already, and reads the next one then
            await until(is_failing)
        assert (await client.schedule("acme", "call-2", TOMORROW)).name == "scheduled"
        await until(lambda: is_ready(config))
        assert not task.done()


@pytest.mark.slow
async def test_backlog_that_takes_long(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the commands from before the start are applied, nothing fires, and readiness says why. Liveness is fine."""

    async def never(_gate: BacklogGate, _now: int) -> bool:
        return False

    async with TimerClient.connect(str(config.broker_url)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(BacklogGate, "is_open", never)
            patch.setattr(loop_module, "_LONGEST_PASS_SECONDS", -1000)  # any pass that has begun counts as stalled
            async with open_app(config) as app:
                task = asyncio.create_task(app.run())
                await until(lambda: is_served(config))
                await client.schedule("acme", "call-1", PAST)
                assert "stored before the start" in (await page(config, "/readyz"))["events"]
                stalled = (await page(config, "/livez"))["stalled"]
                assert (await state_of(client, "call-1")) == State.SCHEDULED
                patch.undo()

                async def has_fired() -> bool:
                    return await state_of(client, "call-1") == State.REACHED

                await until(has_fired)
                await until(lambda: is_ready(config))
                app.stop()
                await task
    assert set(stalled).isdisjoint({"timers", "outbox", "firings", "sweep"})


async def state_of(client: TimerClient, call: str) -> str:
    timer = await client.get("acme", call)
    assert timer is not None
    return timer.state


async def test_stop_before_the_backlog_is_applied(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that is asked to stop before its loops have begun does not wait for them."""

    async def never(_gate: BacklogGate, _now: int) -> bool:
        return False

    monkeypatch.setattr(BacklogGate, "is_open", never)
    async with open_app(config) as app:
        task = asyncio.create_task(app.run())
        await until(lambda: is_served(config))
        app.stop()
        async with asyncio.timeout(config.shutdown_timeout.total_seconds() / 2):
            await task


@pytest.mark.parametrize(
    ("role", "handles", "fires"), [("all", True, True), ("handler", True, False), ("worker", False, True)]
)
async def test_loops_on_postgres(
    config: Config, databases: Databases, role: Any, *, handles: bool, fires: bool
) -> None:
    """Only a role that handles commands writes the lines of the audit log. Only a role that works fires."""
    async with databases.database() as url:
        settings = config.model_copy(update={"role": role, "database_url": SecretStr(url)})
        async with open_app(settings) as app:
            names = {loop.name for loop in app._loops}
    assert ("audit" in names, "timers" in names, "outbox" in names) == (handles, fires, fires)
    assert {"database", "streams", "clock"} <= names


async def test_limit_of_a_tenant_that_uses_several_instances(
    config: Config, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, an instance counts again after a time, because other instances add rows too."""
    monkeypatch.setattr(quotas_module, "_VALID_SECONDS", 0)  # otherwise ten seconds
    limits = TenantLimits(default=Limits(pending_timers=2))
    async with databases.database() as url:
        settings = config.model_copy(update={"limits_file": limits, "database_url": SecretStr(url)})
        async with running(settings) as (app, _), TimerClient.connect(str(config.broker_url)) as client:
            outcomes = [(await client.schedule("acme", "call-1", TOMORROW)).name]
            async with app._database.transaction() as another_instance:
                await put_timers(another_instance, [scheduled("call-2", NOW + 10**12)])
            outcomes.append((await client.schedule("acme", "call-3", TOMORROW)).name)
    assert outcomes == ["scheduled", "over_quota"]


async def test_loops_of_each_role(config: Config) -> None:
    """Every role checks the database and the streams. A failing publish wakes the check of the streams."""
    async with running(config) as (app, _):
        assert {"database", "streams", "timers", "outbox"} <= {loop.name for loop in app._loops}
        assert len({loop.name for loop in app._loops}) == len(app._loops)
        checked = app._loops[[loop.name for loop in app._loops].index("streams")]._pass_began
        app._parts.publishing.record("no stream has this subject")

        async def is_checked() -> bool:
            (loop,) = [loop for loop in app._loops if loop.name == "streams"]
            return loop._pass_began != checked

        async with asyncio.timeout(2):  # much earlier than the next check, which is after 5 s
            await until(is_checked)
        assert (await page(config, "/readyz"))["events"] == "no stream has this subject"


async def test_liveness_names_what_hangs(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Liveness fails if the driver does not read from its connection, or if the reader or a loop hangs."""
    async with running(config) as (app, _):
        assert (await page(config, "/livez"))["stalled"] == []
        with monkeypatch.context() as patch:
            patch.setattr(type(app._reader), "stalled", True)
            patch.setattr(type(app._loops[0]), "stalled", True)
            assert (await page(config, "/livez"))["stalled"] == [*(loop.name for loop in app._loops), "commands"]
        reader = app._broker._client._reading_task
        assert reader is not None
        reader.cancel()
        await asyncio.wait([reader])
        assert app._broker.health.usable
        assert (await page(config, "/livez"))["stalled"] == ["broker-reader"]

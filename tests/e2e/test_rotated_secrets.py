"""Secrets in files are replaced while a service and its users work. Nothing is restarted, and nothing is lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest

from tests.e2e.conftest import User, check_fired
from tests.harness.load_user import now_ms
from tests.harness.postgres import PostgresServer
from tests.harness.processes import PATIENCE_SECONDS, NatsServer, Process, Service
from tests.harness.rotations import Certificate, Credentials, Nkey, Password, Rotation, Token, replace_file
from tests.harness.spawn import TIMER_SERVICE
from timer_service.client import DueTimeReached, NewTimer, NoAnswerError, Outcome, TimerApp, TimerClient

_WRITERS = 8
_DUE_IN_MS = 300
_MORE = 200
_AHEAD = 300
"""How many timers are stored before a rotation. One is due every 10 ms."""
_LONGEST_PAUSE_MS = 3000

ReadLogin = Callable[[], Mapping[str, Any]]


class Load:
    """A client that schedules timers without a pause, and an app that receives their events."""

    def __init__(self, url: str, login: ReadLogin) -> None:
        self._url = url
        self._login = login
        self._client: TimerClient
        self._stopping = False
        self.due: dict[str, int] = {}
        """The due time of each timer, in epoch milliseconds."""
        self.received: set[str] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        app = TimerApp(self._url, tenant="acme", name="load", login=self._login, concurrency=100)

        @app.on_due()
        async def note(event: DueTimeReached) -> None:
            self.received.add(event.timer_id)

        async with TimerClient.connect(self._url, login=self._login) as self._client, asyncio.TaskGroup() as tasks:
            tasks.create_task(app.serve())
            for writer in range(_WRITERS):
                tasks.create_task(self._write(f"writer-{writer}"))
            yield self
            app.stop()

    async def schedule_ahead(self, name: str) -> None:
        """Schedule timers whose lateness shows how long the service pauses."""
        ended = await self._client.timers.schedule_many(
            [self._new_timer(f"{name}-{number}", 10 * number) for number in range(_AHEAD)]
        )
        assert all(isinstance(each, Outcome) for each in ended)

    async def until_more(self) -> None:
        """Wait until events of timers were received that are scheduled from now on."""
        known = set(self.due)
        await _until(lambda: len(self.received - known) >= _MORE)

    async def finish(self) -> None:
        """Schedule no more timers, and wait until the events of all were received."""
        self._stopping = True
        await _until(lambda: not self.due.keys() - self.received)

    async def _write(self, name: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            new = self._new_timer(f"{name}-{number}", _DUE_IN_MS)
            while not await self._schedule(new):
                await asyncio.sleep(0.02)

    async def _schedule(self, new: NewTimer) -> bool:
        try:
            await self._client.timers.schedule("acme", new.timer_id, due_at=new.due_at)
        except NoAnswerError:
            return False
        return True

    def _new_timer(self, timer: str, due_in_ms: int) -> NewTimer:
        due = self.due[timer] = round(now_ms()) + due_in_ms
        return NewTimer("acme", timer, due_at=datetime.fromtimestamp(due / 1000, UTC))


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached():
            await asyncio.sleep(0.02)


async def rotate(
    load: Load,
    service: Service,
    refusal: str,
    *,
    write: Callable[[int], None],
    replace: Callable[[int], Awaitable[None]],
) -> None:
    """Rotate a secret twice under load: the files are replaced before the server changes, and then after it.

    `refusal`: how the reason begins why the service is not ready meanwhile, on its page and in its log.
    """
    await load.until_more()
    await load.schedule_ahead("first")
    write(1)
    await replace(1)
    await load.until_more()
    assert refusal not in service.log.read_text()
    await load.schedule_ahead("second")
    await replace(2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while refusal not in (page := json.loads((await service.page("/readyz"))[1]))["commands"]:
            await asyncio.sleep(0.02)
    assert page["service"] == "ok"
    write(2)
    await service.until_page("/readyz", 200)
    await load.until_more()
    await load.finish()
    warnings = [json.loads(line) for line in service.log.read_text().splitlines() if f'"event": "{refusal}' in line]
    assert {line["level"] for line in warnings} == {"warning"}


async def check_none_lost(load: Load, url: str, login: ReadLogin) -> None:
    """Check the events in the stream: all fired, none early, and the service did not pause for long."""
    async with await nats.connect(url, **login()) as connection:
        fired = await User(connection).fired()
    check_fired(fired, load.due)
    for name in ("first", "second"):
        pause = max(each.stored_at_ms - each.due_at_ms for each in fired if each.call.startswith(name))
        assert pause < _LONGEST_PAUSE_MS


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Password, Token, Nkey, Credentials, Certificate])
async def test_login_at_the_broker(kind: type[Rotation], tmp_path: Path) -> None:
    """The service, a client and an app log in with the newest secret. Until then, the service says why it is down."""
    rotation = kind(tmp_path)
    rotation.write(0)
    refusal = "TLS with the broker has failed: " if kind is Certificate else "the broker refuses the login: "
    async with NatsServer(tmp_path / "nats", rotation.server(0)) as broker:
        url = broker.url.replace("nats:", "tls:") if kind is Certificate else broker.url
        async with (
            Service(tmp_path / "service", url, **rotation.settings) as service,
            Load(url, rotation.login).running() as load,
        ):
            await rotate(
                load, service, refusal, write=rotation.write, replace=lambda number: rotation.replace(broker, number)
            )
        await check_none_lost(load, url, rotation.login)


ORDERS = """
from timer_service.worker import workflow

@workflow("order")
async def order(ctx, number):
    return number
"""


@pytest.mark.slow
async def test_worker_and_listen(tmp_path: Path) -> None:
    """`timer-service worker` and `listen` log in with the newest password, before and after the server has it."""
    (tmp_path / "orders.py").write_text(ORDERS, "utf-8")
    (tmp_path / "note.sh").write_text(f"cat >> {tmp_path}/events\n", "utf-8")
    rotation = Password(tmp_path)
    rotation.write(0)
    async with (
        NatsServer(tmp_path / "nats", rotation.server(0)) as broker,
        Service(tmp_path / "service", broker.url, **rotation.settings),
        TimerClient.connect(broker.url, login=rotation.login) as client,
        asyncio.timeout(3 * PATIENCE_SECONDS),
    ):
        settings = {"TIMER_BROKER_URL": broker.url, **rotation.settings}
        in_folder = f"cd {tmp_path} && exec {TIMER_SERVICE} worker acme orders:order"
        worker = Process(["sh", "-c", in_folder], tmp_path / "worker", settings)
        command = [TIMER_SERVICE, "listen", "acme", "--exec", f"sh {tmp_path}/note.sh"]
        listener = Process(command, tmp_path / "listener", settings)

        def all_logs_have(text: str) -> bool:
            return all(text in each.log.read_text() for each in (worker, listener))

        async def use(number: int) -> None:
            """Start a workflow, whose result the worker returns, and a timer, whose event the listener gets."""
            await _until_started(client, number)
            assert await client.workflows.result("acme", f"order-{number}") == number
            await _until(lambda: f"order-{number}" in (tmp_path / "events").read_text())

        async with worker, listener:
            worker.launch()
            listener.launch()
            await _until(lambda: listener.log.exists() and "waiting for timer.evt" in listener.log.read_text())
            await use(0)
            rotation.write(1)
            await rotation.replace(broker, 1)
            await use(1)
            await rotation.replace(broker, 2)
            await _until(lambda: all_logs_have("the broker refuses the login: "))
            rotation.write(2)
            await use(2)
            assert (await worker.terminate(), await listener.terminate()) == (0, 0)


async def _until_started(client: TimerClient, number: int) -> None:
    """Start a workflow and schedule a timer, as soon as the client has connected again."""
    while True:
        try:
            await client.workflows.start("acme", f"order-{number}", "order", data=number)
            await client.timers.schedule("acme", f"order-{number}", due_in=timedelta())
        except NoAnswerError:
            await asyncio.sleep(0.02)
        else:
            return


@pytest.mark.slow
async def test_url_of_the_database(tmp_path: Path, broker: NatsServer, postgres_server: PostgresServer) -> None:
    """Each new connection to PostgreSQL has the newest password."""
    file = tmp_path / "url"
    host = postgres_server.url.partition("@")[2]

    def write(number: int) -> None:
        replace_file(file, f"postgresql://rotated:password-{number}@{host}")

    owner = await asyncpg.connect(postgres_server.url)

    async def replace(number: int) -> None:
        await owner.execute(f"ALTER ROLE rotated PASSWORD 'password-{number}'")
        await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'")

    await owner.execute("CREATE ROLE rotated SUPERUSER LOGIN PASSWORD 'password-0'")
    hba = await owner.fetchval("SHOW hba_file")
    rules = "('host all rotated all scram-sha-256'), ('host all all all trust')"
    await owner.execute(f"COPY (VALUES {rules}) TO '{hba}'")
    await owner.execute("SELECT pg_reload_conf()")
    write(0)
    async with (
        Service(tmp_path / "service", broker.url, TIMER_DATABASE_URL_FILE=str(file)) as service,
        Load(broker.url, dict).running() as load,
    ):
        await rotate(load, service, "the database refuses the login: ", write=write, replace=replace)
    await owner.close()
    await check_none_lost(load, broker.url, dict)

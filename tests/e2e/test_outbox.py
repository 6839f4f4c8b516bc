"""The outbox with the real service: programs of users that are killed, and docs/outbox.md."""

import random
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_EACH_BROKER, ON_SQLITE
from tests.e2e.test_examples import EXAMPLES, ROOT, block, run
from tests.harness import outbox_user
from tests.harness.databases import Databases
from tests.harness.outbox import running, until_sent
from tests.harness.processes import NatsServer, Process, Service
from tests.harness.user_databases import UserDatabase
from timer_service.client import TimerClient
from timer_service.client.outbox import Outbox, OutboxRelay
from timer_service.client.outbox.table import definition
from timer_service.client.receive import stored_seen

KILLS = [2, pytest.param(60, marks=[pytest.mark.full])]


PAGE = "docs/outbox.md"


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS)
@ON_EACH_BROKER
@ON_SQLITE
async def test_killed_programs(
    tmp_path: Path, broker: NatsServer, service: Service, user_database: UserDatabase, kills: int
) -> None:
    """Programs are killed at random points of their transactions and of their relays. Each order has its timer.

    No timer lacks its order, and each was scheduled once: its command is in the stream once.
    """
    await outbox_user.create_tables(user_database.place)
    draw = random.Random(kills)
    points = [outbox_user.POINTS[number % 4] for number in range(kills)]
    draw.shuffle(points)
    for number, point in enumerate(points):
        arguments = [user_database.place, broker.url, str(number), point]
        command = [sys.executable, "-m", "tests.harness.outbox_user", *arguments]
        async with Process(command, tmp_path / "user.log", {}) as program:
            program.launch()
            assert await program.wait() == -signal.SIGKILL, (tmp_path / "user.log").read_text()
    async with running(OutboxRelay(outbox_user.OUTBOX, user_database.place, broker.url)):
        await until_sent(user_database)
    async with TimerClient.connect(broker.url) as client:
        await client.timers.cancel("acme", "nothing")  # the commands before it are applied
        timers = [timer.timer_id async for timer in client.timers.list("acme")]
    orders = [name for (name,) in await user_database.query("SELECT name FROM orders")]
    without_timer, without_order = set(orders) - set(timers), set(timers) - set(orders)
    print(
        f"{kills} kills, {len(orders)} orders, without timer: {len(without_timer)}, without order: {len(without_order)}"
    )
    assert (without_timer, without_order) == (set(), set())
    assert len(orders) > kills
    applied = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'
    assert await service.metric(applied) == len(orders)


@pytest.mark.slow
@ON_SQLITE
async def test_recipes_of_the_page(tmp_path: Path, broker: NatsServer, service: Service, databases: Databases) -> None:
    """Each script of the page stores an order and its timer."""
    async with databases.database() as url:
        place = url.removeprefix("postgresql:")
        example = (EXAMPLES / "outbox_sqlalchemy.py").read_text("utf-8")
        for script in (block(PAGE, "python", "asyncpg.Connection"), example):
            (tmp_path / "recipe.py").write_text(script.replace("//localhost/shop", place), "utf-8")
            assert await run(broker, sys.executable, "recipe.py", folder=tmp_path) == []
        assert await UserDatabase(url).query("SELECT name FROM orders ORDER BY name") == [("order-1",), ("order-2",)]
        async with running(OutboxRelay(Outbox(), url, broker.url)):
            await until_sent(UserDatabase(url))
    assert await run(broker, sys.executable, str(EXAMPLES / "outbox_sqlite.py"), folder=tmp_path) == []
    async with running(OutboxRelay(Outbox(), tmp_path / "shop.db", broker.url)):
        await until_sent(UserDatabase(str(tmp_path / "shop.db")))
    async with TimerClient.connect(broker.url) as client:
        await client.timers.cancel("acme", "nothing")  # the commands before it are applied
        timers = [timer.timer_id async for timer in client.timers.list("acme")]
    assert timers == ["order-1", "order-2", "order-3"]


def test_tables_of_the_page() -> None:
    """The statements of the pages are those of the code."""
    outbox = definition("timer_outbox")
    page = (ROOT / PAGE).read_text("utf-8")
    for line, other in zip(*("".join(outbox[each]).splitlines() for each in ("postgresql", "sqlite")), strict=True):
        assert line == other or f"`{other.strip().rstrip(',')}`" in page
    for path, part, statements in (
        (PAGE, "AS IDENTITY", outbox["postgresql"]),
        ("docs/receive.md", "timer_seen (", stored_seen.DEFINITION),
    ):
        assert block(path, "sql", part) == "".join(f"{statement};\n" for statement in statements)

"""The outbox with the real service: programs of users that are killed, and the recipes of docs/outbox.md."""

import random
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE
from tests.harness import outbox_user
from tests.harness.outbox import running, until_sent
from tests.harness.processes import NatsServer, Process, Service
from tests.harness.user_databases import UserDatabase
from timer_service.client import TimerClient
from timer_service.client.outbox import OutboxRelay

KILLS = [2, pytest.param(60, marks=[pytest.mark.full])]


@pytest.mark.parametrize("kills", KILLS)
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
        await client.cancel("acme", "nothing")  # the commands before it are applied
        timers = [timer.call async for timer in client.list("acme")]
    orders = [name for (name,) in await user_database.query("SELECT name FROM orders")]
    without_timer, without_order = set(orders) - set(timers), set(timers) - set(orders)
    print(
        f"{kills} kills, {len(orders)} orders, without timer: {len(without_timer)}, without order: {len(without_order)}"
    )
    assert (without_timer, without_order) == (set(), set())
    assert len(orders) > kills
    applied = 'timer_commands_received_total{outcome="scheduled",type="ScheduleTimer"}'
    assert await service.metric(applied) == len(orders)

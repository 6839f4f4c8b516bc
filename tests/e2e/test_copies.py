"""Two services with copies of one SQLite database: one of them handles the commands, and the other one ends."""

import asyncio
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.e2e.conftest import ON_SQLITE, User
from tests.harness.processes import NatsServer, Service, body

TAKEN_OVER = "with a copy of this database"
ROUNDS = 4


async def add_copy(service: Service, folder: Path, broker: NatsServer) -> Service:
    """Stop a service, and return another one with a copy of its database."""
    assert await service.terminate() == 0
    copy = Service(folder / "copy", broker.url)
    shutil.copy(folder / "service" / "timers.db", folder / "copy" / "timers.db")
    return copy


def cancellations(calls: Iterable[str]) -> list[tuple[str, bytes]]:
    return [
        ("timer.cmd.v1.acme.cancel-timer", body("CancelTimer", "acme", {"tenantId": "acme", "serviceCallId": call}))
        for call in calls
    ]


async def until_one_ended(*services: Service) -> tuple[Service, Service]:
    """Wait until a service has ended. Return it, and the other one."""
    async with asyncio.timeout(30):
        while all(each.running.poll() is None for each in services):
            await asyncio.sleep(0.02)
    first, second = services
    return (first, second) if first.running.poll() is not None else (second, first)


@pytest.mark.slow
@ON_SQLITE
async def test_copies_that_start_at_once(tmp_path: Path, broker: NatsServer, user: User, service: Service) -> None:
    """If services with copies of a database start at the same moment, all but one end with 1 and say what to do."""
    await user.schedule({"before": int(time.time() * 1000) + 3_600_000})
    await user.until_handled()
    copy = await add_copy(service, tmp_path, broker)
    for number in range(ROUNDS):
        service.launch()
        copy.launch()
        ended, living = await until_one_ended(service, copy)
        assert (await ended.wait(), TAKEN_OVER in ended.log.read_text()) == (1, True)
        await living.until_page("/readyz", 200)
        due = {f"{number}-{index}": int(time.time() * 1000) + 3_600_000 for index in range(50)}
        await user.schedule(due)
        await user.send(cancellations(due))
        await user.until_handled()
        assert await living.metric('timer_commands_received_total{outcome="cancelled",type="CancelTimer"}') == len(due)
        assert await living.terminate() == 0
        ended.log.write_text("")


@pytest.mark.slow
@ON_SQLITE
async def test_copy_that_starts_while_a_service_is_paused(
    tmp_path: Path, broker: NatsServer, user: User, service: Service
) -> None:
    """A service that was paused while a copy took over ends when it goes on. It handles and fires nothing any more."""
    due_at = int(time.time() * 1000) + 8_000
    due = {f"call-{index}": due_at for index in range(50)}
    await user.schedule(due)
    await user.until_handled()
    copy = await add_copy(service, tmp_path, broker)
    await service.start()
    service.signal(signal.SIGSTOP)
    await user.send(cancellations(due))  # the broker still sends some to the paused service
    async with copy:
        await user.until_handled()
        await asyncio.sleep(due_at / 1000 + 0.1 - time.time())
        service.signal(signal.SIGCONT)
        assert (await service.wait(), TAKEN_OVER in service.log.read_text()) == (1, True)
        assert await copy.metric('timer_commands_received_total{outcome="cancelled",type="CancelTimer"}') == len(due)
        assert (await copy.page("/readyz"))[0] == 200
    assert await user.fired() == []

"""The messages to systemd: READY, WATCHDOG and STOPPING, on a real socket."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.harness.processes import PATIENCE_SECONDS
from tests.harness.systemd import Systemd
from tests.harness.waiting import until
from timer_service.supervisor import Supervisor

WATCHDOG = {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with Systemd(str(tmp_path / "notify")) as other_end:
        yield other_end


class State:
    """Whether the service is ready and alive, and how often that was asked."""

    def __init__(self, *, ready: bool = True, alive: bool = True) -> None:
        self.ready = ready
        self.alive = alive
        self.asked = 0

    def is_ready(self) -> bool:
        self.asked += 1
        return self.ready

    def is_alive(self) -> bool:
        self.asked += 1
        return self.alive

    async def until_asked(self, more: int) -> None:
        wanted = self.asked + more
        await until(lambda: self.asked >= wanted, pause=0.001)


@asynccontextmanager
async def reporting(state: State, **environ: str) -> AsyncIterator[asyncio.Task[None]]:
    report = Supervisor(environ).report(ready=state.is_ready, alive=state.is_alive)
    task = asyncio.create_task(report)
    yield task
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_no_watchdog_while_a_loop_hangs(systemd: Systemd) -> None:
    """While a loop of the service hangs, no WATCHDOG is sent. When it goes on, WATCHDOG is sent again."""
    state = State()
    async with reporting(state, **systemd.environ, **WATCHDOG):
        await state.until_asked(2)
        state.alive = False
        systemd.waiting()
        await state.until_asked(3)
        assert systemd.waiting() == []
        state.alive = True
        assert await systemd.next() == "WATCHDOG=1"


async def test_three_messages_in_the_time_of_the_watchdog(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    """WATCHDOG is sent three times in the time after which systemd ends the process. A pid need not be named."""
    pauses, sleep = [], asyncio.sleep

    async def record(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("timer_service.supervisor.asyncio.sleep", record)
    async with reporting(State(), **systemd.environ, WATCHDOG_USEC="30000"):
        assert [await systemd.next() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
    assert {round(each, 6) for each in pauses} == {0.01}


def test_systemd_that_reads_nothing(systemd: Systemd) -> None:
    """If systemd does not read the messages, more are dropped. The service does not wait."""
    supervisor = Supervisor(systemd.environ)
    for _ in range(10_000):
        supervisor.stopping()
    assert set(systemd.waiting()) == {"STOPPING=1"}


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1"}], ids=["none", "of another"])
async def test_without_a_watchdog(systemd: Systemd, watchdog: dict[str, str]) -> None:
    """Without a watchdog for this process, only READY is sent, and the report ends."""
    async with reporting(State(), **systemd.environ, **watchdog) as task:
        await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert systemd.waiting() == ["READY=1"]


async def test_ready_is_repeated_until_systemd_takes_it(tmp_path: Path) -> None:
    """If systemd is away for a moment, for example while it executes itself again, READY is not lost."""
    state, address = State(), str(tmp_path / "notify")
    async with reporting(state, NOTIFY_SOCKET=address):
        await state.until_asked(2)
        with Systemd(address) as systemd:
            assert await systemd.next() == "READY=1"


def test_abstract_address() -> None:
    """An address that begins with @ is in the abstract namespace of Linux."""
    with Systemd(f"\0timer-service-{os.getpid()}") as systemd:
        Supervisor(systemd.environ).stopping()
        assert systemd.waiting() == ["STOPPING=1"]

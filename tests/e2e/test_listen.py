"""Programs that receive events, as processes: signals, kills, deadly handlers, and `timer-service listen`."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest

from tests.e2e.conftest import ON_EACH_BROKER, ON_SQLITE, User
from tests.harness.processes import NatsServer, Process, Service
from tests.harness.receiving import EventPublisher, Publisher, event_publisher
from tests.harness.spawn import TIMER_SERVICE
from tests.harness.waiting import until
from timer_service.client import TimerClient
from timer_service.client.lookup import url_without_login
from timer_service.client.receive.delivery import DEATHS

PROGRAM = """
import os, sys, time
from datetime import timedelta
from timer_service.client import DueTimeReached, TimerApp

second = timedelta(seconds=1)
shutdown = timedelta(seconds=float(sys.argv[2]))
app = TimerApp(
    sys.argv[1], tenant="acme", name="orders", attempts=2, from_start=True, ack_wait=second, shutdown_timeout=shutdown
)

def note(text):
    with open("log", "a") as file:
        file.write(text + "\\n")

@app.on_due()
def handle(event: DueTimeReached) -> None:
    note(f"begin {event.timer_id}")
    if event.timer_id == "deadly":
        os._exit(9)
    while event.timer_id == "held" and not os.path.exists("go"):
        time.sleep(0.01)
    time.sleep(0.001)
    note(f"end {event.timer_id}")

app.run()
"""


@pytest.fixture
async def events(broker: NatsServer) -> AsyncIterator[EventPublisher]:
    async with event_publisher(broker) as found:
        yield found


class Program(Process):
    """A program of a user. Its output is in `log`, its errors in `errors`."""

    def __init__(self, folder: Path, broker: NatsServer, shutdown_seconds: float = 20) -> None:
        (folder / "program.py").write_text(f"import os\nos.chdir({str(folder)!r})\n{PROGRAM}", "utf-8")
        command = [sys.executable, str(folder / "program.py"), broker.url, str(shutdown_seconds)]
        super().__init__(command, folder / "errors", {})
        self.folder = folder
        (folder / "log").touch()

    def lines(self, what: str = "end") -> list[str]:
        """Return the timers whose handlers have begun or ended, in order."""
        found = (line.split() for line in (self.folder / "log").read_text().splitlines())
        return [timer for how, timer in found if how == what]

    async def until_waiting(self, times: int = 1) -> None:
        """Wait until it has begun to receive for the nth time."""
        await self._until(lambda: self.log.exists() and self.log.read_text().count("INFO waiting for") >= times)


@pytest.fixture
async def program(tmp_path: Path, broker: NatsServer) -> AsyncIterator[Program]:
    async with Program(tmp_path, broker) as found:
        yield found


async def test_a_signal_lets_the_handler_finish(broker: NatsServer, program: Program, events: EventPublisher) -> None:
    """At SIGTERM the handler in progress ends and is acknowledged, and the program ends with 0."""
    program.launch()
    await program.until_waiting()
    address = f"nats://127.0.0.1:{broker.port}"
    wanted = "timer.evt.v1.acme.due-time-reached, timer.evt.v1.acme.due-time-reached.*"
    assert f"waiting for {wanted}, timer.evt.v1.acme.resubmitted.orders at {address}" in program.log.read_text()
    await events.fire("held")
    await until(lambda: program.lines("begin") == ["held"])
    program.signal(signal.SIGTERM)
    await until(lambda: "stopping; 1 handlers are in progress" in program.log.read_text())
    await events.fire("later")
    (program.folder / "go").touch()
    assert await program.wait() == 0
    assert program.lines() == ["held"]
    assert sum(await events.unacknowledged()) == 1


async def test_a_second_signal_ends_at_once(program: Program, events: EventPublisher) -> None:
    """The program ends with 1, and says that the event comes again."""
    program.launch()
    await program.until_waiting()
    await events.fire("held")
    await until(lambda: program.lines("begin") == ["held"])
    program.signal(signal.SIGINT)
    await until(lambda: "stopping; 1 handlers are in progress" in program.log.read_text())
    program.signal(signal.SIGINT)
    assert await program.wait() == 1
    assert "ended by a second signal; the events in progress come again" in program.log.read_text()


@pytest.mark.slow
async def test_a_signal_while_a_handler_hangs(tmp_path: Path, broker: NatsServer, events: EventPublisher) -> None:
    """The program ends after `shutdown_timeout`, also if the handler is in a thread. Its event comes again."""
    async with Program(tmp_path, broker, shutdown_seconds=0.1) as program:
        program.launch()
        await program.until_waiting()
        await events.fire("held")
        await until(lambda: program.lines("begin") == ["held"])
        assert await program.terminate() == 0
        assert "1 handlers have not ended; their events come again" in program.log.read_text()
        (program.folder / "go").touch()
        program.launch()
        await events.until_acknowledged()
        assert (program.lines("begin"), program.lines()) == (["held", "held"], ["held"])


@pytest.mark.slow
@ON_SQLITE
async def test_a_handler_that_ends_the_process(
    broker: NatsServer, service: Service, user: User, program: Program
) -> None:
    """Its event is parked after some deaths. The events that are delivered with it are handled."""
    program.launch()
    await program.until_waiting()
    names = [str(number) for number in range(10)]
    deaths = 0
    async with TimerClient.connect(broker.url) as client, asyncio.timeout(60):
        for name in (*names[:5], "deadly", *names[5:]):
            await client.timers.schedule("acme", name, due_in=timedelta())
        while not (parked := [each async for each in client.events.parked("acme")]):
            if program.running.poll() is not None:
                assert await program.wait() == 9
                deaths += 1
                program.launch()
            await asyncio.sleep(0.02)
        await Publisher(user.connection).until_acknowledged()
    assert {*program.lines()} == {*names}
    assert [each.about["serviceCallId"] for each in parked] == ["deadly"]
    assert parked[0].attempts >= 3 + DEATHS, "a slow machine does not begin with a delivery within ack_wait"
    assert 0 < deaths <= 2 + DEATHS


class Listener(Process):
    """`timer-service listen`."""

    def __init__(self, folder: Path, broker: NatsServer, program: str, *options: str) -> None:
        script = folder / "program.sh"
        script.write_text(f"cd {folder}\n{program}\n", "utf-8")
        command = [TIMER_SERVICE, "listen", "acme", "--exec", f"sh {script}", *options]
        super().__init__(command, folder / "output", {"TIMER_BROKER_URL": broker.url, "TIMER_LOG_FORMAT": "console"})

    async def __aenter__(self) -> Self:
        self.log.touch()
        self.launch()
        await self._until(lambda: "waiting for timer" in self.log.read_text())
        return self


@ON_EACH_BROKER
async def test_a_program_for_each_event(tmp_path: Path, broker: NatsServer, events: EventPublisher) -> None:
    """The program gets the event on stdin. Exit code 0 acknowledges it, and after another one it comes again."""
    read = read_lines(tmp_path / "events")
    async with Listener(tmp_path, broker, "cat >> events; test $(wc -l < events) = 2", "--topic", "unpaid") as listener:
        await events.fire("other")
        await events.fire("a", 7, topic="unpaid")
        await until(lambda: len(read()) == 2)
        await events.until_acknowledged("acme~listen")
        first, second, *others = map(json.loads, read())
        assert first == second == {**first, "id": "event-a", "topic": "unpaid"}
        assert others == []
        assert await listener.terminate() == 0
    text = (tmp_path / "output").read_text()
    begin = "Waiting for due-time-reached with the topic unpaid of tenant acme as consumer listen at"
    assert text.startswith(f"{begin} {url_without_login(broker.url)}")
    assert "ProgramError: sh ended with 1" in text


async def test_a_signal_lets_the_program_finish(tmp_path: Path, broker: NatsServer, events: EventPublisher) -> None:
    """At SIGTERM the program that runs finishes its event, which is acknowledged."""
    run = "cat > /dev/null; touch begun; while ! test -e go; do sleep 0.05; done; touch ended"
    async with Listener(tmp_path, broker, run) as listener:
        await events.fire("a")
        await until((tmp_path / "begun").exists)
        listener.signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert await listener.wait() == 0
    assert (tmp_path / "ended").exists()
    assert await events.unacknowledged("acme~listen") == (0, 0)


def read_lines(path: Path) -> Callable[[], list[str]]:
    return lambda: path.read_text().splitlines() if path.exists() else []

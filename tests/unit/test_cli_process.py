"""How the process of a command ends: by a signal, by the last resort, and with which exit code and message."""

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn, cast

import pytest

from timer_service import cli
from timer_service.app.service import App
from timer_service.cli import process
from timer_service.cli.process import LastResort, run_async, serve_until_signalled
from timer_service.client import CommandError, NoAnswerError, QueryError
from timer_service.core.values.errors import DatabaseUnavailableError, StartError


@pytest.fixture
def same_process() -> Iterator[None]:
    """Leave the process as it was."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    gc.unfreeze()
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Timers:
    """Records the timers that would end the process, instead of starting threads."""

    def __init__(self) -> None:
        self.made: list[tuple[float, Callable[[], None]]] = []
        self.started = 0

    def __call__(self, seconds: float, end: Callable[[], None]) -> "Timers":
        self.made.append((seconds, end))
        return self

    def start(self) -> None:
        self.started += 1


class SignalledApp:
    """An app that runs until it is stopped, after it has sent a signal to its process."""

    def __init__(self, number: int | None, timers: Timers) -> None:
        self._number = number
        self._timers = timers
        self._stopped = asyncio.Event()
        self.started_before_draining = 0

    def stop(self) -> None:
        self._stopped.set()

    async def run(self, _supervisor: object, *, on_draining: Callable[[], None]) -> None:
        if self._number is not None:
            os.kill(os.getpid(), self._number)
            async with asyncio.timeout(10):
                await self._stopped.wait()
        self.started_before_draining = self._timers.started
        on_draining()


@pytest.mark.usefixtures("same_process")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_end_by_a_signal(monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    """SIGTERM and Ctrl-C stop the app. The last resort begins with the signal, or else when the app drains, once.

    Meanwhile, the threads of the database wait for the event loop for half a millisecond at most.
    """
    timers = Timers()
    monkeypatch.setattr(threading, "Timer", timers)

    async def main() -> SignalledApp:
        app = SignalledApp(number, timers)
        await serve_until_signalled(cast("App", app), timedelta(milliseconds=1500))
        return app

    app = run_async(main())
    assert timers.made == [(3.5, process._end_process)]
    assert sys.getswitchinterval() == pytest.approx(0.0001)
    assert (app.started_before_draining, timers.started) == (0 if number is None else 1, 1)


def test_last_resort(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If a process hangs, it is ended with exit code 1 and a line in the log, in a thread that keeps no process."""
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    last_resort = LastResort(0.001)
    assert last_resort._timer.daemon
    for _ in range(2):
        last_resort.start()
    assert ended.wait(10)
    last_resort._timer.join(10)
    assert codes == [1]
    assert [line.message for line in caplog.records] == ["the service does not end; ending its process"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StartError("no broker"), "timer-service: no broker"),
        (NoAnswerError("nobody answers"), "timer-service: nobody answers"),
        (DatabaseUnavailableError("it is away"), "timer-service: the database cannot be used: it is away"),
        (CommandError("BUSY", "later", []), "timer-service: "),
        (QueryError("BUSY", "later", []), "timer-service: "),
    ],
)
def test_exit_with_a_message(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    """A command that fails exits with 1 and one line that says why."""

    def create_app(_names: object) -> Callable[[], NoReturn]:
        def run() -> NoReturn:
            raise error

        return run

    monkeypatch.setattr(cli, "create_app", create_app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code: Any = ended.value.code
    assert code.startswith(text)
    assert "later" in code or code == text


def test_command_that_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command imports only its own module. Without a known command, all are there, for the help."""
    asked: list[list[str]] = []

    def create_app(names: list[str]) -> Callable[[], None]:
        asked.append(names)
        return lambda: None

    monkeypatch.setattr(cli, "create_app", create_app)
    for arguments in (["timers", "list"], ["serve"], ["--help"], []):
        monkeypatch.setattr(sys, "argv", ["timer-service", *arguments])
        cli.main()
    everything = [*cli.COMMANDS, *cli.GROUPS]
    assert asked == [["timers"], ["serve"], everything, everything]

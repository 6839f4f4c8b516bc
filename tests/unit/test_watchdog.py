"""What the log says about code of the user that does not await."""

import asyncio
import logging
import threading

import pytest

from timer_service import watchdog


async def test_code_that_blocks_the_loop_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While code computes or waits without await, a thread logs where it is, once."""
    monkeypatch.setattr(watchdog, "SLOW_SECONDS", 0.05)
    logged: list[str] = []
    has_logged = threading.Event()

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())
            has_logged.set()

    def block() -> None:
        assert has_logged.wait(timeout=30)
        assert not threading.Event().wait(timeout=0.2)  # the thread looks again

    notes = Notes()
    watchdog.log.addHandler(notes)
    watching = asyncio.create_task(watchdog.watch_loop("all handlers wait"))
    try:
        await asyncio.sleep(0)
        block()
    finally:
        watchdog.log.removeHandler(notes)
        watching.cancel()
    (text,) = logged
    assert "without an await; all handlers wait:\n" in text
    assert "in block\n" in text

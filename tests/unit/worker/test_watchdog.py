"""What the log says about workflow functions that do not await."""

import threading
from typing import Any

import pytest

from timer_service.worker import Context, watchdog, workflow
from timer_service.worker.names import Identity
from timer_service.worker.replay import Replay


def test_a_function_that_blocks_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a function computes or waits without await, a thread logs where it is, once."""
    monkeypatch.setattr(watchdog, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(watchdog, "SLOW_SECONDS", -1)
    looks = threading.Semaphore(0)

    def look() -> None:
        watchdog.Watchdog.look(watchdog.WATCHDOG)
        looks.release()

    monkeypatch.setattr(watchdog.WATCHDOG, "look", look)

    @workflow("order")
    async def blocks(_ctx: Context, _data: Any) -> None:
        for _ in range(3):
            assert looks.acquire(timeout=30)

    replay = Replay(blocks, Identity("acme", "order-1", "2030-01-01T00:00:00Z"), None)
    with watchdog.WATCHDOG.watching():
        replay.advance()
    (record,) = caplog.records
    assert "in blocks" in record.getMessage()

"""Workers at SIGTERM and SIGINT."""

import asyncio
import signal

import pytest

from timer_service.sigterm import stop_at_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_all_workers_of_a_loop_stop(number: signal.Signals) -> None:
    """A signal stops each worker that runs, whichever began or ended before. After the last one, it is not handled."""
    before = signal.getsignal(number)
    first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
    with stop_at_signals(first):
        with stop_at_signals(third):
            pass
        with stop_at_signals(second):
            signal.raise_signal(number)
            async with asyncio.timeout(10):
                await asyncio.gather(first.wait(), second.wait())
    assert not third.is_set()
    assert signal.getsignal(number) in {before, signal.SIG_DFL, signal.default_int_handler}

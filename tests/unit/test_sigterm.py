"""Workers at SIGTERM and SIGINT."""

import asyncio
import signal

import pytest

from timer_service.sigterm import at_sigterm


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_all_workers_of_a_loop_stop(number: signal.Signals) -> None:
    """A signal stops each worker that runs, whichever began or ended before. After the last one, it is not handled."""
    before = signal.getsignal(number)
    first, second, third = asyncio.Event(), asyncio.Event(), asyncio.Event()
    with at_sigterm(first.set, 60):
        with at_sigterm(third.set, 60):
            pass
        with at_sigterm(second.set, 60):
            signal.raise_signal(number)
            async with asyncio.timeout(10):
                await asyncio.gather(first.wait(), second.wait())
    assert not third.is_set()
    assert signal.getsignal(number) == before


async def test_a_second_signal_cancels() -> None:
    """The first signal stops a worker, and the second one cancels it."""
    stopped = asyncio.Event()

    async def run() -> None:
        with at_sigterm(stopped.set, 60):
            signal.raise_signal(signal.SIGTERM)
            await stopped.wait()
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

    async with asyncio.timeout(10):
        (error,) = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError)

"""The events that wait for one iteration of a client."""

import asyncio

from timer_service.client.watches import Watch


async def test_many_waiting_events_do_not_hold_up_others() -> None:
    """A program that reads events which are here already gives other tasks their turn."""
    watch, turns = Watch([]), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for number in range(10_000):
        watch.add(b"%d" % number)
    counting = asyncio.ensure_future(count())
    assert [await watch.next() for _ in range(10_000)] == [b"%d" % number for number in range(10_000)]
    counting.cancel()
    assert turns >= 9

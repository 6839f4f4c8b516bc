"""What a list of timers with large data costs the service and its other users."""

import asyncio
import itertools
import json
import re
import time
import tracemalloc

from tests.harness.clock import NOW, after
from tests.harness.timers import Timers, put_timers
from timer_service.core.values.data import MAX_DATA_BYTES
from timer_service.timers import store
from timer_service.timers.messages import State
from timer_service.timers.rules import Key

MIB = 1024 * 1024
LARGEST = f"[{','.join(['{}'] * (MAX_DATA_BYTES // 3))}]"
"""Data that needs 20 times its size when it is parsed."""
CURSOR = re.compile(rb'"cursor":"[^"]*"')


async def create_large_timers(timers: Timers, count: int) -> None:
    """Create timers in several states, whose data has 64 KiB each."""
    await timers.schedule("call-0", after(hours=1), data=0)
    (timer,) = (await store.find(timers.database.reader, [Key("acme", "call-0")])).values()
    assert timer.schedule is not None
    scheduled = timer._replace(schedule=timer.schedule._replace(data=LARGEST))
    failed = scheduled._replace(state=State.FAILED, available_at=None)
    cancelled = failed._replace(state=State.CANCELLED, settled_at=NOW)
    kinds = itertools.cycle([scheduled, failed, cancelled])
    async with timers.database.transaction() as tx:
        keys = [Key("acme", f"large-{number:04}") for number in range(count)]
        await put_timers(tx, [kind._replace(key=key) for key, kind in zip(keys, kinds, strict=False)])


async def test_memory_of_a_large_list(timers: Timers) -> None:
    """A list of timers with 64 KiB of data each takes less than 6 MiB, however many timers there are."""
    await create_large_timers(timers, 100)
    await timers.ask("list-timers", {"limit": 1})
    tracemalloc.start()
    try:
        found = await timers.queries.answer("list-timers", "acme", b'{"limit": 1000}')
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(json.loads(found.body)["timers"]) > 1
    assert peak < 6 * MIB


async def test_event_loop_beside_large_lists(timers: Timers) -> None:
    """While every page of a large list is read, the event loop is never busy for 50 ms."""
    await create_large_timers(timers, 100)
    busy: list[float] = []

    async def watch() -> None:
        while True:
            before = time.thread_time()  # CPU time, which other processes of the machine do not change
            await asyncio.sleep(0.0005)
            busy.append(time.thread_time() - before)

    watching = asyncio.create_task(watch())
    assert await list_everything(timers) == 101
    watching.cancel()
    assert max(busy) < 0.05


async def list_everything(timers: Timers) -> int:
    """Read every page of all timers of a tenant. Return the number of timers."""
    count, query = 0, b'{"limit": 1000}'
    while True:
        found = await timers.queries.answer("list-timers", "acme", query)
        count += found.body.count(b'"serviceCallId"')
        cursor = CURSOR.search(found.body)  # parsing the page would be the largest work of this process
        if cursor is None:
            return count
        query = b'{"limit": 1000, %b}' % cursor[0]
